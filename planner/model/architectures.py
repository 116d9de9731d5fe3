"""What llama.cpp does with each architecture, as one table.

An architecture that is not here is planned as `unknown`: its weights are still exact, the rest is not said.

To add one: write its entry in `ARCHITECTURES` with the rule that llama.cpp applies (`src/llama-model.cpp`,
`load_hparams`), and give `tests/planner/memory/test_kv.py` a header of it with what llama.cpp reserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.model.hyperparameters import Keys


@dataclass(frozen=True, slots=True)
class SwaPattern:
    """Which layers see only a sliding window: an array in the file, else every layer of a period but one."""

    period: int
    """Layers until the pattern repeats, when the file holds no pattern."""
    dense_first: bool = False
    """Whether the dense layer opens the period instead of closing it."""

    def __call__(self, keys: Keys, n_layer: int) -> tuple[int, tuple[bool, ...]]:
        """The window in tokens and the layers that have it; a file without a window has none."""
        window = keys.integer("attention.sliding_window", 0)
        if not window:
            return no_window(keys, n_layer)
        flags = keys.flags("attention.sliding_window_pattern", n_layer)
        if flags is not None:
            return window, flags
        period = keys.integer("attention.sliding_window_pattern", self.period)
        return window, tuple(self._is_windowed(layer, period) for layer in range(n_layer))

    def _is_windowed(self, layer: int, period: int) -> bool:
        # llama_hparams::set_swa_pattern: period 0 windows every layer, period 1 none.
        if period == 0:
            return True
        return layer % period != 0 if self.dense_first else layer % period < period - 1


def no_window(_keys: Keys, n_layer: int) -> tuple[int, tuple[bool, ...]]:
    """The rule of architectures whose every layer sees the whole context."""
    return 0, (False,) * n_layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What decides the memory of one architecture beside its hyperparameters."""

    swa: SwaPattern | None = None
    """The rule for sliding windows; None where every layer sees the whole context."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(),
    "gemma3": Architecture(swa=SwaPattern(period=6)),
}
