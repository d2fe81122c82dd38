"""What the label party knows about its labels: targets, base model, calibration, metrics."""

from __future__ import annotations

__all__: list[str] = []
