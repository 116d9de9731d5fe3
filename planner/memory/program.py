"""What has llama.cpp in it: a llama-server, or Python with the library."""

from __future__ import annotations

from dataclasses import dataclass

from planner.units import MIB

LIBRARY_NAME = "llama-cpp-python"
"""What the library is called: by `--engine` and PLANNER_ENGINE, and at the beginning of its builds' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a process holds beside llama.cpp's buffers, and how its build makes graphs."""

    overhead_base_bytes: int
    overhead_bytes_per_token: int
    """Process, libraries and vocabulary, fitted to what was resident beside all buffers. The first measurement
    replaces it."""
    has_samplers: bool = True
    """Whether every slot keeps candidates for its next token."""
    mixes_embeddings: bool = True
    """Whether a batch may hold tokens and embeddings (b11400): one more hidden state."""


LLAMA_SERVER = Program(overhead_base_bytes=29 * MIB, overhead_bytes_per_token=149)
"""66 MiB were resident with a vocabulary of 262,144 tokens, 36 MiB with 49,152."""

_LAST_UNMIXED = (0, 3, 36)


def library_program(version: str) -> Program:
    """Python with this version of llama-cpp-python, which brings numpy: no server, no samplers."""
    parts = tuple(int(part) for part in version.split(".") if part.isdecimal())
    return Program(
        # 65 MiB were resident with a vocabulary of 49,152 tokens, 92 MiB with 262,144.
        overhead_base_bytes=59 * MIB,
        overhead_bytes_per_token=135,
        has_samplers=False,
        mixes_embeddings=parts > _LAST_UNMIXED,
    )
