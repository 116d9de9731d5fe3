"""A llama-server under our control: how it starts, who may talk to it, and that it always ends."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fake_engines import MISSING_LIBRARY, write_engine, write_script

from planner import Launch, Model
from planner.engine import process as process_module
from planner.engine import server as server_module
from planner.engine.arguments import server_arguments
from planner.engine.faults import EngineFault
from planner.engine.find import Engine
from planner.engine.log import EngineLog, read_line
from planner.engine.log_text import LogText
from planner.engine.process import Cancelled
from planner.engine.server import HOST, LlamaServer, ServerAnswerError
from planner.errors import EngineError
from planner.units import MIB

LAUNCH = Launch(ctx_size=256, parallel=1, cache_ram=0, ctx_checkpoints=0, ubatch_size=64, device=None)


def is_alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@pytest.fixture(scope="module")
def command(engine: Engine, smollm: Model) -> list[str]:
    return [str(engine.path), *server_arguments(LAUNCH, smollm.path, engine.flags)]


# A real server ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(command: list[str]) -> Iterator[LlamaServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_ARG_ALIAS", "behind our back")
        patch.setenv("LLAMA_API_KEY", "a key of the person's own")
        patch.setenv("LLAMA_LOG_FILE", "/nonexistent/folder/log")
        with LlamaServer(command, ready_timeout_s=120) as running:
            running.wait_ready()
            yield running


def ask(server: LlamaServer, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10)
    try:
        connection.request("POST", path, '{"content": "hello"}', {"Content-Type": "application/json", **headers})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.engine
@pytest.mark.xdist_group("engine_server")
class TestRunning:
    def test_it_listens_on_loopback_only(self, server: LlamaServer) -> None:
        connections = psutil.Process(server.pid).net_connections(kind="inet")
        listening = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
        assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", server.port)]

    @pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer a key of the person's own"}])
    def test_nobody_else_is_answered(self, server: LlamaServer, headers: dict[str, str]) -> None:
        assert ask(server, "/tokenize", headers) == 401

    def test_we_are_answered(self, server: LlamaServer) -> None:
        assert server.post("/tokenize", {"content": "hello"}, timeout_s=30)["tokens"]

    def test_the_key_is_not_among_the_arguments_where_everyone_could_read_it(self, server: LlamaServer) -> None:
        process = psutil.Process(server.pid)
        key = process.environ()["LLAMA_API_KEY"]
        assert len(key) >= 32
        assert not any(key in argument for argument in process.cmdline())

    def test_settings_of_the_environment_are_not_handed_on(self, server: LlamaServer) -> None:
        environment = psutil.Process(server.pid).environ()
        assert "LLAMA_ARG_ALIAS" not in environment
        assert "LLAMA_LOG_FILE" not in environment
        assert environment["LLAMA_API_KEY"] != "a key of the person's own"

    def test_its_log_is_read_when_it_is_ready(self, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        def slowly(log: EngineLog, line: str) -> EngineLog:
            time.sleep(0.005)
            return read_line(log, line)

        monkeypatch.setattr("planner.engine.process.read_line", slowly)
        with LlamaServer(command, ready_timeout_s=120) as late:
            late.wait_ready()
            assert late.log.loaded
            assert late.log.buffer_bytes("compute") is not None

    def test_its_log_names_its_buffers(self, server: LlamaServer) -> None:
        assert server.log.buffer_bytes("kv") is not None
        assert server.log.context["n_ctx"] == 256

    def test_tokens_come_one_by_one(self, server: LlamaServer) -> None:
        body = {"prompt": [1, 2, 3], "n_predict": 4, "ignore_eos": True, "stream": True, "return_tokens": True}
        events = list(server.stream("/completion", body, timeout_s=60))
        assert sum(len(event.get("tokens", [])) for event in events) == 4
        assert events[-1]["stop"] is True

    def test_a_refused_request_is_quoted(self, server: LlamaServer) -> None:
        body = {"prompt": [1] * 600, "n_predict": 1, "stream": True}
        with pytest.raises(ServerAnswerError, match=r"answered /completion with status \d+: \".*context"):
            list(server.stream("/completion", body, timeout_s=60))
        with pytest.raises(ServerAnswerError, match="answered /nowhere with status 404"):
            server.post("/nowhere", {}, timeout_s=30)


@pytest.mark.engine
def test_a_server_that_cannot_read_its_model_is_quoted(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "not a model.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    broken = [str(file) if argument.endswith(".gguf") else argument for argument in command]
    with LlamaServer(broken, ready_timeout_s=60) as server:
        with pytest.raises(
            EngineError, match=r"ended with exit code 1: the model does not load\. It said: .*failed to load"
        ):
            server.wait_ready()
        pid = server.pid
    assert not is_alive(pid)


@pytest.mark.engine
def test_a_wrong_argument_is_quoted(command: list[str]) -> None:
    with (
        LlamaServer([*command, "--no-such-thing"], ready_timeout_s=60) as server,
        pytest.raises(EngineError, match="invalid argument: --no-such-thing"),
    ):
        server.wait_ready()


@pytest.mark.engine
def test_a_server_that_dies_while_it_answers_is_told_from_one_that_is_slow(command: list[str]) -> None:
    with LlamaServer(command, ready_timeout_s=120) as server:
        server.wait_ready()
        events = server.stream(
            "/completion",
            {"prompt": [1], "n_predict": 200, "ignore_eos": True, "stream": True},
            timeout_s=60,
        )
        next(events)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="died of SIGKILL: something killed it, and not the kernel"):
            list(events)


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_no_server_survives_us_even_when_we_are_killed(command: list[str]) -> None:
    program = (
        "import sys, time\n"
        "from planner.engine.server import LlamaServer\n"
        "with LlamaServer(sys.argv[1:], ready_timeout_s=120) as server:\n"
        "    server.wait_ready()\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, *command], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    assert wait_until(lambda: not is_alive(pid))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups")
def test_nothing_that_a_wrapper_script_started_survives_us_when_we_are_killed(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s", "sh -c 'trap \"\" INT TERM HUP; echo $$ >below; while :; do sleep 0.1; done'")
    program = (
        "import sys, time\n"
        "from planner.engine.server import LlamaServer\n"
        "with LlamaServer(sys.argv[1:], ready_timeout_s=120) as server:\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(script)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert parent.stdout is not None
    with parent:
        pid = int(parent.stdout.readline())
        assert wait_until(lambda: (tmp_path / "below").exists() and (tmp_path / "below").read_text() != "")
        below = int((tmp_path / "below").read_text())
        assert is_alive(pid) and is_alive(below)
        parent.kill()
    assert wait_until(lambda: not is_alive(pid) and not is_alive(below))


def test_nobody_keeps_watch_over_a_server_that_has_ended(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with LlamaServer([str(write_engine(tmp_path / "s"))], ready_timeout_s=30) as server:
        started = {child.pid for child in set(psutil.Process().children()) - before}
        assert server.pid in started
        assert len(started) == 2
    assert not any(map(psutil.pid_exists, started))


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a score")
def test_the_kernel_would_take_it_before_anything_else(server: LlamaServer) -> None:
    assert Path(f"/proc/{server.pid}/oom_score_adj").read_text().strip() == "1000"
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "1000"


@pytest.mark.engine
def test_a_port_that_is_taken_is_told_from_other_faults(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as taken:
        monkeypatch.setattr(server_module, "_free_port", lambda: taken.getsockname()[1])
        with (
            LlamaServer(command, ready_timeout_s=60) as server,
            pytest.raises(EngineFault, match="port is in use") as fault,
        ):
            server.wait_ready()
    assert fault.value.kind == "port"


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of address space")
def test_memory_that_is_refused_is_told_with_device_and_size(command: list[str], tmp_path: Path) -> None:
    limited = write_script(tmp_path / "s", f'ulimit -v 1500000; exec {command[0]} "$@" --fit off')
    large = ["200192" if argument == "256" else argument for argument in command[1:]]
    with LlamaServer([str(limited), *large], ready_timeout_s=60) as server, pytest.raises(EngineFault) as fault:
        server.wait_ready()
    assert fault.value.kind == "allocation"
    assert "CPU refused 4.3 GiB of memory" in fault.value.message


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group that may hold so much; skips where none can be made."""
    first = Path("/sys/fs/cgroup/memory")
    version_1 = first.is_dir()
    group = (first if version_1 else Path("/sys/fs/cgroup")) / f"planner-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        limit = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
        if not limit.exists():
            pytest.skip("the memory controller is not given to groups here")
        limit.write_text(str(limit_bytes))
        yield group
    finally:
        assert wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has control groups")
