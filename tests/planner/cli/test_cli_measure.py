"""`planner --measure`: the whole job with a real engine, and every way in which an engine can fail."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_engines import MISSING_LIBRARY, write_engine, write_script
from planner_process import Planner, planner_command
from samples import assert_sizes_are_named, gguf

from planner.engine.find import embedded_path
from planner.reconcile.record import Record

Fails = Callable[..., str]

SMALL = ("--context", 768, "--users", 2)
"""A small context makes short prompts: just longer than a ubatch, so that the overhead can be learned."""


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def assert_no_server_is_left() -> None:
    children = psutil.Process().children(recursive=True)
    assert [child for child in children if child.name() == "llama-server"] == []


# With a real engine ----------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.xdist_group("measuring")
class TestMeasuring:
    @pytest.fixture(scope="class")
    def kept(self, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        """What the runs of this class have in common: a record, and the document once it is made."""
        return {"folder": tmp_path_factory.mktemp("record")}

    @pytest.fixture
    def document(self, kept: dict[str, Any], planner: Planner, smollm_path: Path) -> dict[str, Any]:
        """What `--measure --json` prints for SmolLM2."""
        if "result" not in kept:
            kept["result"] = planner(
                "--measure", smollm_path, *SMALL, "--json", env={"PLANNER_DATA_DIR": str(kept["folder"])}
            )
        result = kept["result"]
        assert (result.returncode, result.stderr) == (0, "")
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    def test_the_document_is_whole(self, document: dict[str, Any]) -> None:
        assert document["schema_version"] == 1
        assert document["model_chosen_because"] == "it was named"
        assert document["not_run"] == []
        assert [run["predicted"]["launch"]["cache_type_k"] for run in document["runs"]] == ["f16", "q8_0", "q4_0"]
        assert_sizes_are_named(document)

    def test_every_component_is_reconciled(self, document: dict[str, Any]) -> None:
        for run in document["runs"]:
            rows = run["reconciliation"]["reserved"]
            assert [row["component"] for row in rows] == ["weights (CPU_Mapped)", "kv", "compute", "output"]
            assert not any("unexplained" in row["cause"] for row in rows)
            for row in rows:
                difference = row["measured_bytes"] - row["predicted_bytes"]
                assert row["delta_bytes"] in (0, difference)
                assert abs(row["delta_bytes"] - difference) <= row["rounding_bytes"]
            assert run["reconciliation"]["learned_overhead_bytes"] > 0
            assert run["measured"]["steady"]["resident_bytes"] > 100_000_000
            assert run["measured"]["everyone"]["users"] == 2

    def test_after_the_first_run_the_overhead_is_known(self, document: dict[str, Any]) -> None:
        certainties = [
            next(a["certainty"] for a in run["predicted"]["devices"][0]["allocations"] if a["buffer"] == "process")
            for run in document["runs"]
        ]
        assert certainties == ["estimated", "learned", "learned"]

    def test_the_recommended_command_is_one_that_ran(self, document: dict[str, Any], smollm_path: Path) -> None:
        recommendation = document["recommendation"]
        assert recommendation["launch"]["cache_type_k"] == "f16"
        words = shlex.split(recommendation["command"])
        assert words[words.index("--model") + 1] == str(smollm_path.resolve())
        assert words[words.index("--ctx-size") + 1] == "1536"
        assert recommendation["command"] in [run["command"] for run in document["runs"]]

    def test_every_run_is_kept(self, document: dict[str, Any], kept: dict[str, Any]) -> None:
        bodies = list(Record(kept["folder"]).bodies())
        assert [run for _, run, _ in bodies] == document["runs"]
        assert all("load_tensors" in log for _, _, log in bodies)

    def test_a_later_prediction_uses_what_was_learned(
        self, document: dict[str, Any], kept: dict[str, Any], planner: Planner, smollm_path: Path
    ) -> None:
        environment = {"PLANNER_DATA_DIR": str(kept["folder"])}
        plan = json.loads(planner("plan", smollm_path, "--json", env=environment).stdout)
        process = next(a for a in plan["devices"][0]["allocations"] if a["buffer"] == "process")
        assert process["certainty"] == "learned"
        assert process["resident_bytes"] == document["runs"][-1]["reconciliation"]["learned_overhead_bytes"]

    def test_without_a_model_a_ghost_is_measured_and_taken_away(
        self, planner: Planner, own_home: Path, tmp_path: Path
    ) -> None:
        result = planner("--measure", *SMALL)
        assert (result.returncode, result.stderr) == (0, "")
        assert "no model was named or found here. This is a ghost" in " ".join(result.stdout.split())
        assert "its answers are not" in " ".join(result.stdout.split())
        assert "Use       the f16 cache" in result.stdout
        assert {path.name for path in files_below(own_home)} == {
            "dry_runs.jsonl",
            "engines.jsonl",
            "measurements.jsonl",
            "smoke-test-model",
        }
        assert files_below(tmp_path) == []
        assert_no_server_is_left()

    def test_a_ghost_of_a_whole_file_recommends_the_file(
        self, planner: Planner, own_home: Path, tmp_path: Path, smollm_path: Path
    ) -> None:
        result = planner("--measure", "--ghost", smollm_path, "--context", 256, "--users", 1, "--json")
        assert (result.returncode, result.stderr) == (0, "")
        document = json.loads(result.stdout)
        assert document["model"]["ghost"]
        assert document["model"]["stands_for"] == str(smollm_path)
        assert "empty weights" in document["model_chosen_because"]
        for run in document["runs"]:
            words = shlex.split(run["command"])
            assert words[words.index("--model") + 1] == str(smollm_path)
            for row in run["reconciliation"]["reserved"]:
                assert row["cause"] != "unexplained"
                assert row["delta_bytes"] == 0
        assert not [path for path in files_below(own_home) if "ghost" in path.name]
        assert_no_server_is_left()

    def test_a_ghost_of_a_cut_off_file_recommends_no_file(
        self, planner: Planner, tmp_path: Path, smollm_path: Path
    ) -> None:
        with smollm_path.open("rb") as file:
            (tmp_path / "part.gguf").write_bytes(file.read(4 << 20))
        result = planner("--measure", "part.gguf", "--ghost", "--context", 256, "--users", 1)
        assert (result.returncode, result.stderr) == (0, "")
        said = " ".join(result.stdout.split())
        assert "This is a ghost: the true shapes of part.gguf around empty weights" in said
        assert "It is gone: put the model itself in its place" in said
        assert "llama-server --model MODEL.gguf " in said
        assert files_below(tmp_path) == [tmp_path / "part.gguf"]


def test_a_cut_off_file_is_refused_and_a_ghost_of_it_offered(
    fails: Fails, engine: Callable[..., Path], tmp_path: Path, smollm_path: Path
) -> None:
    with smollm_path.open("rb") as file:
        (tmp_path / "part.gguf").write_bytes(file.read(4 << 20))
    sentence = fails(1, "--measure", "part.gguf", "--engine", engine())
    assert sentence.startswith("part.gguf is cut off: ")
    assert sentence.endswith("Finish the download, or measure a ghost of it with --ghost.")


@pytest.mark.parametrize("words", ["--measure --ghost nowhere.gguf", "measure nowhere.gguf --ghost"])
def test_a_ghost_of_nothing_names_the_catalogue(fails: Fails, engine: Callable[..., Path], words: str) -> None:
    sentence = fails(1, *words.split(), "--engine", engine())
    assert sentence.startswith(
        "There is no file nowhere.gguf, and the catalogue has no such model. It has smollm2-135m, "
    )


@pytest.mark.parametrize("name", ["gemma-3-270m", "Gemma 3 270M"])
@pytest.mark.parametrize("words", [("--measure", "--ghost"), ("--ghost", "--measure"), ("measure", "--ghost")])
def test_a_ghost_of_the_catalogue_goes_by_name_or_title(
    planner: Planner, engine: Callable[..., Path], own_home: Path, name: str, words: tuple[str, str]
) -> None:
    tested = f'case "$*" in *smoke-test-model*) exec {embedded_path()} "$@" ;; esac'
    path = engine(serve=f"{tested}; echo $@ >asked; echo 'error: it stops here'; exit 1")
    result = planner(*words, name, "--engine", path)
    assert result.returncode == 1
    assert "This is a ghost: the true shapes of Gemma 3 270M" in " ".join(result.stdout.split())
    assert "gemma-3-270m.ghost.gguf --ctx-size" in Path("asked").read_text()
    assert list(own_home.rglob("*.gguf")) == []


def test_one_model_is_measured_at_a_time(fails: Fails) -> None:
    assert "One model at a time, not a.gguf and b.gguf" in fails(2, "--measure", "a.gguf", "--ghost", "b.gguf")
    assert "Put --ghost behind measure" in fails(2, "--ghost", "--force", "measure")


# With broken engines ---------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Path]:
    """Writes a fake engine."""
    return lambda **behaviour: write_engine(tmp_path / "my-server", **behaviour)


def test_no_engine_at_all(fails: Fails, smollm_path: Path) -> None:
    sentence = fails(1, "--measure", smollm_path, embedded=False, library=False)
    assert sentence.startswith("No llama-server is found")
    assert "`planner plan` works without" in sentence


def test_an_engine_that_was_named_and_is_not_there(fails: Fails, smollm_path: Path) -> None:
    assert "no llama-server at /nowhere/llama-server" in fails(
        1, "--measure", smollm_path, "--engine", "/nowhere/llama-server"
    )
    assert "no llama-server at /nowhere/llama-server" in fails(
        1, "--measure", smollm_path, env={"PLANNER_ENGINE": "/nowhere/llama-server"}
    )


def test_an_engine_for_another_processor(fails: Fails, smollm_path: Path, tmp_path: Path) -> None:
    script = write_script(tmp_path / "s", "kill -ILL $$")
    sentence = fails(1, "--measure", smollm_path, "--engine", script)
    assert "died of SIGILL: it was built for a newer processor than this one" in sentence


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (f"echo '{MISSING_LIBRARY}' >&2; exit 127", "libcudart.so.12"),
        ("echo 'error: invalid argument: --kv-unified' >&2; exit 1", '"error: invalid argument: --kv-unified"'),
        ("kill -9 $$", "SIGKILL: something killed it, and not the kernel for want of memory"),
        ("kill -ILL $$", "SIGILL"),
    ],
)
def test_an_engine_that_dies_is_quoted(
    planner: Planner, engine: Callable[..., Path], smollm_path: Path, serve: str, words: str
) -> None:
    result = planner("--measure", smollm_path, *SMALL, "--engine", engine(serve=serve))
    assert result.returncode == 1
    assert result.stderr.startswith("planner: llama-server ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_engine_that_is_never_ready(planner: Planner, engine: Callable[..., Path], smollm_path: Path) -> None:
    arguments = ("--measure", smollm_path, *SMALL, "--ready-timeout", 1, "--json")
    result = planner(*arguments, "--engine", engine(serve="echo $$ >pid; exec sleep 600"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "was not ready after 1 seconds" in result.stderr
    assert "--ready-timeout SECONDS" in result.stderr
    assert not psutil.pid_exists(int(Path("pid").read_text()))


def test_nothing_is_started_that_does_not_fit(planner: Planner, engine: Callable[..., Path], smollm_path: Path) -> None:
    arguments = ("--measure", smollm_path, "--context", 200_000_000, "--users", 8)
    path = engine(serve="touch started; echo 'error: no memory'; exit 1")
    result = planner(*arguments, "--engine", path)
    assert result.returncode == 3
    assert result.stderr.startswith("planner: Nothing was started, since no launch fits: ")
    assert "--force" in result.stderr
    assert not Path("started").exists()
    forced = planner(*arguments, "--engine", path, "--force")
    assert forced.returncode == 1
    assert "error: no memory" in forced.stderr
    assert Path("started").exists()


def test_an_architecture_that_is_not_known_is_measured_by_force_alone(
    planner: Planner, engine: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "new.gguf").write_bytes(gguf(architecture="tomorrow") + bytes(64))
    result = planner("--measure", "new.gguf", "--engine", engine())
    assert result.returncode == 3
    assert "Nothing was started, since it is not known whether it fits" in result.stderr
    assert "'tomorrow' is not known to this version" in result.stderr
    assert "--force" in result.stderr


def test_a_record_that_cannot_be_kept_is_said_before_anything_is_measured(
    planner: Planner, engine: Callable[..., Path], smollm_path: Path
) -> None:
    path = engine(serve="touch started; exit 1")
    environment = {"PLANNER_DATA_DIR": "/proc/nowhere"}
    result = planner("--measure", smollm_path, *SMALL, "--engine", path, env=environment)
    assert result.returncode == 1
    assert "/proc/nowhere" in result.stderr
    assert "PLANNER_DATA_DIR" in result.stderr
    assert not Path("started").exists()


@pytest.mark.parametrize(
    "words", ["--context 4096", "--users 2 --force", "--ready-timeout 5", "--ghost", "--ghost a.gguf", "--soak 3"]
)
def test_options_of_a_measurement_need_one(fails: Fails, words: str) -> None:
    assert "needs --measure" in fails(2, *words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--measure {} --users 1,2 --fill 200%",
        "--users 1,2 --fill 200% --measure {}",
        "--measure={} --users 1,2 --fill 200%",
        "--users 1,2 --measure --fill 200% -- {}",
        "measure {} --users 1,2 --fill 200%",
    ],
)
def test_measure_takes_the_same_options_with_and_without_dashes(fails: Fails, smollm_path: Path, words: str) -> None:
    assert "'200%' is no part of a context" in fails(2, *words.format(smollm_path).split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--measure=-dash.gguf", "There is no file -dash.gguf"),
        ("--measure a --measure b", "One model at a time, not a and b"),
        ("--measure a --measure=b", "One model at a time, not a and b"),
        ("--json plan m.gguf --measure", "Put --json behind plan"),
        ("--measure=", "MODEL is empty"),
    ],
)
def test_odd_ways_to_write_it(fails: Fails, words: str, said: str) -> None:
    assert said in " ".join(str(fails(2 if "no file" not in said else 1, *words.split())).split())


def test_the_version_is_told_whatever_stands_beside_it(planner: Planner) -> None:
    assert planner("--version", "--measure").stdout.startswith("planner, version ")


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes them")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_were_closed_do_no_harm(smollm_path: Path, tmp_path: Path, closed: str) -> None:
    words = shlex.join(map(str, planner_command("plan", smollm_path, "--context", 512)))
    result = subprocess.run(["/bin/sh", "-c", f"{words} {closed}"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
