"""Dry runs by a real llama-server are what it then really reserves, to the whole MiB; by broken ones, a sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from fake_engines import write_engine
from large_ghost import write_8b

from planner import Launch, Model
from planner.engine.arguments import server_arguments
from planner.engine.dry_run import DryRun, DryRunCache, dry_run
from planner.engine.dry_run_server import read_refusal, read_rows, server_dry_run
from planner.engine.find import Engine, identify
from planner.engine.log import EngineLog, plain_line
from planner.engine.process import Cancelled
from planner.engine.server import LlamaServer
from planner.errors import EngineError
from planner.units import MIB

BASE = Launch(ctx_size=8192, parallel=2, kv_unified=False)
LAUNCHES = {
    "two slots": BASE,
    "slots left out": Launch(ctx_size=4096),
    "trained context for each": Launch(parallel=2, kv_unified=False, cache_type_k="q4_0", cache_type_v="q4_0"),
    "trained context for all": Launch(parallel=2, kv_unified=True, cache_type_k="q4_0", cache_type_v="q4_0"),
    "no flash attention": replace(BASE, flash_attn="off", ctx_size=2048),
    "embeddings": replace(BASE, embeddings=True, ctx_size=1024, ubatch_size=128),
    "unified, wide": replace(BASE, parallel=4, kv_unified=True, ubatch_size=1024),
    "whole windows, read": replace(BASE, swa_full=True, load_mode="none"),
}

EVENT = (
    '{"type":"fit_memory_breakdown","data":{"unit":"MiB","rows":['
    '{"kind":"device","name":"CUDA0","total":24077,"free":945,"self":19187,"model":17904,"context":384,"compute":898},'
    '{"kind":"host","name":"Host","self":299,"model":222,"context":54,"compute":23},'
    '{"kind":"buffer_type","name":"CPU_REPACK","self":12,"model":12,"context":0,"compute":0}]}}\n'
)
TABLE = """\
0.00.1 I common_memory_breakdown_print: | memory breakdown [MiB]  | total   free     self   model   context   compute    unaccounted |
0.00.1 I common_memory_breakdown_print: |   - CUDA0 (RTX 4090)    | 24077 =  945 + (19187 = 17904 +     384 +     898) +        3945 |
0.00.1 I common_memory_breakdown_print: |   - Host                |                   299 =   222 +      54 +      23                |
0.00.1 I common_memory_breakdown_print: |   - CPU_REPACK          |                    12 =    12 +       0 +       0                |
"""  # noqa: E501


@pytest.fixture
def cache(tmp_path: Path) -> DryRunCache:
    """An empty cache."""
    return DryRunCache(tmp_path / "answers.jsonl")


def sizes(answer: DryRun) -> dict[str, int]:
    """Whole MiB by the first word of what they are for; on the only device."""
    assert {figure.device for figure in answer.figures} == {"CPU"}
    return {figure.components[0]: figure.size_bytes // MIB for figure in answer.figures}


def reserved(engine: Engine, model: Model, launch: Launch) -> EngineLog:
    """What the server says when it has really started."""
    command = (str(engine.path), *server_arguments(launch, model.path, engine.flags))
    with LlamaServer(command, ready_timeout_s=120) as server:
        server.wait_ready()
        return server.log


@pytest.mark.engine
@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES.keys())
@pytest.mark.parametrize("name", ["gemma", "smollm"])
def test_it_is_what_the_server_then_reserves(
    name: str, launch: Launch, engine: Engine, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(name)
    answer = server_dry_run(model, launch, engine)
    log = reserved(engine, model, launch)
    assert (answer.way, answer.build, answer.refusal) == ("llama-server", engine.build, "")
    said = sizes(answer)
    assert said["kv"] == (log.buffer_bytes("kv") or 0) // MIB
    assert said["compute"] == (log.buffer_bytes("compute") or 0) // MIB
    if launch.load_mode == "none":
        assert said["weights"] == sum(buffer.size_bytes // MIB for buffer in log.of_kind("model"))


@pytest.mark.engine
def test_nothing_is_started_for_what_was_answered(engine: Engine, smollm: Model, cache: DryRunCache) -> None:
    first = dry_run(smollm, BASE, engine, cache=cache)
    # The program's size and time decide, so one that can no longer run still has its answers.
    broken = replace(engine, flags=frozenset())
    assert dry_run(smollm, BASE, broken, cache=cache) == first
    with pytest.raises(EngineError, match="has no --fit"):
        dry_run(smollm, replace(BASE, ctx_size=512), broken, cache=cache)


@pytest.mark.engine
def test_a_refusal_is_an_answer_in_its_own_words(engine: Engine, smollm: Model) -> None:
    launch = replace(BASE, flash_attn="off", cache_type_v="q8_0")
    answer = server_dry_run(smollm, launch, engine)
    assert answer.figures == ()
    assert "quantized V cache requires flash_attn" in answer.refusal


@pytest.mark.engine
def test_a_ghost_of_an_8b_says_what_it_would_hold(engine: Engine, tmp_path: Path) -> None:
    model = Model.open(write_8b(tmp_path / "8b.gguf"))
    answer = server_dry_run(model, BASE, engine)
    said = sizes(answer)
    assert said["weights"] == model.tensor_bytes // MIB
    assert said["kv"] == 1024


@pytest.mark.engine
def test_a_header_is_asked_about_as_the_whole_file(engine: Engine, tmp_path: Path, own_home: Path) -> None:
    cut = Model.open(write_8b(tmp_path / "cut.gguf", whole=False), header_only=True)
    whole = Model.open(write_8b(tmp_path / "whole.gguf"))
    assert server_dry_run(cut, BASE, engine) == server_dry_run(whole, BASE, engine)
    assert list(own_home.rglob("*.gguf")) == []


@pytest.mark.engine
def test_no_process_is_left(engine: Engine, smollm: Model) -> None:
    server_dry_run(smollm, BASE, engine)
    assert [p for p in psutil.Process().children(recursive=True) if "llama-server" in " ".join(p.cmdline())] == []


@pytest.mark.engine
def test_it_stops_when_the_person_asks(engine: Engine, smollm: Model) -> None:
    with pytest.raises(Cancelled):
        server_dry_run(smollm, BASE, engine, cancelled=lambda: True)


@pytest.mark.parametrize(
    ("serve", "sentence"),
    [
        ("echo 'E failed to load model'; exit 1", "llama-server ended with exit code 1"),
        ("kill -ABRT $$", "llama-server died of SIGABRT: it aborted"),
        ("echo 'load_tensors: loading model tensors'; exec sleep 60", "loads the model without a dry run first"),
    ],
)
def test_an_engine_that_gives_no_answer_is_a_sentence(tmp_path: Path, smollm: Model, serve: str, sentence: str) -> None:
    engine = identify(write_engine(tmp_path / "llama-server", serve=serve), "option")
    engine = replace(engine, flags=engine.flags | {"--fit"})
    with pytest.raises(EngineError, match=sentence):
        server_dry_run(smollm, BASE, engine)


def test_an_engine_that_is_too_old_is_told_before_it_starts(tmp_path: Path, smollm: Model) -> None:
    engine = identify(write_engine(tmp_path / "llama-server"), "option")
    with pytest.raises(EngineError, match="no --fit"):
        server_dry_run(smollm, BASE, engine)


@pytest.mark.parametrize("text", [EVENT, TABLE + "0.00.2 I further\n", EVENT + EVENT.replace("54", "99")])
def test_both_forms_of_the_first_table_are_read(text: str) -> None:
    rows = read_rows(text)
    mib = [(row.device, row.model_bytes // MIB, row.context_bytes // MIB, row.compute_bytes // MIB) for row in rows]
    assert mib == [
        ("CUDA0", 17904, 384, 898),
        ("CPU", 222, 54, 23),
        ("CPU", 12, 0, 0),
    ]


@pytest.mark.parametrize("text", ["", TABLE, EVENT[:80], '{"type":"fit_memory_breakdown"}', EVENT.replace("54", '"x"')])
def test_what_is_still_being_written_is_waited_for(text: str) -> None:
    assert read_rows(text) == []


def test_the_words_of_a_refusal_leave_out_that_the_fit_failed() -> None:
    log = """\
