"""Ghosts: GGUF files with a model's true header and a hole where its weights are.

llama.cpp opens, allocates and runs a ghost like the real file, so a launch can be measured before the model
is downloaded. What a ghost says means nothing: every weight reads as zero. Only the header is ever written: a
ghost takes a few megabytes of disk, however large the model, or is refused.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from planner.errors import ModelError
from planner.model.ggml_types import type_named
from planner.model.gguf import DEFAULT_ALIGNMENT, GgufHeader, TensorInfo
from planner.model.shards import shard_files
from planner.units import pad

if TYPE_CHECKING:
    from gguf import GGUFWriter

    from planner.model.catalogue import CatalogueEntry
    from planner.model.model import Model

GHOST_KEY = "planner.ghost"
"""The metadata key, true, by which a ghost is known."""

Role = Literal["embedding", "output", "attention", "feed_forward", "norm"]
"""What a tensor is for; the catalogue gives each role its type."""


class TensorRow(NamedTuple):
    """A tensor of an architecture; a name with `{layer}` stands for one tensor per layer."""

    name: str
    role: Role
    shape: tuple[str, ...]
    """Names of dimensions (`_dimensions`) in ggml's order: the length of a row first."""


_LLAMA = (
    TensorRow("token_embd.weight", "embedding", ("embedding", "vocabulary")),
    TensorRow("output_norm.weight", "norm", ("embedding",)),
    TensorRow("output.weight", "output", ("embedding", "vocabulary")),
    TensorRow("blk.{layer}.attn_norm.weight", "norm", ("embedding",)),
    TensorRow("blk.{layer}.attn_q.weight", "attention", ("embedding", "query")),
    TensorRow("blk.{layer}.attn_k.weight", "attention", ("embedding", "key")),
    TensorRow("blk.{layer}.attn_v.weight", "attention", ("embedding", "value")),
    TensorRow("blk.{layer}.attn_output.weight", "attention", ("attended", "embedding")),
    TensorRow("blk.{layer}.ffn_norm.weight", "norm", ("embedding",)),
    TensorRow("blk.{layer}.ffn_gate.weight", "feed_forward", ("embedding", "feed_forward")),
    TensorRow("blk.{layer}.ffn_up.weight", "feed_forward", ("embedding", "feed_forward")),
    TensorRow("blk.{layer}.ffn_down.weight", "feed_forward", ("feed_forward", "embedding")),
)

TENSORS: Mapping[str, tuple[TensorRow, ...]] = {
    "llama": _LLAMA,
    "gemma3": (
        *_LLAMA,
        TensorRow("blk.{layer}.attn_q_norm.weight", "norm", ("key_head",)),
        TensorRow("blk.{layer}.attn_k_norm.weight", "norm", ("key_head",)),
        TensorRow("blk.{layer}.post_attention_norm.weight", "norm", ("embedding",)),
        TensorRow("blk.{layer}.post_ffw_norm.weight", "norm", ("embedding",)),
    ),
}
"""The tensors of each architecture that a ghost can be written for, as llama.cpp's loader asks for them."""


def is_ghost(metadata: Mapping[str, object]) -> bool:
    """Return whether a GGUF's metadata says that planner wrote it without weights."""
    return metadata.get(GHOST_KEY) is True


def ghost_tensors(entry: CatalogueEntry) -> tuple[TensorInfo, ...]:
    """Return the tensors of the entry's file, in file order.

    Raises `ModelError` for an architecture that is not in `TENSORS` and for a type that cannot store a row.
    """
    rows = TENSORS.get(entry.architecture)
    if rows is None:
        raise ModelError(
            f"No ghost can be written of {entry.name}: its architecture is {entry.architecture}.",
            f"Ghosts are known for {', '.join(TENSORS)}.",
        )
    sizes = _dimensions(entry)
    tensors: list[TensorInfo] = []
    offset = 0
    for row in rows:
        type_name: str = getattr(entry.quantisation, row.role)
        if type_name == "tied":
            continue
        ggml_type = type_named(type_name)
        shape = tuple(sizes[dimension] for dimension in row.shape)
        if shape[0] % ggml_type.block_elements:
            raise ModelError(
                f"{entry.name}: {type_name} cannot store {row.name.format(layer=0)}, "
                f"whose rows have {shape[0]} elements.",
                f"Choose a type for {row.role} whose blocks are shorter.",
            )
        for layer in range(entry.hyperparameters.block_count if "{layer}" in row.name else 1):
            tensors.append(TensorInfo(row.name.format(layer=layer), shape, ggml_type, offset))
            offset += pad(tensors[-1].nbytes, DEFAULT_ALIGNMENT)
    return tuple(tensors)


