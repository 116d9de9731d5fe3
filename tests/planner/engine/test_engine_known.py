"""What is kept of an engine between runs: as long as it is the same file, and never what it has free."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engines import write_engine

from planner.engine import find
from planner.engine.find import Engine, identify
from planner.engine.known import default_path, is_script, look_up
from planner.errors import EngineError


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Stands for a program: nothing here starts it."""
    path = tmp_path / "bin" / "llama-server"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF and so on")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags that engines are asked with, in order."""
    flags: list[str] = []
    ask = find._ask

    def listening(path: Path, flag: str, *rest: object) -> str:
        flags.append(flag)
        return ask(path, flag, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(find, "_ask", listening)
    return flags


EVERYTHING = ["--version", "--help", "--list-devices"]


# What is asked ---------------------------------------------------------------------------------------------


def test_the_second_time_only_devices_are_asked_about(engine: Engine, asked: list[str]) -> None:
    first = identify(engine.path, "option")
    assert asked == EVERYTHING
    assert identify(engine.path, "option") == first
    assert asked[3:] == ["--list-devices"]


def test_a_script_is_asked_anew_since_what_it_starts_may_change(
    engine: Engine, asked: list[str], tmp_path: Path
) -> None:
    script = write_engine(tmp_path / "llama-server", version="cat version")
    assert is_script(script)
    assert not is_script(engine.path)
    for _ in range(2):
        identify(script, "option")
    assert asked == 2 * EVERYTHING


def test_a_replaced_program_is_asked_anew(engine: Engine, asked: list[str]) -> None:
    identify(engine.path, "option")
    known = look_up(engine.path)
    entry = json.loads(default_path().read_text())
    default_path().write_text(json.dumps({**entry, "size": entry["size"] + 1}))
    identify(engine.path, "option")
    assert asked == 2 * EVERYTHING
    known.add(program=["of before", ["--list-devices"]])
    assert identify(engine.path, "option").version == "of before"  # only the stamp decides


DAMAGES = [
    b'"facts":{"program":7}',
    b'"facts":{"program":["x"]}',
    b'"facts":{"program":["x",[]]}',
    b'"facts":[]',
    b'"fa',
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_as_good_as_none(engine: Engine, asked: list[str], damage: bytes) -> None:
    first = identify(engine.path, "option")
    text = default_path().read_bytes()
    default_path().write_bytes(text[: text.index(b'"facts"')] + damage + b"}\n\x00\xff\n" + b"[" * 100_000)
    assert identify(engine.path, "option") == first
    assert asked == 2 * EVERYTHING
    assert identify(engine.path, "option") == first
    assert asked[6:] == ["--list-devices"]


def test_a_program_that_no_longer_starts_is_not_believed(engine: Engine, tmp_path: Path) -> None:
    """What is kept says what it is, and its devices are asked of itself."""
    copy = tmp_path / "llama-server"
    shutil.copy2(engine.path, copy)  # without its libraries
    look_up(copy).add(program=[engine.version, sorted(engine.flags)])
    with pytest.raises(EngineError, match="a library that it needs is missing"):
        identify(copy, "option")


# What it is kept under -------------------------------------------------------------------------------------


def test_facts_are_found_again_and_added_up(program: Path) -> None:
    assert look_up(program).facts == {}
    look_up(program).add(works=True)
    look_up(program).add(program=["1", ["-c"]])
    assert look_up(program).facts == {"works": True, "program": ["1", ["-c"]]}


@pytest.mark.parametrize(
    "library", ["bin/libggml-cuda.so", "lib/libllama.so.0", "bin/ggml-vulkan.dll", "lib/libmtmd.dylib"]
)
def test_a_library_beside_it_makes_another_program_of_it(program: Path, library: str) -> None:
    path = program.parent.parent / library
    path.parent.mkdir(exist_ok=True)
    look_up(program).add(works=True)
    path.write_bytes(b"1")
    assert look_up(program).facts == {}
    look_up(program).add(works=True)
    (path.parent / "libcurl.so.4").write_bytes(b"another matter")
    assert look_up(program).facts == {"works": True}
    os.utime(path, ns=(1, 1))
    assert look_up(program).facts == {}


def test_other_bytes_of_the_same_size_and_time_are_another_program(program: Path) -> None:
    """As where every file has the time 1, or that of a release."""
    os.utime(program, (1, 1))
    look_up(program).add(works=True)
    assert look_up(program).facts == {"works": True}
    size = program.stat().st_size
    program.write_bytes(b"x" * size)
    os.utime(program, (1, 1))
    assert look_up(program).facts == {}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_what_is_no_file_is_not_waited_for(program: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "engines.jsonl")
    assert look_up(program, tmp_path / "engines.jsonl").facts == {}


def test_a_link_is_looked_through_to_the_libraries(program: Path, tmp_path: Path) -> None:
    link = tmp_path / "llama-server"
    link.symlink_to(program)
    look_up(link).add(works=True)
    (program.parent / "libllama.so").write_bytes(b"1")
    assert look_up(link).facts == {}


def test_a_file_that_changes_while_it_is_asked_is_not_known_by_the_answer(program: Path) -> None:
    known = look_up(program)
    program.write_bytes(b"a newer one")
    known.add(program=["old", []])
    assert look_up(program).facts == {}


def test_a_file_that_grew_large_is_begun_anew(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.engine.known._MOST_BYTES", 1000)
    for number in range(50):
        look_up(program).add(number=number)
    assert default_path().stat().st_size < 2000
    assert look_up(program).facts["number"] == 49


def test_a_place_that_cannot_be_written_costs_nothing(program: Path, tmp_path: Path) -> None:
    kept = program / "engines.jsonl"
    look_up(program, kept).add(works=True)
    assert look_up(program, kept).facts == {}


APPEND = """
import sys
from pathlib import Path
from planner.engine.known import look_up
program, kept, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
for number in range(40):
    look_up(program, kept).add(**{f"{name}{number}": name * 9000})
"""


def test_programs_that_add_at_once_lose_nothing(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import planner.engine.known as k; k._MOST_BYTES = 1 << 30\n{APPEND}"
    kept = tmp_path / "engines.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(program), str(kept), name]) for name in ("a", "b", "c")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    facts = look_up(program, kept).facts
    assert facts == {f"{name}{number}": name * 9000 for name in "abc" for number in range(40)}
