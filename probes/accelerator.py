"""Whether this machine shows any sign of an accelerator. Which ones an engine can use, only that engine says."""

from __future__ import annotations

import sys
from pathlib import Path

_SIGNS = ("dev/nvidiactl", "dev/nvhost-gpu", "dev/kfd", "dev/dri", "dev/dxg")
"""NVIDIA, Jetson, AMD's compute driver, any graphics driver, WSL."""


def has_accelerator(root: Path = Path("/"), platform: str = sys.platform) -> bool:
    """True where a driver is present; always on macOS and Windows, where looking costs more than asking an engine."""
    return platform in ("darwin", "win32") or any((root / sign).exists() for sign in _SIGNS)