def write_ghost(entry: CatalogueEntry, directory: Path) -> Path:
    """Write the entry's ghost into an existing directory as `<name>.ghost.gguf` and return its path.

    Raises `ModelError`, and leaves no file behind, where the file cannot be written, where the file system
    allocates the hole instead of leaving it out, or where the architecture is unknown.
    """
    tensors = ghost_tensors(entry)
    path = directory / f"{entry.name}.ghost.gguf"
    try:
        header_bytes = _write_header(path, entry, tensors)
        data_bytes = tensors[-1].offset + pad(tensors[-1].nbytes, DEFAULT_ALIGNMENT)
        _make_hole(path, header_bytes + data_bytes)
        _require_hole(path, header_bytes)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ModelError(
            f"Cannot write the ghost {path}: {error.strerror}.", "Use a directory with a few free megabytes."
        ) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


@contextmanager
def temporary_ghost(entry: CatalogueEntry, directory: Path | None = None) -> Iterator[Path]:
    """Yield the path of the entry's ghost and delete it afterwards, also when the block fails.

    The ghost gets a fresh folder of its own in `directory`, by default in the person's cache: the system's
    temporary directory may be in RAM, and the ghost's pages would then be counted as the machine's own.
    """
    with _own_folder(entry.name, directory) as folder:
        yield write_ghost(entry, folder)


@contextmanager
def whole_file(model: Model, directory: Path | None = None) -> Iterator[Path]:
    """Yield a file of this model that llama.cpp opens: its own, or, where that is cut off behind its header, a
    copy of the header with a hole behind it, which is deleted afterwards.

    Raises `ModelError` where the copy cannot be written, or would fill the disk.
    """
    headers = (model.header, *model.further_headers)
    files = shard_files(model.path, len(headers)) if model.further_headers else (model.path,)
    if all(_size(file) >= header.file_bytes for file, header in zip(files, headers, strict=True)):
        yield model.path
        return
    with _own_folder(model.path.stem, directory) as folder:
        for file, header in zip(files, headers, strict=True):
            _copy_header(file, header, folder / file.name)
        yield folder / files[0].name


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.") from None


_WORTH_A_HOLE_BYTES = 1 << 20
"""A smaller hole may be shorter than a block of the disk, and costs nothing if it is filled."""


def _copy_header(source: Path, header: GgufHeader, target: Path) -> None:
    try:
        with source.open("rb") as file:
            target.write_bytes(file.read(header.data_offset))
        _make_hole(target, header.file_bytes)
        if header.file_bytes - header.data_offset > _WORTH_A_HOLE_BYTES:
            _require_hole(target, header.data_offset)
    except OSError as error:
        raise ModelError(
            f"Cannot write a copy of the header of {source} in {target.parent}: {error.strerror}.",
            "Use a directory with a few free megabytes.",
        ) from error


@contextmanager
def _own_folder(name: str, parent: Path | None) -> Iterator[Path]:
    """A fresh folder, deleted afterwards; by default in the person's cache."""
    parent = _default_directory() if parent is None else parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # On Windows a server that is still exiting keeps the file open; the block's result matters more.
        _sweep(parent)
        prefix = f"{name}.{os.getpid()}."
        folder = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise ModelError(
            f"Cannot make a folder for the ghost in {parent}: {error.strerror}.", "Check its permissions."
        ) from error
    with folder as path:
        yield Path(path)


def _sweep(parent: Path) -> None:
    """Delete the ghosts of programs that were killed before they could do it themselves."""
    import psutil

    for folder in parent.glob("*.*.*"):
        _, pid, _ = folder.name.rsplit(".", 2)
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _default_directory() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("planner")) / "ghosts"


def _dimensions(entry: CatalogueEntry) -> dict[str, int]:
    """Return the sizes that `TensorRow.shape` names, in elements."""
    shape = entry.hyperparameters
    return {
        "embedding": shape.embedding_length,
        "feed_forward": shape.feed_forward_length,
        "vocabulary": entry.vocabulary_size,
        "key_head": shape.key_length,
        "query": shape.attention_head_count * shape.key_length,
        "key": shape.attention_head_count_kv * shape.key_length,
        "value": shape.attention_head_count_kv * shape.value_length,
        "attended": shape.attention_head_count * shape.value_length,
    }


# The header -----------------------------------------------------------------------------------------------


