"""How each back end lays tensors out in its buffers.

Source: `get_alignment` and `get_alloc_size` of `ggml/src/ggml-*/`. CPU and RPC (a remote CPU) were checked
against llama.cpp; the others were read in its source and not run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.hardware import DeviceKind
from planner.model.ggml_types import GgmlType
from planner.units import pad

_MATRIX_ROW_PADDING = 512
"""MATRIX_ROW_PADDING of CUDA and SYCL: quantised rows are readable up to a multiple of so many elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The layout rules of one back end."""

    alignment: int
    """Bytes; of every tensor in a buffer."""
    pads_rows: bool = False
    """Whether quantised tensors are enlarged to whole multiples of 512 elements in their last row."""
    pinned_host: bool = False
    """Whether it offers pinned host memory, which host weights then prefer to being rearranged."""
    maps_files: bool = False
    """Whether it can use mapped file pages as they are."""
    verified: bool = False
    """Whether the rules were checked against a running llama.cpp."""

    def tensor_bytes(self, row_elements: int, nbytes: int, ggml_type: GgmlType) -> int:
        """Bytes that a tensor takes in a buffer of this back end."""
        beyond = row_elements % _MATRIX_ROW_PADDING
        if self.pads_rows and ggml_type.is_quantised and beyond:
            missing = _MATRIX_ROW_PADDING - beyond
            # ggml_row_size of what is missing, in whole blocks.
            nbytes += missing * ggml_type.block_bytes // ggml_type.block_elements
        return pad(nbytes, self.alignment)


BACKENDS: Mapping[DeviceKind, Backend] = {
    "cpu": Backend(alignment=32, maps_files=True, verified=True),
    "rpc": Backend(alignment=32, verified=True),
    "cuda": Backend(alignment=128, pads_rows=True, pinned_host=True),
    "rocm": Backend(alignment=128, pads_rows=True, pinned_host=True),
    "metal": Backend(alignment=32, maps_files=True),
    "vulkan": Backend(alignment=256, pinned_host=True),
    "sycl": Backend(alignment=128, pads_rows=True, pinned_host=True),
    "other": Backend(alignment=128),
}
