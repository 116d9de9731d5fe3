"""What holds for every architecture: the models of `tests/data/architectures.jsonl`, and real ones for weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import Hardware, Launch, MemoryPlan, Model, Verdict, predict
from planner.hardware import CPU_DEVICE, HOST_POOL, Device, Pool
from planner.launch import CACHE_TYPES
from planner.memory.placement import place
from planner.memory.weights import tied_output
from planner.model.architectures import UNSUPPORTED
from planner.units import GIB

N_VOCAB = 1000
LOGITS_BYTES = 4 * N_VOCAB
EVERY = settings(max_examples=150, deadline=None)


def read_models() -> list[Model]:
    """One model per line of the table, each with a small vocabulary and, where no rule looks at it, a feed-forward."""
    table = Path(__file__).parents[2] / "data" / "architectures.jsonl"
    models: list[Model] = []
    for line in table.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name = row["architecture"]
        keys = {"vocab_size": N_VOCAB, "feed_forward_length": 0 if "nemotron" in name else 512, **row["keys"]}
        metadata = {f"{name}.{key}": tuple(v) if isinstance(v, list) else v for key, v in keys.items()}
        models.append(made.model({"general.architecture": name, **metadata}))
    return models


ALL = read_models()
RUNNABLE = [model for model in ALL if model.architecture not in UNSUPPORTED]
MODELS = st.sampled_from(RUNNABLE)
CACHED = st.sampled_from([model for model in RUNNABLE if any(cache.layers for cache in model.layout.caches)])


def machine(*devices: str) -> Hardware:
    """A machine with these devices, each with memory of its own."""
    names = (*devices, HOST_POOL)
    return Hardware(
        pools=tuple(Pool(name=name, total_bytes=64 * GIB, usable_bytes=64 * GIB, source="test") for name in names),
        devices=(*(Device(name=name, pool=name) for name in devices), Device(name=CPU_DEVICE, pool=HOST_POOL)),
        cpu_features=frozenset({"avx2"}),
    )


HOST = machine()
REMOTE = machine("RPC0[10.0.0.1:50052]", "RPC0[10.0.0.2:50052]")
"""Devices that align as the processor does, and pad nothing else."""
MACHINES = st.sampled_from(
    [
        HOST,
        REMOTE,
        machine("CUDA0", "CUDA1"),
        machine("MTL0"),
        machine("Vulkan0", "SYCL0", "ROCm0"),
        machine("CANN0"),
        Hardware.simulate(ram=GIB, vram=[GIB], max_allocation=1 << 20),
    ]
)

CONTEXTS = st.integers(1, 200_000)
SLOTS = st.integers(1, 16)
TYPES = st.sampled_from(CACHE_TYPES)
KV_AND_STATE = ("kv", "state")


def kept(plan: MemoryPlan) -> int:
    """Bytes of caches and states, wherever they lie."""
    return sum(allocation.reserved_bytes for allocation in plan.allocations if allocation.component in KV_AND_STATE)


PLACED_LAUNCHES = made.launches(
    device=st.sampled_from([None, None, "none", "CUDA0", "CUDA1,CUDA0", "no such device", ""]),
    n_gpu_layers=st.one_of(st.none(), st.integers(-2, 1000)),
    split_mode=st.sampled_from(["layer", "none"]),
    main_gpu=st.integers(0, 3),
    tensor_split=st.lists(st.floats(0, 1e30), max_size=4).map(tuple),
    override_tensor=st.sampled_from([(), (("ffn", "CPU"),), (("(", "CPU"),), (("exps", "CUDA0"), ("", "CPU"))]),
    cpu_moe=st.booleans(),
    n_cpu_moe=st.integers(0, 100),
    n_cpu_ffn=st.integers(0, 100),
    kv_offload=st.booleans(),
    no_host=st.booleans(),
    spec_type=st.sampled_from(["none", "draft-mtp"]),
    spec_draft_n_max=st.integers(1, 20),
)
"""Every launch that makes sense, and many that llama.cpp refuses."""


@EVERY
@given(
    model=st.sampled_from(ALL),
    launch=PLACED_LAUNCHES,
    hardware=MACHINES,
    prompt=st.one_of(st.none(), st.integers(0, 300_000)),
)
def test_every_valid_launch_of_every_architecture_has_a_plan(
    model: Model, launch: Launch, hardware: Hardware, prompt: int | None
) -> None:
    plan = predict(model, launch, hardware, prompt_tokens=prompt)
    assert plan.verdict in Verdict and plan.verdict_reason
    assert (plan.verdict is Verdict.REFUSED) == bool(plan.refusal) == (plan.context is None)
    for allocation in plan.allocations:
        assert allocation.resident_bytes >= 0
        assert allocation.growth_bytes >= 0
        low, high = allocation.low_bytes, allocation.high_bytes
        assert (low or 0) <= allocation.reserved_bytes <= (allocation.reserved_bytes if high is None else high)
        assert allocation.reason
    names = {device.name for device in hardware.devices}
    assert {allocation.device for allocation in plan.allocations} <= names
    assert sum(device.total_bytes for device in plan.devices) == plan.bytes()


@EVERY
@given(model=MODELS, contexts=st.tuples(CONTEXTS, CONTEXTS), slots=SLOTS, cache_type=TYPES, unified=st.booleans())
def test_more_context_never_takes_fewer_bytes(
    model: Model, contexts: tuple[int, int], slots: int, cache_type: Any, unified: bool
) -> None:
    less, more = (
        predict(model, Launch.for_users(slots, context, unified=unified, cache_type=cache_type), HOST)
        for context in sorted(contexts)
    )
    assert less.bytes(component="state") == more.bytes(component="state")
    assert less.bytes(component="kv") <= more.bytes(component="kv")
    # A longer mask can hold the logits: then the compute buffer shrinks by them at most.
    assert less.bytes() <= more.bytes() + slots * LOGITS_BYTES


@EVERY
@given(model=MODELS, slots=st.tuples(SLOTS, SLOTS), context=CONTEXTS, cache_type=TYPES, unified=st.booleans())
def test_more_people_never_take_fewer_bytes(
    model: Model, slots: tuple[int, int], context: int, cache_type: Any, unified: bool
) -> None:
    less, more = (
        predict(model, Launch.for_users(count, context, unified=unified, cache_type=cache_type), HOST)
        for count in sorted(slots)
    )
    assert less.bytes(component="kv") <= more.bytes(component="kv")
    assert less.bytes(component="state") <= more.bytes(component="state")
    assert less.bytes(component="output") <= more.bytes(component="output")
    if not less.refusal:
        assert less.context is not None and more.context is not None
        # An ubatch is rounded up to whole slots, which may be a few tokens more for fewer people.
        rounding = max(slots) * less.bytes(component="compute") // less.context.n_ubatch
        assert less.bytes() <= more.bytes() + max(slots) * LOGITS_BYTES + rounding


@EVERY
@given(model=MODELS, ubatches=st.tuples(st.integers(1, 2048), st.integers(1, 2048)), context=CONTEXTS)
def test_a_larger_ubatch_never_takes_fewer_bytes_for_one_person(
    model: Model, ubatches: tuple[int, int], context: int
) -> None:
    less, more = (
        predict(model, Launch(ctx_size=context, parallel=1, ubatch_size=ubatch), HOST) for ubatch in sorted(ubatches)
    )
    assert less.bytes(component="kv") <= more.bytes(component="kv")
    assert less.bytes(component="state") == more.bytes(component="state")
    assert less.bytes() <= more.bytes() + LOGITS_BYTES


@EVERY
@given(model=CACHED, context=CONTEXTS, slots=SLOTS)
def test_a_coarser_cache_is_smaller_and_a_state_is_always_f32(model: Model, context: int, slots: int) -> None:
    plans = [
        predict(model, Launch.for_users(slots, context, cache_type=cache_type), HOST)
        for cache_type in ("q4_0", "q8_0", "f16", "f32")  # type: ignore[arg-type]
    ]
    if any(plan.refusal for plan in plans):
        assert not plans[2].refusal and not plans[3].refusal  # heads that are not whole blocks
        plans = plans[2:]
    sizes = [plan.bytes(component="kv") for plan in plans]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 2 * sizes[-2]
    assert len({plan.bytes(component="state") for plan in plans}) == 1


# Wherever layers lie ---------------------------------------------------------------------------------------

PLACEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "n_gpu_layers": st.one_of(st.none(), st.integers(0, 40)),
    "tensor_split": st.lists(st.floats(0, 10), max_size=3).map(tuple),
    "kv_offload": st.booleans(),
    "split_mode": st.sampled_from(["layer", "none"]),
    "main_gpu": st.integers(0, 1),
}


@EVERY
@given(model=MODELS, placement=st.fixed_dictionaries(PLACEMENTS), slots=SLOTS, context=CONTEXTS, cache_type=TYPES)
def test_caches_and_states_are_as_large_wherever_they_lie(
    model: Model, placement: dict[str, Any], slots: int, context: int, cache_type: Any
) -> None:
    plain: dict[str, Any] = {
        "ctx_size": context,
        "parallel": slots,
        "cache_type_k": cache_type,
        "cache_type_v": cache_type,
    }
    here = predict(model, Launch(**plain), HOST)
    there = predict(model, Launch(**plain, **placement), REMOTE)
    assert here.refusal == there.refusal
    assert kept(here) == kept(there)
    for component in KV_AND_STATE:
        parts = [there.bytes(component=component, device=device.name) for device in REMOTE.devices]  # type: ignore[arg-type]
        assert sum(parts) == there.bytes(component=component)  # type: ignore[arg-type]


def llama_with_weights(*, tied: bool) -> Model:
    """A llama of 8 layers whose tensors all are multiples of 32 bytes, `rope_freqs` included."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (64, 320), "rope_freqs.weight": (16,)}
    for layer in range(8):
        for name, shape in (("attn_norm", (64,)), ("attn_k", (64, 32)), ("ffn_up", (64, 128))):
            shapes[f"blk.{layer}.{name}.weight"] = shape
    shapes["output_norm.weight"] = (64,)
    if not tied:
        shapes["output.weight"] = (64, 320)
    return made.model({**made.llama(block_count=8, embedding_length=64).metadata}, shapes)


