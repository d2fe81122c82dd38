"""Protocols: who updates when (schedule) x what is optimised (objective) x how it is protected (scheme)."""

from __future__ import annotations

__all__ = ()
