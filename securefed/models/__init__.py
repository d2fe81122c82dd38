"""Local models of numpy. Torch modules are in securefed.models.torch."""

from __future__ import annotations

from securefed.models.local import ACTIVATIONS, HiddenLayer, LinearModel, LocalModel, NetworkModel

__all__ = ["ACTIVATIONS", "HiddenLayer", "LinearModel", "LocalModel", "NetworkModel"]
