"""Local models: functions of a party's own columns, and their derivatives.

`LinearModel` and `NetworkModel` give the scalar H^k of the generalised linear objective. `HiddenLayer` gives
the representation u of federated transfer learning. `securefed.models.torch` wraps torch modules for the
scheme "plain". A model belongs to one party and stays there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from securefed.errors import DataError
from securefed.models.activations import ACTIVATIONS
from securefed.models.hidden import HiddenLayer
from securefed.models.linear import LinearModel
from securefed.models.local import LocalModel, take_word
from securefed.models.network import NetworkModel

__all__ = ["ACTIVATIONS", "HiddenLayer", "LinearModel", "LocalModel", "NetworkModel", "from_arrays"]


def from_arrays(arrays: Mapping[str, NDArray[np.generic]]) -> LinearModel | NetworkModel | HiddenLayer:
    """Return the numpy model that a shard's arrays (`to_arrays`) contain."""
    kind = take_word(arrays, "model")
    for model in (LinearModel, NetworkModel, HiddenLayer):
        if model.kind == kind:
            return model.from_arrays(arrays)
    raise DataError(
        f"shard holds a {kind!r} model; allowed are 'linear', 'network' and 'hidden-layer'"
        " (torch shards: securefed.models.torch.TorchModel.from_arrays)"
    )
