"""Opening a model: our header reader against `gguf.GGUFReader`, time and peak memory.

python -m benchmarks.headers
"""

from __future__ import annotations

from benchmarks._support import model_files, print_table, run_python
from planner.units import MIB

IMPORT_OURS = "import sys; from pathlib import Path; from planner.model.gguf import read_header"
IMPORT_GGUF = "import sys; from gguf import GGUFReader"
OURS = f"{IMPORT_OURS}; read_header(Path(sys.argv[1]))"
GGUF = f"{IMPORT_GGUF}; GGUFReader(sys.argv[1])"


def main() -> None:
    """Print the table. The start of Python and the imports are taken off each time."""
    rows = []
    empty_ours = run_python(IMPORT_OURS, times=5).median_s
    empty_gguf = run_python(IMPORT_GGUF, times=3).median_s
    for name, path in model_files().items():
        ours = run_python(OURS, str(path), times=7)
        theirs = run_python(GGUF, str(path), times=2)
        ours_s, theirs_s = ours.median_s - empty_ours, theirs.median_s - empty_gguf
        rows.append(
            (
                name,
                f"{ours_s * 1000:.0f} ms",
                f"{theirs_s:.1f} s",
                f"{theirs_s / ours_s:.0f} x",
                f"{ours.peak_bytes / MIB:.0f} MiB",
                f"{theirs.peak_bytes / MIB:.0f} MiB",
            )
        )
    print_table(("header of", "ours", "GGUFReader", "faster", "our peak", "its peak"), rows)


if __name__ == "__main__":
    main()