def test_the_kernel_that_ends_it_for_want_of_memory_is_named_and_spares_us(command: list[str]) -> None:
    """In a group of 200 MiB, with a cache that needs 270 MiB more."""
    program = (
        "import os, sys\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "from planner.engine.faults import EngineFault\n"
        "from planner.engine.server import LlamaServer\n"
        "with LlamaServer(sys.argv[2:], ready_timeout_s=60) as server:\n"
        "    try:\n"
        "        server.wait_ready()\n"
        "    except EngineFault as fault:\n"
        "        print(fault.kind, fault.message)\n"
    )
    large = ["12288" if argument == "256" else argument for argument in command]
    with memory_group(200 << 20) as group:
        result = subprocess.run(
            [sys.executable, "-c", program, str(group), *large], capture_output=True, text=True, check=False, timeout=90
        )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("memory llama-server died of SIGKILL: the kernel ended it because memory ran out")


# Broken and reluctant ones ---------------------------------------------------------------------------------


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match="cannot be started: No such file or directory"),
        LlamaServer([str(tmp_path / "nothing")], ready_timeout_s=1),
    ):
        pass


def test_one_that_never_gets_ready_is_given_up_and_ended(tmp_path: Path) -> None:
    script = write_engine(tmp_path / "s", serve="echo 'still reading'; exec sleep 600")
    with LlamaServer([str(script)], ready_timeout_s=0.5) as server:
        pid = server.pid
        with pytest.raises(EngineError, match=r"not ready after .* It last said: \"still reading\"") as error:
            server.wait_ready()
        assert "--ready-timeout" in error.value.hint
    assert not is_alive(pid)


