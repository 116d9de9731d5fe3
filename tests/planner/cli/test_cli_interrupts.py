"""Ctrl-C, `kill` and a closed terminal, at every stage: one sentence, and nothing is left behind."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from fake_engines import write_engine
from planner_process import planner_command

STOPPED = "planner: Stopped; nothing is left running."


class Terminal:
    """planner with a terminal as its standard error, and what it wrote there."""

    def __init__(self, *arguments: object) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            planner_command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave, text=True
        )
        os.close(slave)
        self.text = ""

    def read(self, seconds: float) -> bool:
        """Read what comes within this time; False once the terminal is closed."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def wait_for(self, pattern: str) -> None:
        """Read until the terminal has shown the pattern."""
        deadline = time.monotonic() + 120
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text
            assert self.read(0.1), self.text

    def end(self) -> tuple[int, str]:
        """Wait for planner to end; its exit code and standard output."""
        output, _ = self.process.communicate(timeout=60)
        while self.read(0.1) and select.select([self._master], [], [], 0)[0]:
            pass
        return self.process.returncode, output

    def close(self) -> None:
        """End planner, whatever happened."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@contextmanager
def terminal(*arguments: object) -> Iterator[Terminal]:
    opened = Terminal(*arguments)
    try:
        yield opened
    finally:
        opened.close()


def server_below(pid: int) -> tuple[psutil.Process, int]:
    """The server of that planner and its port."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children(recursive=True):
            command = child.cmdline()
            if "--port" in command:
                return child, int(command[command.index("--port") + 1])
        time.sleep(0.01)
    raise AssertionError("planner started no server")


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be reaped by whoever adopted it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ends(pid: int) -> bool:
    """The same a moment later: the kernel ends what a killed parent leaves behind after it."""
    deadline = time.monotonic() + 60
    while not has_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return has_ended(pid)


def is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("starting llama.cpp", signal.SIGINT),
        ("loading the model", signal.SIGINT),
        ("everyone at once 0/2", signal.SIGTERM),
        ("one person alone", signal.SIGHUP),
        ("q8_0 2/3: starting", signal.SIGINT),
    ],
)
def test_a_measurement_can_be_stopped_at_every_stage(smollm_path: Path, stage: str, number: signal.Signals) -> None:
    with terminal("--measure", smollm_path, "--context", 256, "--users", 2) as planner:
        planner.wait_for(re.escape(stage))
        server = None if "starting" in stage else server_below(planner.process.pid)
        planner.process.send_signal(number)
        exit_code, output = planner.end()
        assert exit_code == 1
        assert planner.text.rstrip().endswith(STOPPED)
        assert "Traceback" not in planner.text + output
        if server is not None:
            process, port = server
            assert has_ended(process.pid)
            assert is_closed(port)


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
@pytest.mark.parametrize("stage", ["loading the model", "everyone at once 0/2", "everyone is answered", "one person"])
def test_nothing_is_left_when_planner_itself_is_killed(smollm_path: Path, own_home: Path, stage: str) -> None:
    with terminal("--measure", smollm_path, "--context", 256, "--users", 2) as planner:
        planner.wait_for(re.escape(stage))
        server, port = server_below(planner.process.pid)
        started = [child.pid for child in psutil.Process(planner.process.pid).children(recursive=True)]
        assert server.pid in started and len(started) >= 2  # and who keeps watch over it
        planner.process.kill()
        planner.end()
        deadline = time.monotonic() + 60
        # A process whose first thread has ended counts as ended, and the others may hold its port a moment longer.
        while not (all(map(has_ended, started)) and is_closed(port)):
            assert time.monotonic() < deadline, "something survived planner"
            time.sleep(0.02)
        kept = {path.name for path in own_home.rglob("*") if path.is_file()}
        assert kept <= {"dry_runs.jsonl", "engines.jsonl", "measurements.jsonl", "smoke-test-model"}


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("starting llama.cpp", signal.SIGHUP),
        ("loading the model", signal.SIGINT),
        ("loading the model", signal.SIGTERM),
        ("everyone at once 0/2", signal.SIGHUP),
        ("one person alone", signal.SIGTERM),
    ],
)
@pytest.mark.parametrize("model", ["", "smollm"])
def test_a_stopped_measurement_of_a_ghost_takes_the_ghost_away(
    own_home: Path, smollm_path: Path, model: str, stage: str, number: signal.Signals
) -> None:
    named = (smollm_path,) if model else ()
    with terminal("--measure", "--ghost", *named, "--context", 256, "--users", 2) as planner:
        planner.wait_for(re.escape(stage))
        assert list(own_home.rglob("*.gguf"))
        server = None if "starting" in stage else server_below(planner.process.pid)
        planner.process.send_signal(number)
        exit_code, _ = planner.end()
        assert exit_code == 1
        assert planner.text.rstrip().endswith(STOPPED)
        assert list(own_home.rglob("*.gguf")) == []
        assert list((own_home / ".cache" / "planner" / "ghosts").iterdir()) == []
        assert server is None or has_ended(server[0].pid)


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
@pytest.mark.parametrize("stage", ["loading the model", "everyone at once 0/2"])
def test_a_ghost_goes_with_a_planner_that_is_killed(own_home: Path, smollm_path: Path, stage: str) -> None:
    folder = own_home / ".cache" / "planner" / "ghosts"
    with terminal("--measure", "--ghost", smollm_path, "--context", 256, "--users", 2) as planner:
        planner.wait_for(re.escape(stage))
        assert list(folder.rglob("*.gguf"))
        started = [child.pid for child in psutil.Process(planner.process.pid).children(recursive=True)]
        planner.process.kill()
        planner.end()
        assert all(map(ends, started))  # the one that deletes it among them
        assert list(folder.iterdir()) == []


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_ghost_goes_whenever_it_is_stopped(own_home: Path, smollm_path: Path, number: signal.Signals) -> None:
    """Stopped from the moment that its folder is there, a little later each time."""
    folder = own_home / ".cache" / "planner" / "ghosts"
    for attempt in range(6):
        with terminal("--measure", "--ghost", smollm_path, "--context", 256, "--users", 1) as planner:
            while not folder.is_dir() or not any(folder.iterdir()):
                assert planner.process.poll() is None
                time.sleep(0.001)
            time.sleep(attempt * 0.02)
            planner.process.send_signal(number)
            exit_code, _ = planner.end()
            assert exit_code == 1
            assert planner.text.rstrip().endswith(STOPPED)
            assert list(folder.iterdir()) == []


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
def test_progress_renews_one_line_of_the_terminal(smollm_path: Path) -> None:
    with terminal("--measure", smollm_path, "--context", 256, "--users", 2) as planner:
        planner.wait_for("q8_0 2/3: loading")
        planner.process.send_signal(signal.SIGINT)
        _, output = planner.end()
        lines = planner.text.split("\r\x1b[K")
        bars = [line.count("█") for line in lines if "█" in line or "░" in line]
        assert bars == sorted(bars)
        assert all(len(line) <= 100 for line in lines[:-1])
        assert any("f16 1/3: everyone is answered 2/2, " in line for line in lines), lines
        assert any("MiB" in line for line in lines)
        # What was measured by then has been printed, without a trace of the bars.
        assert "2 people, 256 tokens each" in output
        assert "█" not in output


