"""Sizes of ggml's tensor types: how many elements a block holds and how many bytes it takes.

Source: `ggml/include/ggml.h` (numbers) and the block structs of `ggml/src/ggml-common.h` (sizes). The
gguf package has the same table but costs numpy; a test holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from planner.errors import ModelError


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One tensor type of ggml."""

    name: str
    """llama.cpp's spelling, as in its log: `q4_K`, `f16`."""
    block_elements: int
    block_bytes: int

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row: `ggml_row_size`. A row must be whole blocks."""
        if elements % self.block_elements:
            raise ModelError(
                f"A row of {elements} elements is not a whole number of {self.name} blocks "
                f"({self.block_elements} elements each)."
            )
        return elements // self.block_elements * self.block_bytes

    @property
    def is_quantised(self) -> bool:
        """Whether several elements share a block (`ggml_is_quantized`)."""
        return self.block_elements > 1


GGML_TYPES: dict[int, GgmlType] = {
    number: GgmlType(name, elements, size)
    for number, name, elements, size in (
        (0, "f32", 1, 4),
        (1, "f16", 1, 2),
        (2, "q4_0", 32, 18),
        (3, "q4_1", 32, 20),
        (6, "q5_0", 32, 22),
        (7, "q5_1", 32, 24),
        (8, "q8_0", 32, 34),
        (9, "q8_1", 32, 40),
        (10, "q2_K", 256, 84),
        (11, "q3_K", 256, 110),
        (12, "q4_K", 256, 144),
        (13, "q5_K", 256, 176),
        (14, "q6_K", 256, 210),
        (15, "q8_K", 256, 292),
        (16, "iq2_xxs", 256, 66),
        (17, "iq2_xs", 256, 74),
        (18, "iq3_xxs", 256, 98),
        (19, "iq1_s", 256, 50),
        (20, "iq4_nl", 32, 18),
        (21, "iq3_s", 256, 110),
        (22, "iq2_s", 256, 82),
        (23, "iq4_xs", 256, 136),
        (24, "i8", 1, 1),
        (25, "i16", 1, 2),
        (26, "i32", 1, 4),
        (27, "i64", 1, 8),
        (28, "f64", 1, 8),
        (29, "iq1_m", 256, 56),
        (30, "bf16", 1, 2),
        (34, "tq1_0", 256, 54),
        (35, "tq2_0", 256, 66),
        (39, "mxfp4", 32, 17),
        (40, "nvfp4", 64, 36),
        (41, "q1_0", 128, 18),
    )
}
"""By ggml's number. Numbers that ggml has retired (4, 5, 31 to 33, 36 to 38) are left out."""


@cache
def type_named(name: str) -> GgmlType:
    """The type with llama.cpp's name, in any case."""
    for ggml_type in GGML_TYPES.values():
        if ggml_type.name.lower() == name.lower():
            return ggml_type
    raise ModelError(f"{name!r} is not a tensor type of ggml.")
