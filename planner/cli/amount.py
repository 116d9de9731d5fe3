"""A time or an amount on the command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Amount(click.FloatRange):
    """A number with an end: `nan` compares with nothing, so that no range and no deadline would hold it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, of which the range is checked by click."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number that can be counted to.", param, ctx)
        return number
