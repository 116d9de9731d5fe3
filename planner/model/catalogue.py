"""The catalogue: models that planner knows without a file at hand, read from `models.yaml`.

Decoding is strict. An unknown key, a missing key, a value of the wrong kind, a second entry of the same name
or another version is a `ModelError` that names the file, the entry and the key; nothing is ever guessed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from planner.errors import ModelError

CATALOGUE_VERSION = 1
"""The version of the file format that this module reads."""

TensorType = Literal[
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "Q3_K", "Q2_K",
    "IQ4_XS", "IQ4_NL", "MXFP4",
]  # fmt: skip
"""ggml's names of the tensor types that an entry may use."""

FileType = Literal[
    "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q3_K_M", "Q2_K",
    "IQ4_XS", "IQ4_NL", "MXFP4_MOE",
]  # fmt: skip
"""llama.cpp's names of the quantisations of a whole file (`LLAMA_FTYPE_MOSTLY_*`)."""

_Count = Annotated[int, msgspec.Meta(gt=0)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Name = Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9.-]*$")]


def _gguf_key(field: str) -> str:
    """Return the GGUF key of a hyperparameter field: `attention_head_count` is `attention.head_count`."""
    return re.sub(r"^(attention|rope)_", r"\1.", field)


class CatalogueHyperparameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename=_gguf_key):
    """The shape of a model, under llama.cpp's own key names; `None` where the file would not have the key."""

    block_count: _Count
    """Layers."""
    context_length: _Count
    """Tokens that the model was trained for."""
    embedding_length: _Count
    """Width of the residual stream."""
    feed_forward_length: _Count
    """Width inside a layer's feed-forward network."""
    attention_head_count: _Count
    """Query heads of a layer."""
    attention_head_count_kv: _Count
    """Key and value heads of a layer."""
    attention_layer_norm_rms_epsilon: _Positive
    attention_key_length: _Count | None = None
    """Width of a query or key head; embedding_length / head_count where absent."""
    attention_value_length: _Count | None = None
    """Width of a value head; embedding_length / head_count where absent."""
    attention_sliding_window: _Count | None = None
    """Tokens that a sliding-window layer sees; which layers slide is a property of the architecture."""
    rope_dimension_count: _Count | None = None
    """Dimensions of a head that are rotated; the whole head where absent."""
    rope_freq_base: _Positive | None = None

    @property
    def key_length(self) -> int:
        """Width of a query or key head, as llama.cpp resolves it."""
        return self.attention_key_length or self.embedding_length // self.attention_head_count

    @property
    def value_length(self) -> int:
        """Width of a value head, as llama.cpp resolves it."""
        return self.attention_value_length or self.embedding_length // self.attention_head_count


class Quantisation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The type of each kind of tensor, so that sizes are those of a real file."""

    file_type: FileType
    """The name by which people know such a file."""
    embedding: TensorType
    output: TensorType | Literal["tied"]
    """`tied`: there is no output matrix, the model uses its embedding for it."""
    attention: TensorType
    feed_forward: TensorType
    norm: TensorType


class CatalogueEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model of the catalogue."""

    name: _Name
    """What a person types; unique in the catalogue and safe as a file name."""
    title: _Text
    """What a person reads."""
    architecture: _Text
    """llama.cpp's name for the architecture."""
    source: _Text
    """Where the figures can be looked up."""
    hyperparameters: CatalogueHyperparameters
    vocabulary_size: Annotated[int, msgspec.Meta(ge=1024)]
    """Tokens; more than the bytes, letters and control tokens that every vocabulary has."""
    quantisation: Quantisation

    def metadata(self) -> dict[str, int | float | str]:
        """Return the model's shape as GGUF metadata, under the key names that its file has."""
        shape: dict[str, int | float] = {
            key: value for key, value in msgspec.to_builtins(self.hyperparameters).items() if value is not None
        }
        return {
            "general.architecture": self.architecture,
            "general.name": self.title,
            **{f"{self.architecture}.{key}": value for key, value in shape.items()},
            f"{self.architecture}.vocab_size": self.vocabulary_size,
        }


def load_catalogue() -> tuple[CatalogueEntry, ...]:
    """Return the entries of planner's own `models.yaml`, in its order: the first is the default ghost."""
    path = _catalogue_path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"Cannot read the catalogue {path}: {error.strerror}.", "Reinstall planner.") from error
    return decode_catalogue(text, origin=str(path))


