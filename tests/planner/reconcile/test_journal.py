"""The file of the record: a line is whole or it is not there, whatever happens while it is written."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.reconcile.journal import Journal


def whole(journal: Journal) -> list[int]:
    """The numbers of the lines that can be read."""
    numbers = []
    for line in journal.lines():
        try:
            numbers.append(json.loads(line)["n"])
        except ValueError:
            continue
    return numbers


def entry(number: int, text: str = "x") -> bytes:
    return json.dumps({"n": number, "text": text}).encode()


def test_nothing_is_read_where_nothing_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "journal")
    assert list(journal.lines()) == []
    assert not journal.path.parent.exists()


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "journal")
    journal.append([entry(1)])
    journal.append([entry(2), entry(3)])
    assert whole(journal) == [1, 2, 3]


def test_a_kill_at_any_byte_of_a_write_costs_that_write_at_most(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append([entry(1)])
    before = journal.path.read_bytes()
    journal.append([entry(2), entry(3, "ü\n")])
    after = journal.path.read_bytes()
    second, third = (len(line) for line in after[len(before) :].splitlines())
    for written in range(len(after) - len(before) + 1):
        journal.path.write_bytes(after[: len(before) + written])
        # A line is whole with its last brace, and its newline comes after.
        kept = [1] + [2] * (written >= second) + [3] * (written >= second + 1 + third)
        assert whole(journal) == kept
        journal.append([entry(4)])
        assert whole(journal) == [*kept, 4]
        assert journal.path.read_bytes().startswith(after[: len(before) + written])


def _append_many(path: Path, start: int, count: int) -> None:
    journal = Journal(path)
    for number in range(start, start + count):
        journal.append([entry(number, "y" * 20_000)])


def test_programs_that_append_at_once_mix_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_append_many, args=(path, start, 40)) for start in (0, 1000, 2000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=120)
        assert writer.exitcode == 0
    numbers = whole(Journal(path))
    assert len(path.read_bytes().splitlines()) == 120
    for start in (0, 1000, 2000):
        assert [number for number in numbers if start <= number < start + 40] == list(range(start, start + 40))


def test_a_writer_that_is_killed_leaves_whole_lines_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    spawn = multiprocessing.get_context("spawn")
    for round_ in range(3):
        writer = spawn.Process(target=_append_many, args=(path, 1000 * round_, 100_000))
        writer.start()
        seen = path.stat().st_size if path.exists() else 0
        deadline = time.monotonic() + 60
        while (path.stat().st_size if path.exists() else 0) < seen + 200_000 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(timeout=30)
        Journal(path).append([entry(-1)])
        assert whole(Journal(path))[-1] == -1
    numbers = whole(Journal(path))
    for round_ in range(3):
        of_round = [number for number in numbers if 1000 * round_ <= number < 1000 * round_ + 1000]
        assert of_round == list(range(1000 * round_, 1000 * round_ + len(of_round)))
        assert of_round


# A full disk ------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write stops in the middle."""
    journal = Journal(tmp_path / "journal")
    journal.append([entry(1)])
    before = journal.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 500, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.append([entry(2, "z" * 1000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert journal.path.read_bytes() == before
    journal.append([entry(3)])
    assert whole(journal) == [1, 3]


FULL_DISK = """
import json, sys
from pathlib import Path
from planner.reconcile.journal import Journal
journal = Journal(Path(sys.argv[1]) / "journal")
journal.append([b'{"n": 1}'])
try:
    for number in range(2, 100):
        journal.append([json.dumps({"n": number, "text": "z" * 9000}).encode()])
except OSError as error:
    lines = [json.loads(line)["n"] for line in journal.lines()]
    print(json.dumps({"said": error.strerror, "lines": lines}))
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    script = 'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1"'
    try:
        result = subprocess.run(
            [*mount, script, "sh", str(tmp_path), sys.executable, FULL_DISK],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=Path(__file__).parents[3],
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare here, so no disk can be made")
    if "mount:" in result.stderr or "unshare" in result.stderr:
        pytest.skip(f"this system lets nobody mount a small disk: {result.stderr.strip()}")
    told = json.loads(result.stdout)
    assert told["said"] == "No space left on device"
    assert told["lines"] == list(range(1, len(told["lines"]) + 1))
    assert len(told["lines"]) > 2