@EVERY
@given(tied=st.booleans(), placement=st.fixed_dictionaries({**PLACEMENTS, "n_cpu_ffn": st.integers(0, 9)}))
def test_weights_are_as_large_wherever_they_lie_but_for_copies(tied: bool, placement: dict[str, Any]) -> None:
    model = llama_with_weights(tied=tied)
    plan = predict(model, Launch(load_mode="none", **placement), REMOTE)
    table, frequencies = model.tensor("token_embd.weight"), model.tensor("rope_freqs.weight")
    assert table is not None and frequencies is not None
    at_work = place(8, Launch(**placement), REMOTE)
    # The table once more as the output matrix on a device; the frequencies once wherever there are layers.
    copies = len(set(at_work.layers[:-1])) - 1
    table_again = tied and at_work.output != CPU_DEVICE
    expected = model.tensor_bytes + table.nbytes * table_again + frequencies.nbytes * copies
    assert plan.bytes(component="weights") == expected


@EVERY
@given(count=st.integers(0, 40), split=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_weights_of_real_models_are_as_large_wherever_they_lie_but_for_the_tied_table(
    gemma: Model, smollm: Model, count: int, split: tuple[int, int]
) -> None:
    for model in (gemma, smollm):
        here = predict(model, Launch(load_mode="none", repack=False), HOST).bytes(component="weights")
        launch = Launch(load_mode="none", repack=False, n_gpu_layers=count, tensor_split=split)
        there = predict(model, launch, REMOTE).bytes(component="weights")
        tied = tied_output(model)
        assert tied is not None
        assert there - here == (tied.nbytes if count else 0)
