"""`planner --measure` through llama-cpp-python: named, in place of a server that is not there, and beside one."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from planner_process import Planner
from test_cli_interrupts import STOPPED, ends, terminal

from planner.engine.dry_run import library_is_here
from planner.engine.find import Engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("engine"),
    pytest.mark.skipif(not library_is_here(), reason="llama-cpp-python is not installed"),
]

Fails = Callable[..., str]
LIBRARY = ("--engine", "llama-cpp-python")
SMALL = ("--context", 256, "--users", 1, "--cache-type", "q8_0", "--fill", "20%")


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_sweep_over_a_server_and_the_library(planner: Planner, smollm_path: Path, engine: Engine) -> None:
    result = planner("measure", smollm_path, *SMALL, "--engine", engine.path, *LIBRARY, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    server, library = document["runs"]
    assert document["recommendation"] is None
    assert library["measured"]["engine"]["build"].startswith("llama-cpp-python ")
    assert "(commit " in library["measured"]["engine"]["version"]
    assert server["command"].startswith(str(engine.path))
    assert library["command"] is None
    for run in (server, library):
        rows = run["reconciliation"]["reserved"]
        assert [row["component"] for row in rows] == ["weights (CPU_Mapped)", "kv", "compute", "output"]
        assert not [row for row in rows if "unexplained" in row["cause"]]
        assert run["measured"]["one"]["generated_tokens_per_s"] > 0
    launch = library["predicted"]["launch"]
    assert (launch["cache_ram"], launch["ctx_checkpoints"], library["predicted"]["growth_bytes"]) == (0, 0, 0)
    assert server["predicted"]["launch"]["cache_ram"] > 0


def test_what_was_measured_is_kept_and_shown(planner: Planner, smollm_path: Path) -> None:
    result = planner("measure", smollm_path, *SMALL, *LIBRARY)
    assert (result.returncode, result.stderr) == (0, "")
    said = one_line(result.stdout)
    assert "Engine llama-cpp-python " in said
    assert "Use the q8_0 cache." in said
    assert "there is no command that ran: a llama-server is of another build" in said
    assert "--ctx-size" not in said
    history = planner("history").stdout
    assert "library 0." in history
    run = json.loads(planner("history", "--json").stdout)["runs"][-1]["id"]
    page = planner("history", "show", run)
    assert page.returncode == 0
    assert "Command   Measured through llama-cpp-python" in page.stdout
    assert "library_serving: model loaded" in page.stdout


def test_without_a_server_the_library_is_taken_and_that_is_said(planner: Planner, own_home: Path) -> None:
    result = planner("measure", "--ghost", "smollm2-135m", *SMALL, embedded=False)
    assert (result.returncode, result.stderr) == (0, "")
    said = one_line(result.stdout)
    assert "No llama-server is found: " in said
    assert "So llama-cpp-python is measured." in said
    assert "Engine llama-cpp-python " in one_line(planner(embedded=False).stdout)
    assert not list(own_home.rglob("*.gguf"))


def test_the_environment_can_name_it(planner: Planner) -> None:
    result = planner(env={"PLANNER_ENGINE": "llama-cpp-python"})
    assert "Engine    llama-cpp-python " in result.stdout


def test_a_server_that_was_named_is_not_replaced(fails: Fails, smollm_path: Path) -> None:
    sentence = fails(1, "--measure", smollm_path, "--engine", "/nowhere/llama-server", embedded=False)
    assert sentence.startswith("There is no llama-server at /nowhere/llama-server.")


def test_a_soak_is_refused_before_anything_starts(fails: Fails, smollm_path: Path) -> None:
    sentence = fails(2, "measure", smollm_path, *LIBRARY, "--soak", 3)
    assert sentence == (
        "llama-cpp-python keeps no prompts, so there is nothing that conversations could make grow. "
        "Leave out --soak, or name a llama-server with --engine PATH."
    )


def library_below(pid: int) -> psutil.Process:
    """The library that this planner measures."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children(recursive=True):
            if any("library_serving" in word for word in child.cmdline()):
                return child
        time.sleep(0.01)
    raise AssertionError("planner started no library")


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("loading the model", signal.SIGINT),
        ("everyone", signal.SIGTERM),
        ("one person alone", signal.SIGHUP),
        ("everyone", signal.SIGKILL),
        ("one person alone", signal.SIGKILL),
    ],
)
def test_nothing_is_left_however_planner_ends(smollm_path: Path, stage: str, number: signal.Signals) -> None:
    with terminal("--measure", smollm_path, "--context", 256, "--users", 2, *LIBRARY) as planner:
        planner.wait_for(stage)
        library = library_below(planner.process.pid)
        started = [child.pid for child in psutil.Process(planner.process.pid).children(recursive=True)]
        assert library.pid in started
        planner.process.send_signal(number)
        exit_code, output = planner.end()
        assert all(map(ends, started))
        assert "Traceback" not in planner.text + output
        if number != signal.SIGKILL:
            assert exit_code == 1
            assert planner.text.rstrip().endswith(STOPPED)
