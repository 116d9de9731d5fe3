"""Compute and output buffers, in closed form.

llama.cpp lays its graph out with a best-fit allocator (`ggml/src/ggml-alloc.c`), so a buffer is the largest
sum of tensors alive at once. That is one of a few moments, which `planner.memory.graph` sizes; here they are
put on devices, with the range that held in all that llama.cpp is known to have reserved.

Source: `src/llama-context.cpp` (`sched_reserve`, `graph_reserve`, `output_reserve`),
`ggml/src/ggml-backend.cpp` (splits, copies of a pipeline, `op_offload`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.hardware import CPU_DEVICE, Hardware, kind_of_device
from planner.launch import Launch, ResolvedContext
from planner.memory.kv import F32
from planner.memory.peaks import GraphSizes
from planner.memory.placement import Placement, used_devices
from planner.memory.plan import Allocation
from planner.model.hyperparameters import Hyperparameters
from planner.units import format_mib

_PIPELINE_COPIES = 4
"""GGML_SCHED_MAX_COPIES: copies of every input while several devices work as a pipeline."""
_LATER_STATES = 3
"""Hidden states beside the peak, on a device of a pipeline that gets its layers' input from another."""


@dataclass(frozen=True, slots=True)
class Slack:
    """How far a buffer may be from the formula, each way: a fraction of it, and whole hidden states."""

    below: float
    states_below: float
    above: float
    states_above: float


RANGES: Mapping[str, Slack] = {
    # Met exactly; now and then the allocator leaves a gap of a hidden state, or older builds one input less.
    "plain": Slack(0.01, 1.1, 0.01, 1.1),
    # Small feed-forwards: their product finds a place that attention left, or does not.
    "narrow": Slack(0.02, 2.6, 0.02, 2.6),
    # Shared experts and routers differ by architecture.
    "experts": Slack(0.02, 3.1, 0.02, 2.1),
    # Scores decide; queries and results find a free place or not.
    "scores": Slack(0.02, 2.1, 0.02, 3.1),
    # Latent queries and values come in several sizes, and leave gaps of these sizes.
    "latent": Slack(0.05, 4.1, 0.05, 4.1),
    # Indexers (DeepSeek-V3.2, GLM-5): which of their tensors find a place depends on the context.
    "sparse": Slack(0.12, 4, 0.15, 6),
    # MiniMax-M3: fitted to one full-size model; several streams share what they score with.
    "blocks": Slack(0.45, 4, 0.12, 6),
    # DeepSeek-V4: fitted to one full-size model.
    "compressed": Slack(0.2, 4, 0.5, 8),
    # Qwen4 and GLM-5-Next: fitted to small models alone.
    "pooled": Slack(0.6, 4, 1.2, 8),
    # What finds a place that another tensor left depends on the sequences.
    "recurrent": Slack(0.05, 2.1, 0.1, 3.1),
    # The same beside attention.
    "hybrid": Slack(0.05, 3.1, 0.1, 5.1),
    # The second graph of a launch that guesses ahead: met exactly, and known from one public log.
    "draft": Slack(0.2, 1.1, 0.2, 2.1),
    # Without a cache: diffusion models were compared, bert and its kin not.
    "encoder": Slack(0.03, 2.1, 0.03, 2.1),
}
"""By the kind of graph, as seen in what llama.cpp reserved."""
_PASSED_ON = Slack(0.01, 0.2, 0.01, 1.2)
"""Of a host that computes nothing: its inputs are known."""
_PLACED: Mapping[str, Slack] = {
    # Builds before tokens and embeddings could be mixed have two inputs less on the host, five in a pipeline.
    "host": Slack(0, 2, 0, 0),
    "pipeline": Slack(0, 8.1, 0, 1),
    # A later device gets the same from all builds.
    "later": Slack(0.02, 1, 0.02, 1),
    # Where a graph is cut, results are copied to the next device: how many depends on the layer.
    "partial": Slack(0.05, 2, 0.05, 3),
    # With the host's weights: one matrix at a time, seldom three.
    "borrower": Slack(0.05, 4, 0.05, 4),
    # Tensors that were moved one by one cut it anywhere.
    "moved": Slack(0.6, 6, 0.4, 8),
}
"""What comes on top where a graph is spread over devices."""

