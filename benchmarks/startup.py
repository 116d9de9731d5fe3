"""`planner plan FILE` as a whole process, from the shell to the answer, and looking at the machine, cold.

python -m benchmarks.startup
"""

from __future__ import annotations

import sys

from benchmarks._support import model_files, print_table, run_process
from planner.units import MIB

MAIN = "from planner.cli import main; main()"


def main() -> None:
    """Print the table, with a bare Python for comparison."""
    bare = run_process([sys.executable, "-c", "pass"], times=11)
    rows = [("python -c pass", f"{bare.median_s * 1000:.0f} ms", "1.0 x", f"{bare.peak_bytes / MIB:.0f} MiB")]
    for name, path in model_files().items():
        runs = run_process([sys.executable, "-c", MAIN, "plan", str(path)], times=11)
        rows.append(
            (
                f"planner plan {name}",
                f"{runs.median_s * 1000:.0f} ms",
                f"{runs.median_s / bare.median_s:.1f} x",
                f"{runs.peak_bytes / MIB:.0f} MiB",
            )
        )
    detect = "from planner.hardware import Hardware; Hardware.detect()"
    hardware = run_process([sys.executable, "-c", f"import planner; {detect}"], times=11)
    imports = run_process([sys.executable, "-c", "import planner"], times=11)
    seconds = hardware.median_s - imports.median_s
    rows.append(("Hardware.detect() alone", f"{seconds * 1000:.0f} ms", f"{seconds / bare.median_s:.1f} x", ""))
    print_table(("whole process", "median of 11", "of bare Python", "peak"), rows)


if __name__ == "__main__":
    main()