def find_entry(name: str) -> CatalogueEntry:
    """Return the entry of that name or title; raise a `ModelError` that lists the names where there is none."""
    catalogue = load_catalogue()
    for entry in catalogue:
        if name.casefold() in (entry.name, entry.title.casefold()):
            return entry
    names = [entry.name for entry in catalogue]
    raise ModelError(f"The catalogue has no model {name!r}.", f"It has {', '.join(names)}.")


def decode_catalogue(text: str, *, origin: str) -> tuple[CatalogueEntry, ...]:
    """Return the entries of a catalogue's text; `origin` is what the errors call it, usually its path."""
    document = _parse_yaml(text, origin)
    if not isinstance(document, dict):
        raise ModelError(f"{origin} is not a catalogue.", "It begins with `version: 1` and has a list `models`.")
    version = document.get("version")
    if version != CATALOGUE_VERSION:
        raise ModelError(
            f"{origin} has version {version!r}; this planner reads version {CATALOGUE_VERSION}.",
            "Update planner, or write the file for this version.",
        )
    _check_keys(document, ("version", "models"), origin)
    models = document.get("models")
    if not isinstance(models, list) or not models:
        raise ModelError(f"{origin} has no list `models`.", "List at least one model under it.")
    entries = tuple(_decode_entry(raw, index, origin) for index, raw in enumerate(models, start=1))
    _check_unique(entries, origin)
    return entries


def _catalogue_path() -> Path:
    """Return the installed package's `models.yaml`, or the repository's when planner runs from a clone."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "models.yaml"
    return installed if installed.is_file() else package.parent / "models.yaml"


def _parse_yaml(text: str, origin: str) -> object:
    import yaml

    # The C loader is ten times as fast, but a PyYAML built without libyaml lacks it.
    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document: object = yaml.load(text, Loader=loader_class)
        _refuse_repeated_keys(yaml.compose(text, Loader=loader_class), origin)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ModelError(f"{origin} is not valid YAML: {problem}.") from error
    return document


def _refuse_repeated_keys(node: Any, origin: str) -> None:
    """Raise where a mapping has a key twice: YAML forbids it, and PyYAML would silently take the last."""
    if not isinstance(getattr(node, "value", None), list):
        return
    seen: set[object] = set()
    for child in node.value:
        if not isinstance(child, tuple):
            _refuse_repeated_keys(child, origin)
            continue
        key, value = child
        if key.value in seen:
            line = key.start_mark.line + 1
            raise ModelError(f"{origin}, line {line}: the key {key.value!r} is there twice.", "Remove one.")
        seen.add(key.value)
        _refuse_repeated_keys(value, origin)


def _decode_entry(raw: object, index: int, origin: str) -> CatalogueEntry:
    """Return one entry; `index` counts from 1 and names an entry that has no name."""
    label = raw.get("name", index) if isinstance(raw, dict) else index
    where = f"{origin}, model {label}"
    _check_struct_keys(raw, CatalogueEntry, where)
    try:
        return msgspec.convert(raw, CatalogueEntry)
    except msgspec.ValidationError as error:
        problem = str(error).replace(" - at `$.", ": `")
        raise ModelError(f"{where}: {problem}.", "The comment at the top of the file explains each key.") from error


def _check_struct_keys(raw: object, struct: type[msgspec.Struct], where: str) -> None:
    """Refuse keys that `struct` or a struct inside it does not have; msgspec would not say which is meant."""
    if not isinstance(raw, dict):
        return
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    _check_keys(raw, tuple(fields), where)
    for key, kind in fields.items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            _check_struct_keys(raw.get(key), kind, f"{where}, {key}")


def _check_keys(raw: Mapping[Any, object], valid: Sequence[str], where: str) -> None:
    for key in raw:
        if key not in valid:
            nearest = difflib.get_close_matches(str(key), valid, n=1, cutoff=0.5)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else f"The keys here are {', '.join(valid)}."
            raise ModelError(f"{where}: unknown key {key!r}.", hint)


def _check_unique(entries: Iterable[CatalogueEntry], origin: str) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise ModelError(f"{origin}: two models are named {entry.name!r}.", "Rename one of them.")
        seen.add(entry.name)
