"""Measurements, run from a checkout: `python -m bench <command>`. Not part of the installed package.

Work is measured on one thread. Numpy's threads would wait for each other on a busy machine, and waiting
counts as processor time. So they are switched off before numpy is loaded.
"""

from __future__ import annotations

import os

__all__: list[str] = []

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