def wait_for_file(path: Path) -> int:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(path.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", ["--measure {}", "", "hardware"])
def test_an_engine_that_is_being_asked_who_it_is_can_be_left(
    tmp_path: Path, smollm_path: Path, number: signal.Signals, words: str
) -> None:
    engine = write_engine(tmp_path / "s", version="echo $$ >asked; exec sleep 600")
    with terminal(*words.format(smollm_path).split(), "--engine", engine) as planner:
        pid = wait_for_file(tmp_path / "asked")
        planner.process.send_signal(number)
        exit_code, output = planner.end()
        assert (exit_code, output) == (1, "")
        assert planner.text.strip() == STOPPED
        assert ends(pid)


def test_nothing_of_a_script_outlives_planner_while_it_is_asked_who_it_is(tmp_path: Path, smollm_path: Path) -> None:
    engine = write_engine(tmp_path / "s", version="sleep 600 & echo $! >asked; wait")
    with terminal("--measure", smollm_path, "--engine", engine) as planner:
        pid = wait_for_file(tmp_path / "asked")
        planner.process.kill()
        assert ends(pid)


def test_a_server_that_does_not_want_to_end_is_killed_at_the_second_interrupt(
    tmp_path: Path, smollm_path: Path
) -> None:
    serve = "trap '' INT; echo $$ >serving; while :; do sleep 0.1; done"
    engine = write_engine(tmp_path / "s", serve=serve)
    with terminal("--measure", smollm_path, "--context", 256, "--engine", engine) as planner:
        pid = wait_for_file(tmp_path / "serving")
        planner.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        planner.process.send_signal(signal.SIGINT)
        exit_code, _ = planner.end()
        assert exit_code == 1
        assert planner.text.rstrip().endswith(STOPPED)
        assert has_ended(pid)


def test_under_nohup_a_closed_terminal_is_not_heard(tmp_path: Path, smollm_path: Path) -> None:
    engine = write_engine(tmp_path / "s", version="echo $$ >asked; sleep 1; echo 'version: 1 (abcdef1)'")
    ignore: Callable[[], object] = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    command = planner_command("--engine", engine)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=ignore)
    with process:
        wait_for_file(tmp_path / "asked")
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=60) == 0
