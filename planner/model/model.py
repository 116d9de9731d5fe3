"""A model file, opened: what every prediction starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from planner.errors import ModelError
from planner.model.architectures import ARCHITECTURES, Architecture, no_window
from planner.model.gguf import GgufHeader, MetadataValue, TensorInfo, read_header
from planner.model.hyperparameters import Hyperparameters, read_hyperparameters


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A GGUF model as its header describes it. Two are equal only if they are the same object."""

    path: Path
    header: GgufHeader = field(repr=False)

    @classmethod
    def open(cls, path: str | Path, *, header_only: bool = False) -> Model:
        """Read the header of the GGUF file at `path`.

        A file that is shorter than its tensors is an error that says by how much, unless `header_only`: then
        a header without its weights (a truncated download) is a model too. A file that holds metadata and no
        tensor is a model with no weights.

        Raises ModelError: no such file, not a GGUF, damaged, cut off, of another version.
        """
        path = Path(path).expanduser()
        header = read_header(path)
        actual = path.stat().st_size
        if header.tensors and not header_only and actual < header.file_bytes:
            raise ModelError(
                f"{path} is cut off: its tensors need {header.file_bytes:,} bytes and the file has {actual:,} "
                f"({header.file_bytes - actual:,} missing).",
                "Finish the download.",
            )
        model = cls(path=path, header=header)
        if not model.architecture:
            raise ModelError(f"{path} names no architecture (general.architecture), so it is not a model.")
        if model.shard_count > 1:
            raise ModelError(
                f"{path} is one of {model.shard_count} parts of a split model, which this version cannot plan.",
                "Merge the parts with llama-gguf-split --merge.",
            )
        return model

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The header's key-value pairs; long arrays are there as their length."""
        return self.header.metadata

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Every tensor of the file, in file order."""
        return self.header.tensors

    @property
    def architecture(self) -> str:
        """`general.architecture`: `llama`, `gemma3`, ..."""
        value = self.metadata.get("general.architecture", "")
        return value if isinstance(value, str) else ""

    @property
    def rules(self) -> Architecture | None:
        """What llama.cpp does with this architecture; None when it is not in our table."""
        return ARCHITECTURES.get(self.architecture)

    @property
    def name(self) -> str:
        """`general.name`, else the file's name."""
        value = self.metadata.get("general.name")
        return value if isinstance(value, str) and value else self.path.stem

    @property
    def is_ghost(self) -> bool:
        """Whether this program wrote it as a header with a hole where the weights would be."""
        return self.metadata.get("planner.ghost") is True

    @property
    def shard_count(self) -> int:
        """Files that a split model consists of; 1 for an ordinary file."""
        value = self.metadata.get("split.count", 1)
        return value if isinstance(value, int) else 1

    @cached_property
    def hyperparameters(self) -> Hyperparameters:
        """The hyperparameters that decide memory. Raises ModelError where llama.cpp would refuse them."""
        rules = self.rules
        swa = rules.swa if rules and rules.swa else no_window
        return read_hyperparameters(self.metadata, self.architecture, swa)

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors (`llama_model_size`)."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @cached_property
    def parameters(self) -> int:
        """How many numbers the tensors hold."""
        return sum(tensor.elements for tensor in self.tensors)
