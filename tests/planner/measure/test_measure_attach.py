"""A running server that is looked at: a real one, started as a person would."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from planner import Hardware, Launch, Model, predict
from planner.engine.find import Engine
from planner.errors import EngineError, UsageError
from planner.launch import resolve_context
from planner.measure.attach import (
    RunningServer,
    find_server,
    hold_attached,
    mapped_bytes,
    read_sample,
    settled_launch,
)
from planner.units import GIB, MIB


@pytest.fixture(scope="module")
def running(engine: Engine, smollm: Model) -> Iterator[tuple[int, int]]:
    """The process and the port of a server for two people, partly set by its environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(engine.path), "-m", smollm.path.name, "-np", "2", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "LLAMA_ARG_CTX_SIZE": "1024", "LLAMA_ARG_CACHE_RAM": "32", "LLAMA_ARG_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, cwd=smollm.path.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not find_server(str(process.pid)).properties:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process.pid, port
        finally:
            process.send_signal(signal.SIGINT)


@pytest.mark.engine
@pytest.mark.xdist_group("attached")
class TestRunning:
    def test_it_is_found_by_address_and_by_process(self, running: tuple[int, int]) -> None:
        pid, port = running
        for target in (str(pid), f"http://127.0.0.1:{port}", f"localhost:{port}"):
            server = find_server(target)
            assert server.pid == pid
            assert server.url is not None and server.url.endswith(f":{port}")
            assert (server.slots, server.n_ctx_slot, server.busy) == (2, 512, 0)

    def test_it_says_what_it_is(self, running: tuple[int, int], engine: Engine, smollm: Model) -> None:
        server = find_server(str(running[0]))
        assert server.model_path == smollm.path
        assert server.build is not None and engine.build.startswith(server.build)
        assert server.variables["LLAMA_ARG_CTX_SIZE"] == "1024"

    def test_what_it_holds_lies_where_it_was_predicted(self, running: tuple[int, int], smollm: Model) -> None:
        server = find_server(str(running[0]))
        launch = replace(Launch.for_users(2, 512), cache_ram=32)
        hardware = Hardware.detect()
        fresh, full = (predict(smollm, launch, hardware, prompt_tokens=tokens) for tokens in (1, None))
        rows = hold_attached(fresh, full, read_sample(server), mapped_bytes(server.pid, smollm.path.resolve()))
        assert [(row.part, row.cause) for row in rows] == [("mapped weights", ""), ("everything else", "")]
        assert rows[0].measured_bytes is not None and rows[0].measured_bytes > 0

    def test_a_launch_that_leaves_things_open_gets_what_the_server_says(
        self, running: tuple[int, int], smollm: Model
    ) -> None:
        server = find_server(str(running[0]))
        settled, note = settled_launch(server, Launch(parallel=2), smollm)
        context = resolve_context(settled, smollm.hyperparameters.n_ctx_train)
        assert (context.n_seq_max, context.n_ctx_seq) == (2, 512)
        assert note.startswith("The server says 2 slots of 512 tokens, where its command would give 2 of 8,192")
        assert settled_launch(server, Launch.for_users(2, 512), smollm)[1] == ""

    def test_it_is_not_touched(self, running: tuple[int, int]) -> None:
        before = find_server(str(running[0]))
        assert find_server(str(running[0])) == before


def test_a_process_that_is_not_there() -> None:
    with pytest.raises(EngineError, match="There is no process 4194304"):
        find_server("4194304")


def test_a_process_that_is_no_llama_server() -> None:
    with pytest.raises(EngineError, match=r"is no llama-server: it is not called so, and answers nothing"):
        find_server(str(os.getppid()))


def test_a_port_that_nobody_listens_on() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(EngineError, match=f"listens on port {port}"):
        find_server(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "target", ["nonsense", "http://127.0.0.1", "https://127.0.0.1:80", "localhost:99999", "http://[", "http://[::1:80"]
)
def test_what_is_neither_a_process_nor_an_address(target: str) -> None:
    with pytest.raises(UsageError, match="neither a process id nor an address"):
        find_server(target)


def test_another_machine_is_not_looked_into() -> None:
    with pytest.raises(UsageError, match="is not on this machine"):
        find_server("http://192.0.2.1:8080")


def test_mapped_pages_are_counted_for_one_file_only(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    (folder / "smaps").write_text(
        "7f00-7f10 r--s 00000000 fd:01 12 /models/a b.gguf\nSize: 900 kB\nRss:  100 kB\n"
        "7f20-7f30 r-xp 00000000 fd:01 13 /lib/libc.so\nRss:  50 kB\n"
        "7f40-7f50 rw-p 00000000 00:00 0 \nRss:  70 kB\n"
        "7f60-7f70 r--s 00100000 fd:01 12 /models/a b.gguf\nRss:  11 kB\n"
    )
    assert mapped_bytes(7, Path("/models/a b.gguf"), tmp_path) == 111 * 1024
    assert mapped_bytes(8, Path("/models/a b.gguf"), tmp_path) is None


def test_more_than_it_should_ever_take_is_unexplained(smollm: Model) -> None:
    launch = replace(Launch.for_users(2, 512), cache_ram=0)
    plan = predict(smollm, launch, Hardware.simulate(ram=8 * GIB))
    server = RunningServer(
        pid=os.getpid(), url=None, command=("x",), variables={}, folder=None, program=None, properties={}, busy=None
    )
    sample = replace(read_sample(server), resident_bytes=GIB)
    *_, rest = hold_attached(plan, plan, sample, 50 * MIB)
    assert rest.cause.startswith("unexplained: ")
    *_, rest = hold_attached(plan, plan, replace(sample, resident_bytes=51 * MIB), 50 * MIB)
    assert "less: swapped out" in rest.cause
    assert hold_attached(plan, plan, replace(sample, resident_bytes=None), None)[0].cause == "this system does not say"


class _Answers(BaseHTTPRequestHandler):
    """Something that is no llama-server, and answers every question with the same list."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'["no slot", 1]')

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


@pytest.mark.parametrize(("kind", "host"), [(ThreadingHTTPServer, "127.0.0.1"), (_Server6, "::1")])
def test_something_else_that_answers_is_no_server(kind: type[ThreadingHTTPServer], host: str) -> None:
    try:
        server = kind((host, 0), _Answers)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = f"[{host}]" if ":" in host else host
        with pytest.raises(EngineError, match=rf"Process {os.getpid()} .* is no llama-server"):
            find_server(f"http://{shown}:{server.server_address[1]}")
        server.shutdown()
