"""The graphs of image encoders, as far as they decide memory, and the compute buffers that they need.

Each was held against llama.cpp: what it reserves for an image on the CPU agrees to the byte. Public logs of CUDA and
Vulkan say the same of theirs, with the inputs once more on the host.

Source: `tools/mtmd/clip.cpp` (`build_inp`, `build_vit`, `build_attn`, `build_ffn`) and `tools/mtmd/models/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from planner.memory.allocator import Node, buffer_bytes

_F16 = 2
_ALIGNMENT = 32
"""Bytes, of the CPU's buffers."""
WARM_UP_SIDE = 46
"""Tokens of each side of the image that a Qwen-VL encoder is warmed up with (`set_warmup_n_tokens`)."""
LARGEST_SIDE = 64
"""Tokens of each side of the largest image that it takes: 4,096 in all (`set_limit_image_tokens`)."""
BATCH_TOKENS = 1024
"""Tokens of all tiles that are computed together (`--mtmd-batch-max-tokens`), by the encoders that can."""
QWEN_MERGE = 2
"""Patches of each side that become one token there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """What of an image encoder decides its compute buffer. Widths are elements."""

    kind: str
    """`clip.projector_type`."""
    side: int
    """Pixels of each side of the image."""
    patch: int
    """Pixels of each side of a patch."""
    width: int
    ffn: int
    heads: int
    layers: int
    merge: int
    """Patches of each side that become one token."""
    out: tuple[int, ...]
    """Rows of the projector's matrices, one after the other; the last is the width of a token."""
    gated: bool
    """Whether the feed-forward has a gate."""
    fused: bool
    """Whether one matrix gives queries, keys and values."""
    patch_bias: bool
    class_token: bool
    norm_before: bool
    """Whether there is a norm before the first layer."""
    norm_behind: bool
    """Whether there is a norm behind the last layer."""
    positions: int
    """Patches of each side that the learned positions are for."""
    deep_layers: frozenset[int] = frozenset()
    """Layers whose output goes into the tokens, too (Qwen3-VL)."""
    patch_bytes: int = _F16
    """Bytes of each element of the matrix of the patches."""
    out_bytes: int = _F16
    """The same of the projector's matrix."""
    window_pattern: int = 0
    """Every so many layers attention is full, elsewhere within windows (Qwen2.5-VL); 0 for everywhere."""
    flash_attention: bool = True

    @property
    def patches(self) -> int:
        """Patches of the image."""
        return (self.side // self.patch) ** 2

    @property
    def rows(self) -> int:
        """What the layers work on: the patches, and the class where there is one."""
        return self.patches + self.class_token

    @property
    def rms(self) -> bool:
        """Whether norms are those of the root mean square."""
        return self.kind == "qwen2.5vl_merger"

    @property
    def is_dynamic(self) -> bool:
        """Whether images keep their own size."""
        return self.kind.startswith("qwen")


class Graph:
    """The nodes of a graph in ggml's order: before each node what it reads, from left to right."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.nodes: list[Node] = []
        self.inputs: list[Node] = []
        self._seen: set[Node] = set()

    def expand(self, node: Node) -> Node:
        """Add a node and everything that it needs and that is not there yet."""
        if node not in self._seen:
            self._seen.add(node)
            for source in node.sources:
                self.expand(source)
            (self.inputs if node.is_input else self.nodes).append(node)
        return node

    def image(self) -> Node:
        """The image itself, three colours."""
        return _input(self.encoder.side, self.encoder.side, 3)


# One operation each ------------------------------------------------------------------------------------------


def _input(*shape: int) -> Node:
    return Node(shape, is_input=True)


def _weights() -> Node:
    """A tensor of the file, which takes nothing of this buffer."""
    return _node((0,))


def _node(shape: tuple[int, ...], *sources: Node, element: int = 4) -> Node:
    """What has a place of its own: a product with weights, a copy, rows that were looked up."""
    return Node(shape, element, sources)


def _changed(source: Node, *others: Node) -> Node:
    """Element by element: a sum, a product with a vector of weights, an activation, a softmax."""
    return Node(source.shape, source.element, (source, *others), in_place=True)


def _view(source: Node, *shape: int) -> Node:
    """The same bytes in another shape or order."""
    return Node(shape or source.shape, source.element, (source,), view_of=source.view_of or source)


def _copied(source: Node, *shape: int, element: int = 4) -> Node:
    """The elements in another order, one behind the other."""
    return _node(shape, _view(source), element=element)


def _linear(source: Node, width: int, rows: int) -> Node:
    return _changed(_node((width, rows), source))


def _norm(source: Node, *, rms: bool = False) -> Node:
    normed = _changed(source) if rms else _node(source.shape, source)
    return _changed(_changed(normed))


# Parts of an encoder -----------------------------------------------------------------------------------------


def _convolved(encoder: Encoder, image: Node) -> Node:
    pieces = _node((encoder.patch**2 * 3, encoder.patches), image, element=encoder.patch_bytes)
    return _copied(_node((encoder.patches, encoder.width), _view(pieces)), encoder.patches, encoder.width)


def _patches(encoder: Encoder, image: Node) -> Node:
    """The image as one row per patch."""
    rows = _copied(_convolved(encoder, image), encoder.width, encoder.patches)
    return _changed(rows) if encoder.patch_bias else rows


def _attention(graph: Graph, stream: Node, positions: Node | None, mask: Node | None) -> Node:
    encoder, rows = graph.encoder, graph.encoder.rows
    shape = (encoder.width // encoder.heads, encoder.heads, rows)
    if encoder.fused:
        fused = _linear(stream, 3 * encoder.width, rows)
        query, key, value = (_view(fused, *shape) for _ in range(3))
    else:
        query, key, value = (_view(_linear(stream, encoder.width, rows), *shape) for _ in range(3))
    if positions is not None:
        query, key = (_node(shape, source, positions) for source in (query, key))
    query, key, value = (graph.expand(node) for node in (query, key, value))
    masks = () if mask is None else (mask,)
    if encoder.flash_attention:
        key, value = (_copied(source, *shape, element=_F16) for source in (key, value))
        mixed = _view(_node(shape, _view(query), key, value, *masks))
    else:
        value = _copied(value, *shape)
        scores = _changed(_node((rows, rows, encoder.heads), _view(key), _view(query)), *masks)
        mixed = _copied(_node(shape, value, scores), encoder.width, rows)
    return _linear(mixed, encoder.width, rows)


def _feed_forward(encoder: Encoder, stream: Node) -> Node:
    up = _linear(stream, encoder.ffn, encoder.rows)
    hidden = _node(up.shape, _linear(stream, encoder.ffn, encoder.rows), up) if encoder.gated else _changed(up)
    return _linear(hidden, encoder.width, encoder.rows)


def _layers(
    graph: Graph,
    stream: Node,
    *,
    skipped: int = 0,
    positions: Node | None = None,
    mask: Node | None = None,
    behind: Callable[[int, Node], None] = lambda _layer, _stream: None,
) -> Node:
    """All layers but the last `skipped`, and the norms around them."""
    encoder = graph.encoder
    if encoder.norm_before:
        stream = _norm(stream, rms=encoder.rms)
    for layer in range(encoder.layers - skipped):
        full = not encoder.window_pattern or (layer + 1) % encoder.window_pattern == 0
        attention = _attention(graph, _norm(stream, rms=encoder.rms), positions, None if full else mask)
        stream = _changed(attention, stream)
        stream = _changed(stream, _feed_forward(encoder, _norm(stream, rms=encoder.rms)))
        behind(layer, stream)
    return _norm(stream, rms=encoder.rms) if encoder.norm_behind else stream


def _merged(encoder: Encoder, stream: Node) -> Node:
    """Several patches side by side as one row; an image that does not divide evenly is padded first."""
    side = encoder.side // encoder.patch
    across = -(-side // encoder.merge)
    stream = _view(stream)
    if side % encoder.merge:
        stream = _node((encoder.width, across * encoder.merge, across * encoder.merge), stream)
    for _ in range(2):
        stream = _copied(stream, encoder.width * encoder.merge**2, across**2)
    return stream


def _projected(source: Node, widths: tuple[int, ...], rows: int) -> Node:
    """Matrices with an activation between them."""
    for index, width in enumerate(widths):
        source = _linear(_changed(source) if index else source, width, rows)
    return source


# Whole encoders ----------------------------------------------------------------------------------------------


def _siglip(graph: Graph) -> Node:
    return _layers(graph, _changed(_patches(graph.encoder, graph.image())))


def _idefics3(graph: Graph) -> Node:
    merged = _merged(graph.encoder, _siglip(graph))
    return _node((graph.encoder.out[-1], merged.shape[1]), merged)


def _gemma3(graph: Graph) -> Node:
    encoder = graph.encoder
    tokens = encoder.patches // encoder.merge**2
    stream = _copied(_siglip(graph), encoder.patches, encoder.width)
    pooled = _node((tokens, encoder.width), stream)
    normed = _changed(_changed(_copied(pooled, encoder.width, tokens)))
    # The matrix is turned over for every image.
    turned = _node((encoder.width, encoder.out[-1]), _weights(), element=encoder.out_bytes)
    return _node((encoder.out[-1], tokens), turned, normed)


def _internvl(graph: Graph) -> Node:
    encoder = graph.encoder
    patches = _patches(encoder, graph.image())
    stream = _node((encoder.width, encoder.rows), patches, _node((encoder.width,), _weights()))
    merged = _merged(encoder, _layers(graph, _changed(stream)))
    return _projected(_norm(merged), encoder.out, merged.shape[1])


def _llava(graph: Graph) -> Node:
    encoder = graph.encoder
    stream = _patches(encoder, graph.image())
    if encoder.class_token:
        stream = _node((encoder.width, encoder.rows), stream)
    stream = _changed(stream, _node(stream.shape, _input(encoder.rows)))
    stream = _layers(graph, stream, skipped=1)
    picked = _node((encoder.width, encoder.patches), _view(stream), _input(encoder.patches))
    return _projected(picked, encoder.out, encoder.patches)


def _two_by_two(encoder: Encoder, source: Node) -> Node:
    """The rows in the order in which they become tokens."""
    for _ in range(2):
        source = _copied(source, encoder.width, encoder.patches)
    return source


def _frames(graph: Graph) -> Node:
    """An image as the two frames of a film that does not move."""
    image = graph.image()
    return _two_by_two(graph.encoder, _changed(*(_convolved(graph.encoder, image) for _ in range(2))))


def _as_tokens(encoder: Encoder, stream: Node) -> Node:
    return _view(stream, encoder.width * QWEN_MERGE**2, encoder.patches // QWEN_MERGE**2)


def _qwen2(graph: Graph) -> Node:
    encoder = graph.encoder
    tokens = encoder.patches // QWEN_MERGE**2
    stream, positions = _frames(graph), _input(4 * encoder.patches)
    if not encoder.window_pattern:
        stream = _layers(graph, stream, positions=positions)
        return _projected(_as_tokens(encoder, stream), encoder.out, tokens)
    mask = _input(encoder.patches, encoder.patches)
    if encoder.flash_attention:
        mask = _node(mask.shape, mask, element=_F16)
    ordered = _node((encoder.width * QWEN_MERGE**2, tokens), _as_tokens(encoder, stream), _input(tokens))
    stream = _layers(graph, _view(ordered, encoder.width, encoder.patches), positions=positions, mask=mask)
    projected = _projected(_as_tokens(encoder, stream), encoder.out, tokens)
    return _node(projected.shape, _view(projected), _input(tokens))


def _qwen3(graph: Graph) -> Node:
    encoder = graph.encoder
    tokens, width = encoder.patches // QWEN_MERGE**2, encoder.out[-1]
    stream = _changed(_frames(graph))
    if encoder.positions == encoder.side // encoder.patch:
        learned = _two_by_two(encoder, _weights())
    else:
        stretched = _copied(_node((encoder.patches, encoder.width), _weights()), encoder.width, encoder.patches)
        learned = _two_by_two(encoder, stretched)
    deep: list[Node] = []

    def behind(layer: int, stream: Node) -> None:
        if layer not in encoder.deep_layers:
            return
        normed = _norm(_as_tokens(encoder, stream))
        feature = _projected(normed, (encoder.width * QWEN_MERGE**2, width), tokens)
        deep.append(_node((width * (len(deep) + 1), tokens), deep[-1], feature) if deep else feature)

    stream = _layers(graph, _changed(stream, learned), positions=_input(4 * encoder.patches), behind=behind)
    projected = _projected(_as_tokens(encoder, stream), encoder.out, tokens)
    return _node((width * (len(deep) + 1), tokens), projected, deep[-1]) if deep else projected


GRAPHS: Mapping[str, Callable[[Graph], Node]] = {
    "gemma3": _gemma3,
    "idefics3": _idefics3,
    "internvl": _internvl,
    "mlp": _llava,
    "qwen2vl_merger": _qwen2,
    "qwen2.5vl_merger": _qwen2,
    "qwen3vl_merger": _qwen3,
}
"""By `clip.projector_type`."""


# The same for every launch of a grid.
@lru_cache(maxsize=64)
def encoder_bytes(encoder: Encoder) -> tuple[int, int]:
    """Bytes of the compute buffer for one image, and of the inputs among them."""
    graph = Graph(encoder)
    graph.expand(GRAPHS[encoder.kind](graph))
    inputs = sum(node.size for node in graph.inputs)
    return buffer_bytes(graph.nodes, graph.inputs, _ALIGNMENT), inputs
