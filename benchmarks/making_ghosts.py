"""What a ghost costs: time and disk, of a 70B in Q4_K_M (40 GB) and of the two real models.

python -m benchmarks.making_ghosts
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks._support import model_files, print_table
from planner import Model
from planner.model.catalogue import CatalogueEntry, CatalogueHyperparameters, Quantisation
from planner.model.ghost import dry_file, temporary_ghost, write_ghost

TIMES = 20
LLAMA_70B = CatalogueEntry(
    name="llama-70b",
    title="Llama 3 70B",
    architecture="llama",
    source="the shapes of Llama 3 70B",
    hyperparameters=CatalogueHyperparameters(
        block_count=80,
        context_length=131_072,
        embedding_length=8192,
        feed_forward_length=28_672,
        attention_head_count=64,
        attention_head_count_kv=8,
        attention_layer_norm_rms_epsilon=1e-5,
    ),
    vocabulary_size=128_256,
    quantisation=Quantisation(
        file_type="Q4_K_M", embedding="Q4_K", output="Q6_K", attention="Q4_K", feed_forward="Q4_K", norm="F32"
    ),
)

Making = Callable[[], AbstractContextManager[Path]]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        written = Model.open(write_ghost(LLAMA_70B, Path(folder)))
        rows = [_row("70B of the catalogue", "made up", lambda: _served(LLAMA_70B))]
        for name, model in {
            "70B, a header": written,
            **{name: Model.open(path) for name, path in model_files().items()},
        }.items():
            rows.append(_row(name, "its own", lambda model=model: _served(model)))  # type: ignore[misc]
            rows.append(_row(name, "none", lambda model=model: dry_file(model)))  # type: ignore[misc]
    print_table(("ghost of", "words", "made in", "file", "on disk"), rows)


@contextmanager
def _served(source: Model | CatalogueEntry) -> Iterator[Path]:
    with temporary_ghost(source) as ghost:
        yield ghost.path


def _row(name: str, words: str, make: Making) -> tuple[str, ...]:
    """The fastest of several: the least disturbed by whatever else the machine did."""
    seconds = []
    for _ in range(TIMES):
        start = time.perf_counter()
        with make() as path:
            seconds.append(time.perf_counter() - start)
            status = path.stat()
    return (
        name,
        words,
        f"{min(seconds) * 1000:,.1f} ms",
        f"{status.st_size / 1e9:.2f} GB",
        f"{status.st_blocks * 512 / 1024:,.0f} KiB",
    )


if __name__ == "__main__":
    main()
