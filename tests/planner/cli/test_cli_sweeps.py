"""`planner measure` of several launches at once, cut off and resumed, and of a server that is already running."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from planner_process import Planner, planner_command

from planner.engine.find import Engine

Fails = Callable[..., str]


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
def test_a_sweep_that_is_killed_is_resumed_where_it_stopped(
    planner: Planner, smollm_path: Path, own_home: Path
) -> None:
    """Killed as soon as the first of two results is on disk."""
    words = ("measure", smollm_path, "--context", "256,512", "--users", 1, "--cache-type", "q8_0", "--fill", "10%")
    record = own_home / "planner" / "measurements.jsonl"
    with subprocess.Popen(planner_command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not record.exists() or b'"resident"' not in record.read_bytes():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    before = record.read_bytes()
    result = planner(*words, "--resume", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    runs = json.loads(result.stdout)["runs"]
    assert [run["predicted"]["launch"]["ctx_size"] for run in runs] == [256, 512]
    assert [run["measured"]["fill"] for run in runs] == [0.1, 0.1]
    assert len({run["sweep"]["id"] for run in runs}) == 1
    assert record.read_bytes().startswith(before.rstrip(b"\n"))
    text = planner(*words, "--resume").stdout
    assert "Resumed   2 of 2 were measured before." in text
    assert re.search(r"q8_0 +1 +256 .*\n.*q8_0 +1 +512 ", text)


@pytest.fixture
def server(engine: Engine, smollm_path: Path) -> Iterator[tuple[int, int]]:
    """The process and the port of a server that a person started, by variables for the most part."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "LLAMA_ARG_CTX_SIZE": "1024",
        "LLAMA_ARG_N_PARALLEL": "2",
        "LLAMA_ARG_CACHE_RAM": "32",
        "LLAMA_ARG_THREADS": "1",
        "LLAMA_ARG_SWA_FULL": "1",
        "LLAMA_API_KEY": "a key",
    }
    command = [str(engine.path), "-m", smollm_path.name, "-ctk", "q8_0", "-ctv", "q8_0", "--port", str(port)]
    with subprocess.Popen(
        command, env=environment, cwd=smollm_path.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not is_open(port):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield process.pid, port
        finally:
            process.kill()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
def test_a_running_server_is_held_against_its_prediction(planner: Planner, server: tuple[int, int]) -> None:
    pid, port = server
    deadline = time.monotonic() + 60
    while True:
        result = planner("measure", "--attach", f"http://127.0.0.1:{port}", "--json")
        assert (result.returncode, result.stderr) == (0, "")
        document = json.loads(result.stdout)
        if document["build"]:  # it answers once it has loaded its model
            break
        assert time.monotonic() < deadline
    assert document["pid"] == pid
    launch = document["launch"]
    told = (launch["ctx_size"], launch["parallel"], launch["cache_ram"], launch["cache_type_k"], launch["swa_full"])
    assert told == (1024, 2, 32, "q8_0", True)
    assert [row["cause"] for row in document["rows"]] == ["", ""]
    text = planner("measure", "--attach", pid).stdout
    assert f"Server    process {pid} at http://127.0.0.1:{port}, build " in text
    assert "2 people, 512 tokens each (llama-server: 1,024 in total), cache q8_0/q8_0" in text


def test_a_process_that_is_no_server_is_refused(fails: Fails) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        sentence = fails(1, "measure", "--attach", process.pid)
        process.kill()
    assert "(sleep) is no llama-server" in sentence
    assert fails(1, "measure", "--attach", "4194304") == "There is no process 4194304."


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--context 4096,many", "'4096,many' is not a list of numbers"),
        ("--users 0", "'0' is not a list of numbers"),
        ("--cache-type f16,q9", "'q9' is none of f32, f16"),
        ("--fill 120%", "'120%' is no part of a context"),
        ("--fill half", "'half' is no part of a context"),
        ("--fill 0%", "'0%' is no part of a context"),
        ("--soak nan", "'nan' is not a number that can be counted to"),
        ("--deadline inf", "'inf' is not a number that can be counted to"),
        ("--ready-timeout nan", "'nan' is not a number that can be counted to"),
        ("--soak 0", "0.0 is not in the range"),
        (f"--context {'9' * 5000}", "is not a list of numbers"),
        (
            f"--users {','.join(map(str, range(1, 601)))} --context 512,1024",
            "These are 3,600 measurements; ask for 1,000",
        ),
        ("--attach 1 --soak 3 --ghost", "leave out --ghost, --soak"),
    ],
)
def test_what_is_no_list_and_no_part_is_refused(fails: Fails, smollm_path: Path, words: str, sentence: str) -> None:
    assert sentence in fails(2, "measure", smollm_path, *words.split())
