"""llama.cpp as we drive it: finding it, its arguments, its server, its log."""

from __future__ import annotations