def test_a_fraction_of_a_second_is_not_called_zero(tmp_path: Path) -> None:
    with (
        LlamaServer([str(write_engine(tmp_path / "s"))], ready_timeout_s=0.2) as server,
        pytest.raises(EngineError, match=r"after 0\.2 seconds\. It last said: nothing"),
    ):
        server.wait_ready()


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (
            "echo 'E failed to load model'; exit 1",
            'exit code 1: the model does not load. It said: "E failed to load model"',
        ),
        (f"echo '{MISSING_LIBRARY}' >&2; exit 127", "libcudart.so.12"),
        ("kill -9 $$", "died of SIGKILL: something killed it, and not the kernel for want of memory"),
        ("kill -ILL $$", "died of SIGILL"),
        ("exit 0", "ended with exit code 0, without a word"),
    ],
)
def test_one_that_dies_while_loading_is_quoted(tmp_path: Path, serve: str, words: str) -> None:
    with LlamaServer([str(write_engine(tmp_path / "s", serve=serve))], ready_timeout_s=30) as server:
        with pytest.raises(EngineError) as error:
            server.wait_ready()
        assert words in str(error.value)


def test_whatever_else_listens_on_its_port_is_not_taken_for_it(tmp_path: Path) -> None:
    """Something that speaks no HTTP must not end the wait with an error of its own."""
    listener = (
        "import socket, sys\n"
        "listening = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "while True:\n"
        "    connection, _ = listening.accept()\n"
        "    connection.recv(100)\n"
        "    connection.sendall(b'SSH-2.0-OpenSSH_9.2\\r\\n')\n"
        "    connection.close()\n"
    )
    (tmp_path / "listener.py").write_text(listener, encoding="utf-8")
    serve = f'exec {sys.executable} {tmp_path}/listener.py "$4"'
    script = write_engine(tmp_path / "s", serve=serve)
    with (
        LlamaServer([str(script)], ready_timeout_s=1) as server,
        pytest.raises(EngineError, match="not ready after"),
    ):
        server.wait_ready()


def test_it_ends_in_order_when_asked(tmp_path: Path) -> None:
    # Blocked before it says that it is up, and then waited for: a signal that comes in between is not lost.
    program = (
        "from signal import *; pthread_sigmask(SIG_BLOCK, {SIGINT}); print('up', flush=True); sigwait({SIGINT}); "
        "print('cleaning up')"
    )
    with LlamaServer([sys.executable, "-c", program], ready_timeout_s=30, stop_grace_s=60) as server:
        assert wait_until(lambda: "up" in server.log_text)
        pid = server.pid
    assert "cleaning up" in server.log_text
    assert not is_alive(pid)


