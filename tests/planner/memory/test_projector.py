"""Projectors for images: held against what llama.cpp reserves for files of real shapes with weights of zero.

`tests/data/projectors.jsonl` is what `mtmd_get_memory_usage` of build b11434 says of the file, less its tensors, with
and without flash attention: real shapes first, then random ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_files import BOOL, STRING, U32, complete
from projector_files import Shape, write_projector

from planner import Hardware, Launch, MemoryPlan, Model, Verdict, predict
from planner.engine.arguments import server_arguments
from planner.engine.dry_run_server import server_dry_run
from planner.engine.find import Engine
from planner.engine.server import LlamaServer
from planner.errors import ModelError
from planner.memory.allocator import Node, buffer_bytes
from planner.memory.projector import read_encoder
from planner.memory.vision import GRAPHS, encoder_bytes
from planner.model.projector import open_projector
from planner.reconcile.dry_comparison import compare
from planner.units import GIB, MIB

TRUTH = Path(__file__).parents[2] / "data" / "projectors.jsonl"
MACHINE = Hardware.simulate(ram=16 * GIB)
CARD = Hardware.simulate(ram=16 * GIB, vram=[8 * GIB])
LAUNCH = Launch(ctx_size=512, parallel=1, cache_ram=0, ctx_checkpoints=0, mmproj="mmproj.gguf")


def measured(kind: str) -> list[tuple[Shape, bool, int]]:
    rows = [json.loads(line) for line in TRUTH.read_text(encoding="utf-8").splitlines()]
    return [(shape_of(row), row["flash_attention"], row["compute_bytes"]) for row in rows if row["kind"] == kind]


def shape_of(row: dict[str, Any]) -> Shape:
    shape = {name: value for name, value in row.items() if name not in ("flash_attention", "compute_bytes")}
    return Shape(**{**shape, "deep_layers": tuple(shape.get("deep_layers", ()))})


def projector(folder: Path, **shape: Any) -> Model:
    return open_projector(write_projector(folder / "mmproj.gguf", Shape(**shape)))


def plan(model: Model, mmproj: Model, hardware: Hardware = MACHINE, **settings: Any) -> MemoryPlan:
    return predict(model, replace(LAUNCH, **settings), hardware, projector=mmproj)


def held(plan: MemoryPlan) -> dict[tuple[str, str], int]:
    return {(a.device, a.buffer): a.reserved_bytes for a in plan.allocations if a.component == "projector"}


@pytest.mark.parametrize("kind", sorted(GRAPHS))
def test_the_compute_buffer_of_every_known_kind_is_exact_to_the_byte(kind: str, tmp_path: Path) -> None:
    cases = measured(kind)
    assert len(cases) >= 16
    for shape, flash_attention, compute_bytes in cases:
        opened = open_projector(write_projector(tmp_path / "mmproj.gguf", shape))
        encoder = read_encoder(opened, flash_attention=flash_attention)
        assert encoder is not None
        assert encoder_bytes(encoder)[0] == compute_bytes, (shape, flash_attention)


def test_a_card_holds_what_a_public_log_says(smollm: Model, tmp_path: Path) -> None:
    """Qwen3-VL-8B on an NVIDIA card: `estimated worst-case memory usage of mmproj is 1502.33 MiB`; and of the encoder
    of Qwen3.6-27B on CUDA and Vulkan: `compute buffer size = 248.10 MiB`, and 24.93 on the CPU.
    """
    tower = {"kind": "qwen3vl_merger", "image": 768, "patch": 16, "layers": 27, "width": 1152, "heads": 16, "ffn": 4304}
    wide = replace(smollm.header, metadata={**smollm.metadata, "llama.embedding_length": 4096})
    model = Model(path=smollm.path, header=wide)
    sizes = held(plan(model, projector(tmp_path, **tower, out=4096, deep_layers=(8, 16, 24)), CARD))
    assert f"{sum(sizes.values()) / MIB:.2f}" == "1502.33"
    sizes = held(plan(model, projector(tmp_path, **tower, out=4096), CARD))
    assert f"{sizes['CUDA0', 'mmproj compute'] / MIB:.2f}" == "248.10"
    assert f"{sizes['CPU', 'mmproj compute'] / MIB:.2f}" == "24.93"


@pytest.mark.engine
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        (Shape(kind="idefics3", width=192, heads=3, ffn=768, image=280), {}),
        (Shape(kind="mlp", width=128, ffn=512, image=224, layers=3, merge=1, class_token=True), {"flash_attn": "off"}),
    ],
)
def test_a_real_server_holds_what_the_plan_says(
    shape: Shape, settings: dict[str, Any], tmp_path: Path, smollm: Model, engine: Engine
) -> None:
    path = write_projector(tmp_path / "mmproj.gguf", shape)
    launch = replace(LAUNCH, mmproj=str(path), **settings)
    opened = open_projector(path)
    sizes = held(predict(smollm, launch, MACHINE, projector=opened))
    with LlamaServer(
        (str(engine.path), *server_arguments(launch, smollm.path, engine.flags)), ready_timeout_s=60
    ) as server:
        server.wait_ready()
        log = server.quiet_log(0.2)
        text = server.log_text
    [weights] = re.findall(r"load_hparams: model size:\s+(\S+) MiB", text)
    assert weights == f"{opened.tensor_bytes / MIB:.2f}"  # without the padding between them
    assert 0 <= sizes["CPU", "mmproj"] - opened.tensor_bytes < 32 * len(opened.tensors)
    [compute] = re.findall(r"compute_meta:\s+CPU compute buffer size =\s+(\S+) MiB", text)
    assert compute == f"{sizes['CPU', 'mmproj compute'] / MIB:.2f}"
    assert len(log.of_kind("compute")) == 1  # the model's own alone


def test_all_of_it_lies_on_the_first_accelerator_or_on_the_processor(smollm: Model, tmp_path: Path) -> None:
    opened = projector(tmp_path, image=224)
    image_bytes = 224 * 224 * 3 * 4
    assert held(plan(smollm, opened, CARD)).keys() == {
        ("CUDA0", "mmproj"),
        ("CUDA0", "mmproj compute"),
        ("CPU", "mmproj compute"),
    }
    assert held(plan(smollm, opened, CARD))["CPU", "mmproj compute"] == image_bytes
    for settings in ({"mmproj_offload": False}, {"device": "none"}):
        assert {device for device, _ in held(plan(smollm, opened, CARD, **settings))} == {"CPU"}


def test_scores_are_kept_without_flash_attention(smollm: Model, tmp_path: Path) -> None:
    opened = projector(tmp_path, image=448, merge=4)
    on, off = (held(plan(smollm, opened, flash_attn=word))["CPU", "mmproj compute"] for word in ("auto", "off"))
    assert off - on > 1024 * 1024 * 4


def test_nothing_of_the_compute_buffer_is_in_memory_before_the_first_image(smollm: Model, tmp_path: Path) -> None:
    opened = projector(tmp_path)
    fresh = predict(smollm, LAUNCH, MACHINE, prompt_tokens=1, projector=opened)
    resident = {a.buffer: a.resident_bytes for a in fresh.allocations if a.component == "projector"}
    assert resident == {"mmproj": held(fresh)["CPU", "mmproj"], "mmproj compute": 0}


@pytest.mark.parametrize(
    ("shape", "grows"),
    [
        ({"kind": "idefics3"}, False),
        ({"kind": "internvl", "image": 448, "class_token": True}, True),
        ({"kind": "qwen3vl_merger", "patch": 16}, True),
    ],
)
def test_encoders_that_take_larger_images_or_several_tiles_grow(
    smollm: Model, tmp_path: Path, shape: dict[str, Any], grows: bool
) -> None:
    assert (plan(smollm, projector(tmp_path, **shape)).growth_bytes(component="projector") > 0) is grows


def test_a_kind_that_was_not_verified_has_exact_weights_and_no_verdict(smollm: Model, tmp_path: Path) -> None:
    pairs = [
        ("general.architecture", STRING, "clip"),
        ("clip.projector_type", STRING, "tomorrow"),
        ("clip.has_vision_encoder", BOOL, True),
    ]
    file = tmp_path / "mmproj.gguf"
    file.write_bytes(complete(pairs, [("mm.0.weight", (64, 33), 0, 0)], 64 * 33 * 4))
    said = plan(smollm, open_projector(file))
    assert held(said) == {("CPU", "mmproj"): 64 * 33 * 4}
    assert (said.verdict, "'tomorrow'" in said.verdict_reason) == (Verdict.UNKNOWN, True)


@pytest.mark.parametrize(
    "pair",
    [
        ("clip.vision.feature_layer", U32, 3),
        ("clip.has_audio_encoder", BOOL, True),
    ],
)
def test_an_encoder_with_more_to_it_is_not_guessed_at(tmp_path: Path, pair: tuple[str, int, object]) -> None:
    opened = projector(tmp_path)
    more = replace(opened.header, metadata={**opened.metadata, pair[0]: pair[2]})  # type: ignore[dict-item]
    assert read_encoder(opened) is not None
    assert read_encoder(Model(path=opened.path, header=more)) is None
    other = replace(opened.header, tensors=(*opened.tensors, replace(opened.tensors[0], name="v.blk.0.attn_sinks")))
    assert read_encoder(Model(path=opened.path, header=other)) is None


@pytest.mark.engine
def test_a_dry_run_says_what_is_not_known_of_a_projector(smollm: Model, tmp_path: Path, engine: Engine) -> None:
    opened = projector(tmp_path, kind="lfm2", image=256, patch=16)
    launch = replace(LAUNCH, mmproj=str(opened.path))
    before = predict(smollm, launch, MACHINE, projector=opened)
    assert before.verdict is Verdict.UNKNOWN
    answer = server_dry_run(smollm, launch, engine)
    assert answer.projector_bytes is not None
    found = compare(smollm, before, answer)
    assert found.warnings == ()
    assert found.plan.verdict is Verdict.FITS
    assert abs(found.plan.bytes(component="projector") - answer.projector_bytes) < MIB // 64
    known = projector(tmp_path)
    agreed = compare(smollm, plan(smollm, known), server_dry_run(smollm, launch, engine))
    assert [row.delta_bytes for row in agreed.rows if row.components == ("projector",)] == [0]


def test_a_header_that_says_too_little_is_told_in_words(smollm: Model, tmp_path: Path) -> None:
    opened = projector(tmp_path)
    metadata = {key: value for key, value in opened.metadata.items() if key != "clip.vision.image_size"}
    less = Model(path=opened.path, header=replace(opened.header, metadata=metadata))
    said = plan(smollm, less)
    assert said.verdict is Verdict.UNKNOWN
    assert "clip.vision.image_size" in said.verdict_reason


def test_a_projector_of_another_model_is_refused(gemma: Model, tmp_path: Path) -> None:
    said = plan(gemma, projector(tmp_path, out=576))
    assert said.verdict is Verdict.REFUSED
    assert "576" in said.verdict_reason and "640" in said.verdict_reason


def test_it_is_counted_beside_an_architecture_that_is_not_known_too(smollm: Model, tmp_path: Path) -> None:
    tomorrow = replace(smollm.header, metadata={**smollm.metadata, "general.architecture": "tomorrow"})
    said = plan(Model(path=smollm.path, header=tomorrow), projector(tmp_path))
    assert held(said).keys() == {("CPU", "mmproj"), ("CPU", "mmproj compute")}
    assert said.verdict is Verdict.UNKNOWN


def test_a_launch_whose_projector_was_not_read_has_no_verdict(smollm: Model) -> None:
    assert predict(smollm, LAUNCH, MACHINE).verdict is Verdict.UNKNOWN


def test_a_model_is_no_projector(smollm_path: Path) -> None:
    with pytest.raises(ModelError, match="no projector"):
        open_projector(smollm_path)


def test_a_sum_is_written_over_what_nothing_else_reads() -> None:
    source = Node((8,), is_input=True)
    first = Node((8,), sources=(source,))
    second = Node((8,), sources=(first,), in_place=True)
    last = Node((8,), sources=(second, first), in_place=True)
    assert buffer_bytes([first, second], [source], 32) == 2 * 32
    assert buffer_bytes([first, second, last], [source], 32) == 2 * 32  # the input's place is free again
    assert buffer_bytes([first, Node((8,), sources=(first,))], [source], 32) == 2 * 32
    assert buffer_bytes([first, Node((9,), sources=(first,))], [source], 32) == 4 * 32
