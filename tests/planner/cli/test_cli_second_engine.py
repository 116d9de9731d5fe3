"""Two real builds of llama-server as a person uses them, and one of them with devices over the network."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engines import write_script
from planner_process import Planner

from planner import Hardware
from planner.engine.child import before_exec
from planner.engine.find import Engine, identify
from planner.engine.log import ROUNDING_BYTES
from planner.hardware.views import joined
from planner.reconcile.record import Record
from planner.units import MIB

Fails = Callable[..., str]

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]


# Two builds ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of the sweep, and its document once it is made."""
    return {"folder": tmp_path_factory.mktemp("record")}


@pytest.fixture
def runs(
    kept: dict[str, Any], planner: Planner, engine: Engine, second_engine: Engine, smollm_path: Path
) -> list[dict[str, Any]]:
    """SmolLM2 on both engines, in one call."""
    if "runs" not in kept:
        both = ("--engine", engine.path, "--engine", second_engine.path)
        small = ("--context", 256, "--users", 1, "--cache-type", "q8_0", "--fill", "25%")
        result = planner("measure", smollm_path, *small, *both, "--json", env={"PLANNER_DATA_DIR": str(kept["folder"])})
        assert (result.returncode, result.stderr) == (0, "")
        kept["runs"] = json.loads(result.stdout)["runs"]
    runs: list[dict[str, Any]] = kept["runs"]
    return runs


def row(run: dict[str, Any], component: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in run["reconciliation"]["reserved"] if r["component"] == component)
    return found


def test_one_call_measures_both(runs: list[dict[str, Any]], engine: Engine, second_engine: Engine) -> None:
    engines = [run["measured"]["engine"] for run in runs]
    assert engines == [
        {"version": each.version, "build": each.build, "backends": list(each.backends)}
        for each in (engine, second_engine)
    ]
    assert runs[1]["command"].startswith(str(second_engine.path))


def test_what_is_exact_is_exact_of_both(runs: list[dict[str, Any]]) -> None:
    """Against each one's own log, to its last digit."""
    for run in runs:
        for component in ("weights (CPU_Mapped)", "kv", "output"):
            entry = row(run, component)
            assert abs(entry["measured_bytes"] - entry["predicted_bytes"]) <= ROUNDING_BYTES + 1, entry
            assert entry["delta_bytes"] == 0


def test_where_the_older_build_reserves_otherwise_its_own_dry_run_says_so(runs: list[dict[str, Any]]) -> None:
    """Before llama.cpp counted outputs by slot, it reserved logits for every token of a ubatch."""
    newer, older = (row(run, "compute") for run in runs)
    assert (newer["delta_bytes"], newer["cause"]) == (0, "")
    logits = 256 * 49152 * 4
    assert older["measured_bytes"] > logits
    assert older["delta_bytes"] == pytest.approx(logits, rel=0.2)
    assert older["cause"] == "this build's own dry run says the same: it reserves otherwise than the formula"


def test_the_record_keeps_them_apart(runs: list[dict[str, Any]], kept: dict[str, Any], second_engine: Engine) -> None:
    documents = Record(kept["folder"]).runs()
    assert [document["measured"]["engine"] for document in documents] == [run["measured"]["engine"] for run in runs]
    assert {run.engine for run in Record(kept["folder"]).history().runs} >= {second_engine.build}


def test_a_flag_that_one_lacks_is_refused_in_one_sentence(
    fails: Fails, second_engine: Engine, smollm_path: Path
) -> None:
    sentence = fails(1, "plan", smollm_path, "--dry-run", "--n-cpu-ffn", 1, "--engine", second_engine.path)
    assert sentence.startswith("This llama-server knows no --n-cpu-ffn, which the launch needs. ")


# Devices over the network ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endpoints(second_engine: Engine) -> Iterator[list[str]]:
    """Two devices: this processor, behind two RPC servers of the same build."""
    program = second_engine.path.with_name("rpc-server")
    if not program.is_file():
        pytest.skip(f"there is no rpc-server beside {second_engine.path}")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_serving(program)) for _ in range(2)]


@contextlib.contextmanager
def _serving(program: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(program), "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=before_exec(set())) as server:
        try:
            deadline = time.monotonic() + 30
            while True:
                assert server.poll() is None
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield f"127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.fixture
def over_network(second_engine: Engine, endpoints: list[str], tmp_path: Path) -> Path:
    """A script around the real engine, which is how a person names servers to it."""
    if sys.platform == "win32":
        pytest.skip("the engine is a shell script")
    body = f'exec "{second_engine.path}" --rpc {",".join(endpoints)} "$@"'
    return write_script(tmp_path / "llama-server", body)


def test_its_own_list_of_two_remote_devices_is_joined_with_the_machine(
    over_network: Path, endpoints: list[str]
) -> None:
    engine = identify(over_network, "option")
    assert [(device.name, device.description) for device in engine.devices] == [
        ("RPC0", endpoints[0]),
        ("RPC1", endpoints[1]),
    ]
    assert engine.backends == ("RPC", "CPU")
    here = Hardware.detect()
    seen = here.with_accelerators(engine.devices)
    assert [pool.name for pool in seen.pools] == ["RPC0", "RPC1", "host"]
    assert seen.host == here.host  # another machine's memory, for all that is known, and not this one's
    for device in engine.devices:
        # The processor behind it counts all memory of its machine as its own and free, or what its limits leave.
        assert 0 < device.total_bytes <= (here.memory.total_bytes or 0) // MIB * MIB + MIB
    assert {view.explanation for view in joined(here, engine.devices) if view.seen} == {
        "Another process's, over the network."
    }


def test_the_page_of_the_machine_shows_them(planner: Planner, over_network: Path, endpoints: list[str]) -> None:
    result = planner("hardware", "--engine", over_network)
    assert (result.returncode, result.stderr) == (0, "")
    for name, endpoint in zip(("RPC0", "RPC1"), endpoints, strict=True):
        assert f"\n  {name}      [" in result.stdout
        assert f"\n  {name}      nothing  " in result.stdout
        assert result.stdout.count(endpoint) == 2
    assert "with RPC, CPU: 2 devices and the processor." in result.stdout


def test_a_plan_spreads_over_them_as_the_engine_itself_would(
    planner: Planner, over_network: Path, smollm_path: Path
) -> None:
    result = planner("plan", smollm_path, "-c", 1024, "-np", 2, "--dry-run", "--engine", over_network, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert [device["name"] for device in document["devices"]] == ["RPC0", "RPC1", "CPU"]
    rows = [entry for entry in document["dry_run"]["rows"] if entry["components"][0] in ("weights", "kv")]
    assert {entry["device"] for entry in rows} == {"RPC0", "RPC1", "CPU"}
    assert {entry["delta_bytes"] for entry in rows} == {0}