_BORROWING = ("cuda", "rocm", "vulkan", "sycl")
"""Back ends with `offload_op`. Metal has it, too, and reads the host's memory as it is."""
_LEAST_BORROWING = 32
_SCATTERED = ("blocks", "compressed", "pooled")
"""Graphs of which it is not known what crosses between devices."""


def plan_compute(
    reserved: GraphSizes,
    at_work: GraphSizes,
    placement: Placement,
    launch: Launch,
    *,
    hardware: Hardware | None = None,
    largest_matrix: int = 0,
) -> list[Allocation]:
    """One compute buffer per device that computes: reserved for the whole context, in memory as far as used.

    `hardware` tells which devices the launch uses, layers or not. `largest_matrix` are the bytes of the largest
    weight of a layer, which a card borrows where it lies on the host.
    """
    devices = tuple(dict.fromkeys(device for device in placement.layers if device != CPU_DEVICE))
    if not devices:
        return [_compute(CPU_DEVICE, reserved, reserved.host_total(), at_work.host_total(), _host_reason(reserved))]
    role = _Role.of(placement, launch, devices, hardware)
    allocations = []
    for device in devices:
        size, used = (_device_size(sizes, device, placement, role) for sizes in (reserved, at_work))
        reason = _device_reason(reserved, role.pipelined)
        above = 0
        if device == role.borrower:
            size, used = (_borrower_size(sizes, device, largest_matrix) for sizes in (reserved, at_work))
            above = 2 * largest_matrix
        if above:
            reason += f", beside the feed-forward {format_mib(largest_matrix)} MiB of a matrix that lies on the host"
        allocations.append(_compute(device, reserved, size, used, reason, role=role, above=above))
    size, used = (_host_size(sizes, placement, role) for sizes in (reserved, at_work))
    computes = role.layers_on_host and not role.borrower
    reason = _host_reason(reserved) if computes else "attention masks and inputs, which the devices copy"
    allocations.append(_compute(CPU_DEVICE, reserved, size, used, reason, role=role))
    return allocations


