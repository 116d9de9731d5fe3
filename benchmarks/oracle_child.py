"""What `tests.oracle` runs in processes of their own. `llama_cpp` is imported here and nowhere else.

`serve PORT` is an RPC server of the CPU device. `answer` opens models and creates contexts, one JSON request a
line on stdin, one JSON answer a line on stdout: what llama.cpp logged, and its errors. Both end when stdin does.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import llama_cpp as llama

_LIBRARIES = Path(llama.__file__).parent / "lib"
_ERROR_LEVEL = 4


class _Override(ctypes.Structure):
    """`llama_model_tensor_buft_override`, which llama_cpp leaves out."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _library(name: str) -> ctypes.CDLL:
    found = next(iter(sorted(_LIBRARIES.glob(f"*{name}.*"))), None)
    if found is None:
        sys.exit(f"llama-cpp-python was built without {name}: CMAKE_ARGS=-DGGML_RPC=ON")
    return ctypes.CDLL(str(found))


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


def serve(port: int) -> None:
    """Be a device for others, on one thread, until the parent is gone."""
    threading.Thread(target=lambda: os._exit(len(sys.stdin.read())), daemon=True).start()
    device = _function(
        _library("ggml-base"), "ggml_backend_reg_dev_get", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    )
    registry = _function(_library("ggml-cpu"), "ggml_backend_cpu_reg", ctypes.c_void_p)
    start = _function(
        _library("ggml-rpc"),
        "ggml_backend_rpc_start_server",
        None,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    )
    devices = (ctypes.c_void_p * 1)(device(registry(), 0))
    start(f"127.0.0.1:{port}".encode(), None, 1, 1, devices)


class _Answerer:
    """Keeps the last model open: its contexts cost milliseconds, opening it more."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._log = llama.llama_log_callback(self._logged)
        llama.llama_log_set(self._log, ctypes.c_void_p(0))
        llama.llama_backend_init()
        base = _library("ggml-base")
        registry = _library("ggml")
        pointer = ctypes.c_void_p
        self._register = _function(registry, "ggml_backend_register", None, pointer)
        self._device_count = _function(registry, "ggml_backend_dev_count", ctypes.c_size_t)
        self._device = _function(registry, "ggml_backend_dev_get", pointer, ctypes.c_size_t)
        self._device_type = _function(base, "ggml_backend_dev_type", ctypes.c_int, pointer)
        self._buffer_type = _function(base, "ggml_backend_dev_buffer_type", pointer, pointer)
        self._buffer_name = _function(base, "ggml_backend_buft_name", ctypes.c_char_p, pointer)
        self._model: Any = None
        self._opened: Any = None

    def _logged(self, level: int, text: bytes, _data: object) -> None:
        decoded = text.decode(errors="replace")
        self._lines.append(decoded)
        if level == _ERROR_LEVEL:
            self._errors.append(decoded)

    def add_servers(self, endpoints: list[str]) -> None:
        """Make the RPC servers devices of this process."""
        add = _function(_library("ggml-rpc"), "ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
        for endpoint in endpoints:
            self._register(add(endpoint.encode()))

    def _buffer_types(self) -> dict[str, tuple[int, int]]:
        """Device and buffer type by the name that llama.cpp logs; the CPU comes as `CPU`."""
        devices = [self._device(index) for index in range(self._device_count())]
        return {self._buffer_name(self._buffer_type(one)).decode(): (one, self._buffer_type(one)) for one in devices}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open what is not open yet, create the context, and tell what was logged."""
        wanted = (request["path"], request["written"], request["model"])
        if self._opened != wanted:
            self._close()
            self._lines.clear()
            self._errors.clear()
            self._model = self._open(request["path"], request["model"])
            self._opened = wanted
            self._opening = list(self._lines)
        if self._model is None:
            return {"log": "".join(self._opening), "refusal": "".join(self._errors) or "the model did not open"}
        self._lines.clear()
        self._errors.clear()
        context = self._context(request["context"])
        refusal = "" if context else "".join(self._errors) or "no context"
        answer = {"log": "".join(self._opening + self._lines), "refusal": refusal}
        if context:
            llama.llama_free(context)
        return answer

    def _close(self) -> None:
        if self._model is not None:
            llama.llama_model_free(self._model)
        self._model = self._opened = None

    def _open(self, path: str, settings: dict[str, Any]) -> Any:
        parameters = llama.llama_model_default_params()
        types = self._buffer_types()
        devices = [types[name][0] for name in settings["devices"]]
        overrides = [(pattern.encode(), types[name][1]) for pattern, name in settings["overrides"]]
        # Kept until the model is open: the structure holds addresses only.
        self._devices = (ctypes.c_void_p * (len(devices) + 1))(*devices)
        self._overrides = (_Override * (len(overrides) + 1))(*(_Override(*override) for override in overrides))
        self._shares = (ctypes.c_float * llama.llama_max_devices())(*settings["tensor_split"])
        parameters.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        if overrides:
            parameters.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)
        parameters.tensor_split = self._shares
        for name, value in settings["plain"].items():
            setattr(parameters, name, value)
        return llama.llama_model_load_from_file(path.encode(), parameters)

    def _context(self, settings: dict[str, Any]) -> Any:
        parameters = llama.llama_context_default_params()
        for name, value in settings["plain"].items():
            setattr(parameters, name, value)
        if not parameters.n_ctx:
            parameters.n_ctx = settings["trained_times"] * llama.llama_model_n_ctx_train(self._model)
        return llama.llama_init_from_model(self._model, parameters)


def answer(endpoints: list[str]) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what llama.cpp prints is no answer
    answerer = _Answerer()
    answerer.add_servers(endpoints)
    for line in sys.stdin:
        print(json.dumps(answerer.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        answer(sys.argv[2:])
