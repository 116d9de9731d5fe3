"""What a model is: its header, its hyperparameters, its tensors."""

from __future__ import annotations

from planner.model.model import Model

__all__ = ["Model"]