@dataclass(frozen=True, slots=True)
class _Role:
    """How the devices and the host share the work."""

    devices: tuple[str, ...]
    layers_on_host: bool
    matrices_on_host: bool
    """Whether the feed-forward of some layers on a device has its weights on the host."""
    overridden: bool
    """Whether tensors were moved one by one, or caches away from their layers."""
    several: bool
    pipelined: bool
    borrower: str = ""
    """The device that computes with the host's weights, one matrix at a time (`op_offload`, 32 tokens or more)."""

    @classmethod
    def of(cls, placement: Placement, launch: Launch, devices: tuple[str, ...], hardware: Hardware | None) -> _Role:
        layers = placement.layers[:-1]
        on_host = CPU_DEVICE in layers
        several = len(used_devices(launch, hardware) if hardware else devices) > 1
        whole = not on_host and not placement.overrides and placement.output != CPU_DEVICE
        probes = sorted({0, len(layers) // 2, len(layers) - 1}) if placement.overrides and layers else ()
        moved = any(
            placement.override_for(f"blk.{layer}.{name}.weight") == CPU_DEVICE
            for layer in probes
            for name in ("ffn_up", "ffn_up_exps")
        )
        overridden = bool(placement.overrides) or not launch.kv_offload
        borrows = (on_host or moved) and kind_of_device(devices[0]) in _BORROWING
        borrower = devices[0] if borrows and min(launch.ubatch_size, launch.batch_size) >= _LEAST_BORROWING else ""
        return cls(devices, on_host, moved, overridden, several, several and whole and launch.kv_offload, borrower)

    def slack(self, device: str, sizes: GraphSizes) -> Slack | None:
        """What the spread adds to the range of this device; None where there is but one that computes."""
        if self.overridden:
            return _PLACED["moved"]
        if device == self.borrower:
            return _PLACED["borrower"]
        if (sizes.family in _SCATTERED or sizes.streamed) and (self.several or self.layers_on_host):
            return _PLACED["moved"]
        if self.pipelined:
            return _PLACED["pipeline" if device in (CPU_DEVICE, self.devices[0]) else "later"]
        if self.layers_on_host or self.several:
            return _PLACED["partial"]
        return _PLACED["host"] if device == CPU_DEVICE else None

    @property
    def on_host(self) -> bool:
        """Whether the host computes layers or parts of them."""
        return self.layers_on_host or self.matrices_on_host


def _device_size(sizes: GraphSizes, device: str, placement: Placement, role: _Role) -> int:
    layers = _layers_on(device, sizes, placement)
    if not layers:
        # The output alone: a few rows and their logits.
        return max(sizes.logits, sizes.unpicked) + 2 * sizes.hidden * sizes.outputs // sizes.tokens
    shared, picked = sizes.shared_on(layers), sizes.picked_by(layers)
    apart = role.layers_on_host or (role.pipelined and device != role.devices[0])
    peak = _device_peak(sizes, device, layers, placement, scored=sizes.scored if apart else 0) + picked
    if role.pipelined:
        arriving, states = _pipeline_states(sizes, device, layers, placement, role)
        return _PIPELINE_COPIES * (shared + arriving + sizes.fetched_by(layers)) + states + peak
    if role.matrices_on_host and not role.layers_on_host:
        attention = sizes.attention + sizes.copies(kind_of_device(device))
        return shared + picked + sizes.further + max(5 * sizes.hidden, 3 * sizes.hidden + attention)
    if role.layers_on_host:
        first = device == role.devices[0]
        spread = -3 * sizes.streamed if _is_last(layers, sizes) else sizes.spread[0]
        states = 2 + sizes.leaves_gap(first) + spread
        gap = sizes.gap if first and sizes.family == "experts" else 0
        feeds = peak == sizes.feed_forward_on(layers)
        if feeds and (first or not sizes.experts) and not sizes.reads_only(layers):
            gap += sizes.hole
        fetched = sizes.fetched_by(layers if feeds else sizes.from_the_longest(layers))
        return shared + sizes.views(layers) + states * sizes.hidden + peak + gap + fetched
    states = sizes.states - (len(role.devices) > 1 or placement.output == CPU_DEVICE)
    return shared + sizes.further + states * sizes.hidden + peak


def _borrower_size(sizes: GraphSizes, device: str, matrix: int) -> int:
    """A device that computes all layers as if they were its own, but borrows matrices for the feed-forward."""
    attention = sizes.attention + sizes.copies(kind_of_device(device)) + sizes.picked_by(())
    peak = max(max(sizes.feed_forward, sizes.recurrence) + matrix, attention, sizes.logits)
    return sizes.shared + sizes.further + sizes.states * sizes.hidden + peak


def _layers_on(device: str, sizes: GraphSizes, placement: Placement) -> list[int]:
    """The layers of the trunk that this device computes."""
    return [layer for layer, other in enumerate(placement.layers[: sizes.layers]) if other == device]


def _is_last(layers: Sequence[int], sizes: GraphSizes) -> bool:
    """Whether this is the last layer alone, which computes its feed-forward for the rows of the output."""
    return list(layers) == [sizes.layers - 1] and sizes.family != "draft"


def _device_peak(sizes: GraphSizes, device: str, layers: Sequence[int], placement: Placement, *, scored: int) -> int:
    """The highest of the moments on this device; `scored` of attention finds a place there."""
    last = _is_last(layers, sizes)
    found = sizes.convolved if sizes.convolved <= 2 * sizes.hidden and len(set(placement.layers)) == 1 else 0
    return max(
        max(2 * max(sizes.hidden, sizes.queries), sizes.unpicked * sizes.streamed)
        if last
        else sizes.feed_forward_on(layers),
        sizes.recurrence - found,
        sizes.attention - scored + sizes.copies(kind_of_device(device)) if sizes.attends_on(layers) else 0,
        sizes.logits if device == placement.output else 0,
    )


def _pipeline_states(
    sizes: GraphSizes, device: str, layers: Sequence[int], placement: Placement, role: _Role
) -> tuple[int, int]:
    """What arrives from another device, which has four places, all kept; and the hidden states beside the peak."""
    first = device == role.devices[0]
    # The layers at which the first device hands over, or this one takes over.
    cut = [placement.layers.index(other) for other in role.devices[1:2]] if first else [layers[0]]
    crossing = sizes.crossing if sizes.crossing and not sizes.crossing.layers.isdisjoint(cut) else None
    spared = crossing.spared if crossing else 0
    if first:
        # Tokens and embeddings are joined on the device, unless several streams are made of them first.
        states = 2 + 2 * sizes.streams if sizes.streams > 1 and sizes.mixed else 1 + 2 * sizes.mixed
        arriving = states * sizes.hidden + (crossing.back if crossing else 0) + sizes.further
        return arriving, sizes.states * sizes.hidden - spared
    streams = 2 + 2 * sizes.streams if sizes.streams > 1 and sizes.mixed else sizes.streams
    arriving = streams * sizes.hidden + (crossing.onward if crossing else 0) + sizes.views(layers)
    return arriving, _LATER_STATES * sizes.hidden - spared


def _host_size(sizes: GraphSizes, placement: Placement, role: _Role) -> int:
    if role.pipelined:
        return sizes.host_inputs(_PIPELINE_COPIES)
    if role.borrower:
        return sizes.host_inputs()
    if role.layers_on_host:
        return sizes.host_total(_layers_on(CPU_DEVICE, sizes, placement))
    if role.matrices_on_host:
        return (
            sizes.inputs
            + sizes.further
            + sizes.states * sizes.hidden
            + max(sizes.feed_forward, sizes.recurrence, sizes.mask)
        )
    return sizes.host_inputs()


def _compute(
    device: str,
    sizes: GraphSizes,
    size: int,
    used: int,
    reason: str,
    *,
    role: _Role | None = None,
    above: int = 0,
) -> Allocation:
    passes_on = role is not None and device == CPU_DEVICE and (not role.on_host or role.borrower != "")
    slack = _PASSED_ON if passes_on else RANGES[sizes.family]
    hidden = sizes.hidden
    low = size * (1 - slack.below) - slack.states_below * hidden
    high = size * (1 + slack.above) + slack.states_above * hidden
    further = role.slack(device, sizes) if role else None
    if further:
        low -= further.below * size + further.states_below * hidden
        high += further.above * size + further.states_above * hidden
        # Seen on a small Mamba-2 whose tensors were moved one by one.
        high += 2 * sizes.recurrence if role and role.overridden else 0
    if sizes.short and not passes_on:
        # Where every mask is needed by one layer alone, what comes later takes its place.
        low -= max(sizes.mask, sizes.feed_forward)
    return Allocation(
        device=device,
        component="compute",
        buffer=f"{device} compute",
        reserved_bytes=size,
        resident_bytes=min(size, used) if kind_of_device(device) == "cpu" else size,
        certainty="estimated",
        low_bytes=max(0, int(low)),
        high_bytes=int(high) + above,
        reason=reason,
    )


def _host_reason(sizes: GraphSizes) -> str:
    return (
        f"{format_mib(sizes.mask)} MiB of attention masks + 5 x {format_mib(sizes.hidden)} of hidden states for "
        f"{sizes.tokens} tokens + the highest of feed-forward {format_mib(sizes.feed_forward)}, attention "
        f"{format_mib(sizes.attention)}, logits {format_mib(sizes.logits)}"
    )


def _device_reason(sizes: GraphSizes, pipelined: bool) -> str:
    copies = f"{_PIPELINE_COPIES} x " if pipelined else ""
    return (
        f"{copies}{format_mib(sizes.mask)} MiB of attention masks, hidden states of {format_mib(sizes.hidden)}, and "
        f"the highest of feed-forward {format_mib(sizes.feed_forward)}, attention {format_mib(sizes.attention)}, "
        f"logits {format_mib(sizes.logits)}"
    )


def plan_output(shape: Hyperparameters, launch: Launch, context: ResolvedContext) -> Allocation:
    """The output buffer: one row of logits per slot, and one embedding where they are served."""
    row = shape.n_vocab * F32 + (shape.n_embd * F32 if launch.embeddings else 0)
    size = context.n_seq_max * row
    return Allocation(
        device=CPU_DEVICE,
        component="output",
        buffer="CPU output",
        reserved_bytes=size,
        resident_bytes=size,
        certainty="exact",
        reason=f"{context.n_seq_max} slots x {row:,} bytes ({shape.n_vocab:,} logits of 4 bytes)",
    )
