"""Vertical federated learning under homomorphic encryption.

Organisations that hold different columns about the same people train and use one model together; what each of
them sees is its own data and what the protocol reveals to it by design.

`securefed.crypto` is the layer below everything and is usable by itself.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