0.00.424.343 E llama_init_from_model: failed to initialize the context: n_seq_max must be <= 256
0.00.483.639 E common_fit_params: encountered an error while trying to fit params to free device memory: x
0.00.490.001 E cmn  common_init_: failed to create context with model '/cache/ghosts/ghost.1.x/m.ghost.gguf'
0.00.490.002 E srv    load_model: failed to create_context with model '/cache/ghosts/ghost.1.x/m.ghost.gguf'
0.00.490.003 E srv  llama_server: exiting due to model loading error
"""
    assert read_refusal(log) == "llama_init_from_model: failed to initialize the context: n_seq_max must be <= 256"
    log = """\
0.00.1 E llama_model_load: error loading model: check_tensor_dims: tensor 'x' has wrong shape
0.00.2 E llama_model_load_from_file_impl: failed to load model
0.00.3 E srv    load_model: failed to load model, '/cache/ghosts/ghost.1.x/m.ghost.gguf'
"""
    assert read_refusal(log).endswith("error loading model: check_tensor_dims: tensor 'x' has wrong shape")


def test_a_json_line_is_the_line_that_it_would_have_been() -> None:
    line = '{"type":"log","time":61002003,"level":"error","msg":"load: no\\n"}\n'
    assert plain_line(line) == "1.01.002.003 E load: no\n"
    for other in (EVENT, "plain\n", '{"type":"log"\n', '{"type":"log","time":"x","level":"","msg":1}\n'):
        assert plain_line(other) == other
