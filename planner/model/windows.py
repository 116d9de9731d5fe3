"""Which layers see only a sliding window: the rules of the architectures that have one.

Source: `load_arch_hparams` of each file in `src/models/`, `llama_hparams::set_swa_pattern`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import ModelError
from planner.model.hyperparameters import Keys, layer_counts

Window = tuple[int, tuple[bool, ...]]
"""Tokens a window layer can see (0 for no window), and which layers have it, MTP blocks included."""

WindowRule = Callable[[Keys], Window]
"""From the metadata to the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwaPattern:
    """Which layers have the window: those that an array in the file marks, else all of a period but one."""

    period: int | None = None
    """Layers until the pattern repeats, when the file holds none; None where the file must hold an array.
    0 windows every layer."""
    dense_first: bool = False
    """Whether the layer without a window opens the period instead of closing it."""
    default_window: int = 0
    """Tokens, where the file names none."""
    forced_window: int = 0
    """Tokens, whatever the file names (unless it switches the window off)."""
    only_with_layers: int = 0
    """The one number of layers for which there is a window at all; 0 for any."""
    required: bool = False
    """Whether llama.cpp refuses a file that names no window."""
    ahead: bool = False
    """Whether blocks that predict further tokens have the window, too; a period leaves them out."""

    def __call__(self, keys: Keys) -> Window:
        """The window in tokens and the layers that have it; a file without a window has none."""
        n_layer_all, n_layer = layer_counts(keys)
        default = None if self.required else self.default_window or self.forced_window
        window = keys.integer("attention.sliding_window", default)
        if not window or self.only_with_layers not in (0, n_layer):
            return no_window(keys)
        window = self.forced_window or window
        flags = keys.loose_flags("attention.sliding_window_pattern", n_layer_all)
        if flags is not None:
            return window, flags
        if self.period is None:
            raise ModelError(
                f"The metadata have no array {keys.architecture}.attention.sliding_window_pattern, "
                "which llama.cpp requires.",
                "The file is incomplete: convert or download it again.",
            )
        period = keys.integer("attention.sliding_window_pattern", self.period)
        trunk = tuple(self._has_window(layer, period) for layer in range(n_layer))
        return window, trunk + (self.ahead,) * (n_layer_all - n_layer)

    def _has_window(self, layer: int, period: int) -> bool:
        if period == 0:
            return True
        return layer % period != 0 if self.dense_first else layer % period < period - 1


def draft_window(keys: Keys) -> Window:
    """DFlash: the layers that an array marks, or all where it is made of DeepSeek-V4 blocks."""
    made_of_deepseek4 = keys.integer("hyper_connection.count", 0) > 0
    return SwaPattern(period=0, required=True)(keys) if made_of_deepseek4 else SwaPattern()(keys)


def no_window(keys: Keys) -> Window:
    """The rule of architectures whose every layer sees the whole context."""
    return 0, (False,) * layer_counts(keys)[0]
