"""Which engine is taken: a llama-server, or llama-cpp-python where it is named or stands in."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_engines import write_engine

from planner.engine import dry_run_library, find
from planner.engine.dry_run import library_is_here
from planner.engine.find import Engine
from planner.engine.library import InstalledLibrary, find_any_engine
from planner.errors import EngineError
from planner.memory.program import LLAMA_SERVER, library_program

pytestmark = pytest.mark.skipif(not library_is_here(), reason="llama-cpp-python is not installed")


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on the PATH nor embedded."""
    monkeypatch.setattr(find, "EMBEDDED_PACKAGE", "no_such_package_anywhere")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PLANNER_ENGINE", raising=False)


def test_a_server_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_engine(tmp_path / "llama-server")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = find_any_engine()
    assert isinstance(found, Engine)
    assert found.program is LLAMA_SERVER
    assert not found.instead_of
    assert isinstance(find_any_engine(Path("llama-cpp-python")), InstalledLibrary)


def test_where_none_runs_the_library_says_why_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_any_engine().instead_of.startswith("No llama-server is found: ")
    broken = write_engine(tmp_path / "llama-server", version="exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = find_any_engine()
    assert isinstance(found, InstalledLibrary)
    assert found.instead_of == f"{broken} --version ended with exit code 3, without a word."
    assert not find_any_engine(Path("llama-cpp-python")).instead_of


@pytest.mark.parametrize("named", ["--engine", "PLANNER_ENGINE"])
def test_a_server_that_was_named_is_not_replaced(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if named == "PLANNER_ENGINE":
        monkeypatch.setenv(named, "/nowhere/llama-server")
    with pytest.raises(EngineError, match="There is no llama-server at /nowhere/llama-server"):
        find_any_engine(Path("/nowhere/llama-server") if named == "--engine" else None)


def test_where_it_may_not_stand_in_it_does_not() -> None:
    with pytest.raises(EngineError, match="No llama-server is found"):
        find_any_engine(stands_in=False)


def test_a_library_that_does_not_run_here_is_told_beside_the_server_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text("import os; os.kill(os.getpid(), 4)")
    monkeypatch.setattr(dry_run_library, "_CHILD", child)
    with pytest.raises(EngineError, match=r"No llama-server is found.* llama-cpp-python died of SIGILL"):
        find_any_engine()
    with pytest.raises(EngineError, match=r"^llama-cpp-python died of SIGILL"):
        find_any_engine(Path("llama-cpp-python"))


def test_its_version_says_which_graphs_it_makes() -> None:
    assert not library_program("0.3.36").mixes_embeddings
    assert library_program("0.4.1").mixes_embeddings
    assert library_program("0.3.36").overhead_base_bytes > LLAMA_SERVER.overhead_base_bytes