def test_one_that_ignores_the_interrupt_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "STOP_GRACE_S", 0.3)
    script = write_script(tmp_path / "s", "trap '' INT; echo up; while :; do sleep 0.1; done")
    with LlamaServer([str(script)], ready_timeout_s=30) as server:
        assert wait_until(lambda: "up" in server.log_text)
        pid = server.pid
    assert not is_alive(pid)


def test_a_second_interrupt_while_it_stops_kills_it(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s", "trap '' INT; echo up; while :; do sleep 0.1; done")
    server = LlamaServer([str(script)], ready_timeout_s=30)
    with server:
        assert wait_until(lambda: "up" in server.log_text)
        pid = server.pid

        def impatient(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, impatient)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                server.stop()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert not is_alive(pid)


def test_what_a_wrapper_script_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "STOP_GRACE_S", 0.5)
    script = write_script(tmp_path / "s", "sh -c 'trap \"\" INT; echo pid $$; while :; do sleep 0.1; done'")
    with LlamaServer([str(script)], ready_timeout_s=30) as server:
        assert wait_until(lambda: server.log_text.endswith("\n"))
        pid = int(server.log_text.split()[-1])
        assert pid != server.pid
    assert wait_until(lambda: not is_alive(pid))


def test_stopping_does_not_wait_for_whoever_else_holds_the_output_open(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s", "setsid sh -c 'echo $$; exec sleep 600' & exec sleep 600")
    with LlamaServer([str(script)], ready_timeout_s=30) as server:
        assert wait_until(lambda: server.log_text.endswith("\n"))
    holder = int(server.log_text)
    assert is_alive(holder)
    os.kill(holder, signal.SIGKILL)


def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    server = LlamaServer([str(write_engine(tmp_path / "s"))], ready_timeout_s=30)
    server.stop()  # never started
    with server:
        pass
    server.stop()


def test_a_wait_ends_when_the_person_asks(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    script = write_engine(tmp_path / "s")
    with LlamaServer([str(script)], ready_timeout_s=60, cancelled=lambda: next(asked)) as server:
        pid = server.pid
        with pytest.raises(Cancelled):
            server.wait_ready()
    assert not is_alive(pid)


def test_an_error_in_the_block_ends_the_server_too(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        LlamaServer([str(write_engine(tmp_path / "s"))], ready_timeout_s=60) as server,
    ):
        pid = server.pid
        raise ZeroDivisionError
    assert not is_alive(pid)


ENDLESS = """\
import http.server, sys, threading
port = int(sys.argv[1])
print("load_tensors:   CPU_Mapped model buffer size =    12.50 MiB", flush=True)
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
serving = http.server.ThreadingHTTPServer(("127.0.0.1", port), Healthy)
threading.Thread(target=serving.serve_forever, daemon=True).start()
while True:
    print("still here\\n" * 1000, end="")
"""


def test_the_log_of_one_that_prints_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first lines and its last are kept, and it is ready although it never falls silent."""
    monkeypatch.setattr("planner.engine.process.LogText", lambda: LogText(100_000))
    monkeypatch.setattr(process_module, "NOISE_S", 0.5)
    (tmp_path / "endless.py").write_text(ENDLESS, encoding="utf-8")
    script = write_engine(tmp_path / "s", serve=f'exec {sys.executable} {tmp_path}/endless.py "$4"')
    with LlamaServer([str(script)], ready_timeout_s=60) as server:
        server.wait_ready()
        assert wait_until(lambda: "left out" in server.log_text, 60)
        assert server.log.buffer_bytes("model") == 12.5 * MIB
        head, tail = server.log_text.split("\n... ")
        assert head.startswith("load_tensors:")
        assert tail.endswith("still here\n")
        assert len(server.log_text) < 200_000


def test_a_line_without_end_is_taken_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.engine.process.LogText", lambda: LogText(10_000))
    monkeypatch.setattr(process_module, "_LONGEST_LINE", 1000)
    script = write_engine(tmp_path / "s", serve="exec tr '\\0' x </dev/zero")
    with LlamaServer([str(script)], ready_timeout_s=0.5) as server:
        with pytest.raises(EngineFault, match="not ready after") as fault:
            server.wait_ready()
        assert fault.value.kind == "hang"
        assert len(server.log_text) < 20_000