def _write_header(path: Path, entry: CatalogueEntry, tensors: tuple[TensorInfo, ...]) -> int:
    """Write metadata and tensor infos; return where the data begins, in bytes."""
    import numpy
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, entry.architecture)
    try:
        _add_metadata(writer, entry)
        _add_vocabulary(writer, entry.vocabulary_size)
        for tensor in tensors:
            writer.add_tensor_info(
                tensor.name,
                tensor.shape[::-1],
                numpy.dtype(numpy.float32),  # not the stored type: it says that the shape counts elements
                tensor.nbytes,
                raw_dtype=GGMLQuantizationType[tensor.type.name.upper()],
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
    return pad(path.stat().st_size, DEFAULT_ALIGNMENT)


def _add_metadata(writer: GGUFWriter, entry: CatalogueEntry) -> None:
    from gguf import GGML_QUANT_VERSION, LlamaFileType

    for key, value in entry.metadata().items():
        if key.startswith(f"{entry.architecture}."):
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    writer.add_name(f"{entry.title} (ghost: no weights)")
    writer.add_type("model")
    writer.add_description("Written by planner to measure memory and speed; what it generates means nothing.")
    writer.add_file_type(LlamaFileType[f"MOSTLY_{entry.quantisation.file_type}"])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_bool(GHOST_KEY, True)


# The vocabulary -------------------------------------------------------------------------------------------

_SPACE = "\u2581"
"""SentencePiece's mark for a space."""

_LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
"""The alphabet from English's most to its least frequent letter, so that likely pieces get low ids."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def _pieces() -> Iterator[str]:
    """Yield plain pieces of words without end: characters, then groups of letters, also after a space.

    SentencePiece reaches a piece only by merging two others, so the parts of a piece come before it.
    """
    yield _SPACE
    yield from (chr(code) for code in range(ord("!"), ord("~") + 1))
    yield from (_SPACE + letter for letter in _LETTERS)
    for length in count(2):
        for letters in product(_LETTERS, repeat=length):
            group = "".join(letters)
            yield group
            yield _SPACE + group


def _add_vocabulary(writer: GGUFWriter, size: int) -> None:
    """Add a SentencePiece vocabulary of exactly `size` tokens that turns any text into tokens and back.

    With weights of zero every token is as likely as any other, and llama.cpp then samples from the lowest
    ids. So bytes and control tokens come last: a server holds back text that ends within a UTF-8 character,
    and ends an answer at `</s>`.
    """
    from gguf import TokenType

    control = ["<unk>", "<s>", "</s>"]
    unk, bos, eos = range(size - len(control), size)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = list(islice(_pieces(), size - len(control) - len(byte_tokens)))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*pieces, *byte_tokens, *control])
    writer.add_token_scores([-float(rank) for rank in range(len(pieces))] + [0.0] * (size - len(pieces)))
    writer.add_token_types(
        [int(TokenType.NORMAL)] * len(pieces)
        + [int(TokenType.BYTE)] * len(byte_tokens)
        + [int(TokenType.UNKNOWN), int(TokenType.CONTROL), int(TokenType.CONTROL)]
    )
    writer.add_unk_token_id(unk)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(_CHAT_TEMPLATE)


# The hole -------------------------------------------------------------------------------------------------


def _make_hole(path: Path, size: int) -> None:
    """Extend the file to `size` bytes without writing any."""
    with path.open("r+b") as file:
        _mark_sparse(file.fileno())
        file.truncate(size)


def _require_hole(path: Path, header_bytes: int) -> None:
    """Raise where the file system allocated half of the hole or more: the file would fill the disk."""
    hole_bytes = path.stat().st_size - header_bytes
    if _allocated_bytes(path) - header_bytes >= hole_bytes // 2:
        raise ModelError(
            f"The file system of {path.parent} cannot leave holes in files, so a ghost there would take "
            f"{hole_bytes} bytes of disk.",
            "Use a directory on ext4, XFS, Btrfs, ZFS, APFS or NTFS.",
        )


if sys.platform == "win32":

    def _mark_sparse(descriptor: int) -> None:
        """Tell NTFS to leave holes in the file; it allocates them otherwise."""
        import ctypes
        import msvcrt

        set_sparse = 0x900C4  # FSCTL_SET_SPARSE
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor))
        returned = ctypes.c_ulong()
        ctypes.windll.kernel32.DeviceIoControl(handle, set_sparse, None, 0, None, 0, ctypes.byref(returned), None)

    def _allocated_bytes(path: Path) -> int:
        """Return the bytes of disk that the file takes."""
        import ctypes

        high = ctypes.c_ulong()
        low: int = ctypes.windll.kernel32.GetCompressedFileSizeW(str(path), ctypes.byref(high))
        return (high.value << 32) | (low & 0xFFFFFFFF)

else:

    def _mark_sparse(descriptor: int) -> None:
        """Do nothing: POSIX file systems that can leave holes do so unasked."""

    def _allocated_bytes(path: Path) -> int:
        """Return the bytes of disk that the file takes."""
        # Units of 512 bytes, whatever the file system's block size is.
        return path.stat().st_blocks * 512
