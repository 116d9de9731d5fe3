"""A second real llama-server, half a year older than the embedded one: nothing is true of one build alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import Launch, Model
from planner.engine.arguments import server_arguments
from planner.engine.dry_run_server import server_dry_run
from planner.engine.find import Engine, identify, parse_flags
from planner.engine.smoke import smoke_test
from planner.errors import EngineError
from planner.launch import resolve_context
from planner.measure import measure
from planner.units import MIB
from tools.engines import SECOND_BUILD

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

HELP = Path(__file__).parents[2] / "data" / "help" / "b9444.txt"

EVERYTHING = Launch(
    ctx_size=1024,
    parallel=2,
    kv_unified=True,
    cache_type_k="q8_0",
    cache_type_v="q4_0",
    batch_size=256,
    ubatch_size=64,
    swa_full=True,
    repack=False,
    load_mode="none",
    cache_ram=16,
    ctx_checkpoints=2,
    device="none",
    n_gpu_layers=4,
    override_tensor=(("ffn_up", "CPU"),),
    cpu_moe=True,
    kv_offload=False,
    no_host=True,
)
"""A launch of nearly all that can be asked for, with what newer builds spell differently."""


def test_it_is_another_build_than_the_embedded_one(engine: Engine, second_engine: Engine) -> None:
    assert second_engine.version.startswith(f"{SECOND_BUILD} (")
    assert second_engine.build != engine.build
    assert (second_engine.backends, second_engine.devices) == (("CPU",), ())
    assert {"--mmap", "--no-mmap", "--mlock"} <= second_engine.flags - engine.flags
    assert {"--load-mode", "--n-cpu-ffn", "--log-jsonl"} <= engine.flags - second_engine.flags


def test_its_help_is_the_one_that_other_tests_read(second_engine: Engine) -> None:
    """That one was printed by a build without RPC, which lists no option for it."""
    assert second_engine.flags - parse_flags(HELP.read_text(encoding="utf-8")) == {"--rpc"}


def test_it_decodes_a_token_once(second_engine: Engine, tmp_path: Path) -> None:
    kept = tmp_path / "engines.jsonl"
    smoke_test(second_engine, kept=kept)
    before = kept.read_bytes()
    assert b'"works":true' in before
    smoke_test(second_engine, kept=kept)
    assert kept.read_bytes() == before


def test_it_takes_everything_as_its_help_spells_it(second_engine: Engine, smollm: Model) -> None:
    arguments = server_arguments(EVERYTHING, smollm.path, second_engine.flags)
    assert "--no-mmap" in arguments
    assert "--load-mode" not in arguments
    answer = server_dry_run(smollm, EVERYTHING, second_engine)
    assert answer.refusal == ""
    context = resolve_context(EVERYTHING, smollm.hyperparameters.n_ctx_train)
    kv = context.n_ctx * 30 * 192 * (34 + 18) // 32
    assert [f.size_bytes for f in answer.figures if "kv" in f.components] == [kv // MIB * MIB]


def test_what_it_lacks_is_refused_before_anything_is_started(second_engine: Engine, smollm: Model) -> None:
    launch = Launch(ctx_size=512, parallel=1, n_cpu_ffn=1)
    with pytest.raises(EngineError, match=r"^This llama-server knows no --n-cpu-ffn, which the launch needs\. "):
        measure(smollm, launch, second_engine)


def test_a_program_is_not_taken_for_another_in_its_place(engine: Engine, second_engine: Engine, tmp_path: Path) -> None:
    """A link that first leads to the one and then to the other, as an update would have it."""
    link = tmp_path / "llama-server"
    for real in (engine, second_engine, engine):
        link.unlink(missing_ok=True)
        link.symlink_to(real.path)
        assert identify(link, "option").version == real.version
