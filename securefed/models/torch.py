"""Torch modules as local models, in the scheme "plain" only, and the paper's MNIST network.

Encryption needs per-row derivatives by every parameter. That is infeasible for a torch module with millions
of parameters. torch is an extra, imported at first use.

The module must give one output per row, of shape (S,) or (S, 1). Its parameters keep the module's own dtype:
float32 modules round written parameters and gradients to float32. Parameters that do not require a gradient
stay unchanged. The module stays in its mode (train or eval).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefed.errors import DataError, SettingError, require
from securefed.models.local import Array, as_parameters, take_kind

SLICE = 64
"""Rows per forward pass in eval mode: intermediate results stay in the processor's cache."""


class TorchModel:
    """A torch module with a scalar output per row."""

    kind = "torch"
    is_linear = False
    """A module may happen to be linear, but nothing here can know it."""

    def __init__(self, module: Any) -> None:
        self._torch: Any = require("torch", extra="torch")
        if not isinstance(module, self._torch.nn.Module):
            raise SettingError(f"module must be a torch.nn.Module, not {type(module).__name__}")
        self.module = module
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self._trained:
            raise SettingError(
                "module must have at least one parameter that requires a gradient, but has none"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # The default would copy the torch package as well, which cannot be done.
        return type(self)(deepcopy(self.module, memo))

    def __repr__(self) -> str:
        return f"TorchModel({type(self.module).__name__}, size={self.size})"

    @property
    def size(self) -> int:
        return sum(int(parameter.numel()) for parameter in self._trained)

    @property
    def parameters(self) -> Array:
        return self._flat(parameter.detach() for parameter in self._trained)

    @parameters.setter
    def parameters(self, values: Array) -> None:
        flat = self._torch.from_numpy(as_parameters(values, (self.size,)))
        parts = flat.split([int(parameter.numel()) for parameter in self._trained])
        with self._torch.no_grad():
            for parameter, part in zip(self._trained, parts, strict=True):
                parameter.copy_(part.reshape(parameter.shape))

    def forward(self, X: ArrayLike) -> Array:
        rows = np.asarray(X, dtype=np.float64)
        # In the mode train a row's output may depend on the others (batch normalisation).
        size = max(1, len(rows)) if self.module.training else SLICE
        starts = range(0, max(1, len(rows)), size)
        with self._torch.no_grad():
            return self._flat(self._output(rows[start : start + size]) for start in starts)

    def jacobian(self, X: ArrayLike) -> NoReturn:
        raise SettingError(
            'torch modules run only in scheme "plain"; encrypted schemes need linear models or networks'
        )

    def vjp(self, X: ArrayLike, residual: ArrayLike) -> Array:
        output = self._output(X)
        values = np.asarray(residual, dtype=np.float64)
        gradients = self._torch.autograd.grad(
            output,
            self._trained,
            grad_outputs=self._torch.from_numpy(values).to(dtype=output.dtype, device=output.device),
            allow_unused=True,
            materialize_grads=True,
        )
        return self._flat(gradients)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the module's state by name, parameters and buffers. Its code is not stored."""
        arrays: dict[str, NDArray[np.generic]] = {"model": np.array(self.kind)}
        for name, tensor in self.module.state_dict().items():
            arrays[f"state.{name}"] = tensor.detach().cpu().numpy().copy()
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]], module: Any) -> Self:
        """Load the stored state into `module`, which must have the same names and shapes."""
        take_kind(arrays, cls.kind)
        model = cls(module)
        state = {}
        for name, array in arrays.items():
            if name.startswith("state."):
                if not np.isfinite(np.asarray(array, dtype=np.float64)).all():
                    raise DataError(f"shard's {name} holds numbers that are not finite")
                state[name.removeprefix("state.")] = model._torch.tensor(array)
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise DataError(f"shard and module differ: {' '.join(str(error).split())}") from None
        return model

    def _flat(self, tensors: Any) -> Array:
        flat = self._torch.cat([tensor.reshape(-1).to(self._torch.float64).cpu() for tensor in tensors])
        result: Array = flat.numpy().copy()
        return result

    def _output(self, X: ArrayLike) -> Any:
        first = self._trained[0]
        rows = np.asarray(X, dtype=np.float64)
        inputs = self._torch.from_numpy(np.ascontiguousarray(rows)).to(dtype=first.dtype, device=first.device)
        output = self.module(inputs)
        shape = tuple(output.shape)
        if shape not in ((rows.shape[0],), (rows.shape[0], 1)):
            raise DataError(f"module must give one output per row, shape ({rows.shape[0]},), not {shape}")
        return output.reshape(rows.shape[0])
