"""A party's local model as the protocols use it: a scalar H^k per row, and its derivatives.

In the generalised linear objective (the paper's equation 2 and its Figure 1a) party k computes H_i^k from its
own columns alone. The parties' H_i^k add up to H_i. The model and its parameters never leave the party. The
protocol and its protection decide what is computed from them and sent.

`vjp` adds over rows and does not divide. Encrypted runs open this sum and divide by the batch size
afterwards. Plain runs do the same, so that both are comparable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.errors import DataError

__all__ = ["Array", "LocalModel", "as_parameters", "as_residual", "as_rows", "take_array", "take_word"]

Array = NDArray[np.float64]


@runtime_checkable
class LocalModel(Protocol):
    """A model with one scalar output per row.

    `parameters` is one flat float64 vector: reading gives a copy, writing replaces all of it. `is_linear`
    says that `forward` is linear in the parameters. Then `jacobian(X)` does not depend on them, and the Q
    local steps of a round need a single opening.
    """

    @property
    def parameters(self) -> Array: ...

    @parameters.setter
    def parameters(self, values: Array) -> None: ...

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        ...

    @property
    def is_linear(self) -> bool: ...

    def forward(self, X: ArrayLike) -> Array:
        """Return H^k, shape (S,)."""
        ...

    def jacobian(self, X: ArrayLike) -> Array:
        """Return each row's derivative by each parameter, (P, S): the plaintext multipliers under
        encryption.
        """
        ...

    def vjp(self, X: ArrayLike, residual: ArrayLike) -> Array:
        """Return `jacobian(X) @ residual`, (P,), without forming the Jacobian."""
        ...

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the party's shard: arrays by name, storable in an .npz file without pickle."""
        ...


def as_rows(X: ArrayLike, columns: int) -> Array:
    """Return X as a float64 matrix with that many columns."""
    try:
        rows = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"X must be a matrix of numbers: {error}") from None
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise DataError(f"X must have shape (rows, {columns}), not {rows.shape}")
    return rows


def as_residual(residual: ArrayLike, rows: int) -> Array:
    """Return the residual as a float64 vector with one entry per row."""
    values = np.asarray(residual, dtype=np.float64)
    if values.shape != (rows,):
        raise DataError(f"residual must have shape ({rows},), one value per row, not {values.shape}")
    return values


def as_parameters(values: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return a finite float64 copy of that shape. A diverging run first shows here as NaN."""
    copy = np.array(values, dtype=np.float64)
    if copy.shape != shape:
        raise DataError(f"parameters must have shape {shape}, not {copy.shape}")
    if not np.isfinite(copy).all():
        bad = int(np.count_nonzero(~np.isfinite(copy)))
        raise DataError(
            f"parameters must be finite, but {bad} of {copy.size} are not; a smaller learning rate may help"
        )
    return copy


def take_array(arrays: Mapping[str, NDArray[np.generic]], name: str, dimensions: int) -> Array:
    """Return the finite float64 array of that name in a shard."""
    if name not in arrays:
        raise DataError(f"shard has no array {name!r}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    array = np.asarray(arrays[name])
    if array.dtype.kind not in "fiu" or array.ndim != dimensions:
        raise DataError(
            f"shard array {name!r} must hold numbers in {dimensions} dimensions,"
            f" not {array.dtype} in {array.ndim}"
        )
    return as_parameters(array.astype(np.float64), array.shape)


def take_word(arrays: Mapping[str, NDArray[np.generic]], name: str) -> str:
    """Return the word stored under that name in a shard."""
    if name not in arrays:
        raise DataError(f"shard has no entry {name!r}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    array = np.asarray(arrays[name])
    if array.dtype.kind != "U" or array.size != 1:
        raise DataError(f"shard entry {name!r} must be one word, not {array.dtype} of size {array.size}")
    return str(array.reshape(-1)[0])
