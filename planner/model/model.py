"""A model file, opened: what every prediction starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from planner.errors import CutOffError, ModelError
from planner.model.architectures import ARCHITECTURES, Architecture
from planner.model.gguf import GgufHeader, MetadataValue, TensorInfo
from planner.model.graph import GraphShape, read_graph
from planner.model.hyperparameters import Hyperparameters, Keys
from planner.model.layout import MemoryLayout
from planner.model.marks import GHOST_KEY
from planner.model.shards import Stamp, model_file, read_files, stamp_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A GGUF model as its header describes it. Two are equal only if they are the same object."""

    path: Path
    """The file, or the first of a split model."""
    header: GgufHeader = field(repr=False)
    further_headers: tuple[GgufHeader, ...] = field(default=(), repr=False)
    """Those of the other files of a split model, in order."""
    stands_for: Path | None = None
    """The whole file here that this is a ghost of, absolute; None for any other ghost, and for a file itself."""
    stamps: Mapping[Path, Stamp] = field(default_factory=dict, repr=False)
    """What told each of its files from others when it was opened; empty for a model without a file."""

    @classmethod
    def open(cls, path: str | Path, *, header_only: bool = False) -> Model:
        """Read the header of the GGUF file at `path`: also any shard of a split model, or the folder of one.

        A file that is shorter than its tensors is an error that says by how much, unless `header_only`: then
        a header without its weights (a truncated download) is a model too. A file that holds metadata and no
        tensor is a model with no weights.

        Raises ModelError: no such file, not a GGUF, damaged, cut off, of another version, a shard missing.
        """
        try:
            files = read_files(model_file(Path(path).expanduser()))
            stamps = {file: stamp_of(file) for file in files}
        except (OSError, RuntimeError, ValueError) as error:  # an unknown home, a name too long or with a zero byte
            raise ModelError(f"{str(path)[:200]!r} cannot be looked up ({error}).", "Check the path.") from None
        if not header_only:
            for file, header in files.items():
                _check_complete(file, header)
        first, *further = files.values()
        model = cls(path=next(iter(files)), header=first, further_headers=tuple(further), stamps=stamps)
        if not model.architecture:
            raise ModelError(f"{path} names no architecture (general.architecture), so it is not a model.")
        return model

    def check_same_files(self) -> None:
        """Raise ModelError where a file of it was replaced, changed or deleted since it was opened."""
        for file, stamp in self.stamps.items():
            try:
                is_same = stamp_of(file) == stamp
            except OSError as error:
                raise ModelError(f"{file} is gone ({error.strerror}); nothing of it is recorded.") from None
            if not is_same:
                raise ModelError(
                    f"{file} was replaced since it was read; nothing of it is recorded.",
                    "Start again with the new file.",
                )

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The header's key-value pairs; long arrays are there as their length."""
        return self.header.metadata

    @cached_property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Every tensor of the model, in file order."""
        return tuple(tensor for part in (self.header, *self.further_headers) for tensor in part.tensors)

    @cached_property
    def _by_name(self) -> dict[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    def tensor(self, name: str) -> TensorInfo | None:
        """The tensor with this name, if there is one."""
        return self._by_name.get(name)

    @property
    def architecture(self) -> str:
        """`general.architecture`: `llama`, `gemma3`, ..."""
        value = self.metadata.get("general.architecture", "")
        return _printable(value) if isinstance(value, str) else ""

    @property
    def rules(self) -> Architecture | None:
        """What llama.cpp does with this architecture; None when it is not in our table."""
        return ARCHITECTURES.get(self.architecture)

    @property
    def name(self) -> str:
        """`general.name`, else the file's name."""
        value = self.metadata.get("general.name")
        return _printable(value) if isinstance(value, str) and value else self.path.stem

    @property
    def is_ghost(self) -> bool:
        """Whether this program wrote it as a header with a hole where the weights would be."""
        return self.metadata.get(GHOST_KEY) is True

    @cached_property
    def hyperparameters(self) -> Hyperparameters:
        """The hyperparameters that decide memory. Raises ModelError where llama.cpp would refuse them."""
        return (self.rules or Architecture()).read(Keys(self.metadata, self.architecture))

    @cached_property
    def layout(self) -> MemoryLayout:
        """What the model keeps for its context. Raises ModelError where llama.cpp would refuse the file."""
        rules = self.rules or Architecture()
        return rules.layout(Keys(self.metadata, self.architecture), self.hyperparameters)

    @cached_property
    def graph(self) -> GraphShape:
        """What decides its compute buffers alone."""
        return read_graph(Keys(self.metadata, self.architecture), self.hyperparameters)

    @cached_property
    def largest_matrix(self) -> int:
        """Bytes of the largest weight of a layer; 0 in a file without tensors."""
        return max((tensor.nbytes for tensor in self.tensors if tensor.name.startswith("blk.")), default=0)

    @cached_property
    def used_tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors that llama.cpp loads: blocks that predict further tokens (MTP) stay in the file."""
        try:
            shape = self.hyperparameters
        except ModelError:
            return self.tensors
        if shape.n_layer == shape.n_layer_all:
            return self.tensors
        skipped = tuple(f"blk.{layer}." for layer in range(shape.n_layer, shape.n_layer_all))
        return tuple(tensor for tensor in self.tensors if not tensor.name.startswith(skipped))

    def spans(self, tensors: Sequence[TensorInfo]) -> list[tuple[int, int]]:
        """For each file that holds any of the tensors, the offsets where the first begins and the last ends."""
        spans: dict[int, tuple[int, int]] = {}
        for tensor in tensors:
            first, last = spans.get(tensor.shard, (tensor.offset, 0))
            spans[tensor.shard] = (min(first, tensor.offset), max(last, tensor.offset + tensor.nbytes))
        return [spans[shard] for shard in sorted(spans)]

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors (`llama_model_size`)."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @cached_property
    def parameters(self) -> int:
        """How many numbers the tensors hold."""
        return sum(tensor.elements for tensor in self.tensors)


def _printable(text: str) -> str:
    """The text without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _check_complete(file: Path, header: GgufHeader) -> None:
    actual = file.stat().st_size
    if header.tensors and actual < header.file_bytes:
        raise CutOffError(
            f"{file} is cut off: its tensors need {header.file_bytes:,} bytes and the file has {actual:,} "
            f"({header.file_bytes - actual:,} missing).",
            "Finish the download.",
        )
