"""Research on securefed, used by `bench` and the tests from a checkout: no part of the installed package.

attacks    what the parties of a recorded run could infer from what they saw
data       loaders of the paper's data sets, and generated stand-ins
theory     the paper's convergence bound
"""

from __future__ import annotations

__all__: list[str] = []
