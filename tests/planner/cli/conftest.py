"""The command line as a person runs it: a process of its own, with its outputs and its exit code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from planner_process import Planner, planner_command


@pytest.fixture(autouse=True)
def quiet_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder to stand in, and no engine but the embedded one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLANNER_ENGINE", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def planner() -> Planner:
    """Runs planner to its end."""

    def run(
        *arguments: object,
        embedded: bool = True,
        library: bool = True,
        env: dict[str, str] | None = None,
        timeout: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            planner_command(*arguments, embedded=embedded, library=library),
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def fails(planner: Planner) -> Callable[..., str]:
    """Runs planner, expects that exit code, one sentence on standard error and nothing else; the sentence."""

    def run(exit_code: int, *arguments: object, **options: object) -> str:
        result = planner(*arguments, **options)
        assert result.returncode == exit_code, result.stderr
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        lines = [line for line in result.stderr.splitlines() if line]
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("planner: ")
        return lines[0].removeprefix("planner: ")

    return run
