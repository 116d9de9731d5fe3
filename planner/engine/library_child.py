"""What runs in a process of its own: it has llama-cpp-python loaded, and nothing of planner.

One JSON request a line on standard input, one JSON answer a line on standard output: what llama.cpp logged,
and its errors. It ends when its input does. llama.cpp may abort here; then one answer is missing, no more.

`llama_cpp` promises the layouts of its own build's structures, so the library is the one that it brings.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import llama_cpp as llama

_LIBRARIES = Path(llama.__file__).parent / "lib"
ERROR_LEVEL = 4
"""GGML_LOG_LEVEL_ERROR."""
_GRAPHICS = (1, 2)
"""GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU."""


class _Override(ctypes.Structure):
    """`llama_model_tensor_buft_override`, which llama_cpp leaves out."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def library(name: str) -> ctypes.CDLL:
    """One of the libraries that came with llama_cpp."""
    found = next(iter(sorted(_LIBRARIES.glob(f"*{name}.*"))), None)
    if found is None:
        sys.exit(f"this llama-cpp-python was built without {name}")
    return ctypes.CDLL(str(found))


def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """A function of a library, with its types."""
    found = getattr(library, name)
    found.restype, found.argtypes = result, arguments
    return found


class Llama:
    """llama.cpp with its log heard. Opens models and makes contexts as planner's settings say."""

    def __init__(self) -> None:
        self._log = llama.llama_log_callback(self._logged)
        llama.llama_log_set(self._log, ctypes.c_void_p(0))
        llama.llama_backend_init()
        base = library("ggml-base")
        registry = library("ggml")
        pointer = ctypes.c_void_p
        self._device_count = function(registry, "ggml_backend_dev_count", ctypes.c_size_t)
        self._device = function(registry, "ggml_backend_dev_get", pointer, ctypes.c_size_t)
        self._buffer_type = function(base, "ggml_backend_dev_buffer_type", pointer, pointer)
        self._buffer_name = function(base, "ggml_backend_buft_name", ctypes.c_char_p, pointer)
        self._model: Any = None

    def _logged(self, level: int, text: bytes, _data: object) -> None:
        """Hear a piece of llama.cpp's log."""

    def _devices(self) -> list[int]:
        return [self._device(index) for index in range(self._device_count())]

    def _buffer_types(self) -> dict[str, tuple[int, int]]:
        """Device and buffer type by the name that llama.cpp logs; the CPU comes as `CPU`."""
        types = [(device, self._buffer_type(device)) for device in self._devices()]
        return {self._buffer_name(buffer_type).decode(): (device, buffer_type) for device, buffer_type in types}

    def _open(self, path: str, settings: dict[str, Any]) -> Any:
        parameters = llama.llama_model_default_params()
        types = self._buffer_types()
        unknown = [name for name in settings["devices"] or () if name not in types]
        unknown += [name for _, name in settings["overrides"] if name not in types]
        if unknown:
            self._logged(ERROR_LEVEL, f"this build has no device {', '.join(unknown)}\n".encode(), None)
            return None
        overrides = [(pattern.encode(), types[name][1]) for pattern, name in settings["overrides"]]
        # Kept until the model is open: the structure holds addresses only.
        self._overrides = (_Override * (len(overrides) + 1))(*(_Override(*override) for override in overrides))
        self._shares = (ctypes.c_float * llama.llama_max_devices())(*settings["tensor_split"])
        if settings["devices"] is not None:
            devices = [types[name][0] for name in settings["devices"]]
            self._used = (ctypes.c_void_p * (len(devices) + 1))(*devices)
            parameters.devices = ctypes.cast(self._used, ctypes.c_void_p)
        if overrides:
            parameters.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)
        parameters.tensor_split = self._shares
        if not self._set(parameters, settings["plain"]):
            return None
        return llama.llama_model_load_from_file(path.encode(), parameters)

    def _context(self, settings: dict[str, Any]) -> Any:
        parameters = llama.llama_context_default_params()
        if not self._set(parameters, settings["plain"]):
            return None
        if not parameters.n_ctx:
            parameters.n_ctx = settings["trained_times"] * llama.llama_model_n_ctx_train(self._model)
        return llama.llama_init_from_model(self._model, parameters)

    def _set(self, parameters: ctypes.Structure, values: dict[str, Any]) -> bool:
        """Fill in settings; False, and said so, where this version lacks one: Python would take any name."""
        missing = [name for name in values if not hasattr(parameters, name)]
        if missing:
            self._logged(ERROR_LEVEL, f"error: this version has no setting {', '.join(missing)}\n".encode(), None)
            return False
        for name, value in values.items():
            setattr(parameters, name, value)
        return True


class Answerer(Llama):
    """Makes dry runs. Keeps the last model open: its contexts cost milliseconds, opening it more."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._opened: Any = None
        self._opening: list[str] = []
        super().__init__()

    def _logged(self, level: int, text: bytes, _data: object) -> None:
        decoded = text.decode(errors="replace")
        self._lines.append(decoded)
        if level == ERROR_LEVEL:
            self._errors.append(decoded)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say what this library is; or open what is not open yet, create the context, and tell what was logged."""
        if "path" not in request:
            return self._described()
        wanted = (request["path"], request["written"], request["model"])
        if self._opened != wanted:
            self._close()
            self._forget()
            self._model = self._open(request["path"], request["model"])
            self._opened = wanted
            self._opening = list(self._lines)
        if self._model is None:
            return {"log": "".join(self._opening), "refusal": "".join(self._errors) or "the model did not open"}
        self._forget()
        context = self._context(request["context"])
        refusal = "" if context else "".join(self._errors) or "no context"
        answer = {"log": "".join(self._opening + self._lines), "refusal": refusal}
        if context:
            llama.llama_free(context)
        return answer

    def _described(self) -> dict[str, Any]:
        """The commit, the back ends that have a device, and the devices beside the processor."""
        base = library("ggml-base")
        pointer = ctypes.c_void_p
        commit = function(base, "ggml_commit", ctypes.c_char_p)
        kind = function(base, "ggml_backend_dev_type", ctypes.c_int, pointer)
        name = function(base, "ggml_backend_dev_name", ctypes.c_char_p, pointer)
        description = function(base, "ggml_backend_dev_description", ctypes.c_char_p, pointer)
        size = ctypes.POINTER(ctypes.c_size_t)
        memory = function(base, "ggml_backend_dev_memory", None, pointer, size, size)
        back_end = function(base, "ggml_backend_dev_backend_reg", pointer, pointer)
        back_end_name = function(base, "ggml_backend_reg_name", ctypes.c_char_p, pointer)
        devices = []
        for device in self._devices():
            if kind(device) in _GRAPHICS:
                free, total = ctypes.c_size_t(), ctypes.c_size_t()
                memory(device, ctypes.byref(free), ctypes.byref(total))
                devices.append(
                    {
                        "name": name(device).decode(),
                        "description": description(device).decode(errors="replace"),
                        "total_bytes": total.value,
                        "free_bytes": free.value,
                    }
                )
        return {
            "commit": commit().decode(),
            "backends": list(dict.fromkeys(back_end_name(back_end(device)).decode() for device in self._devices())),
            "devices": devices,
        }

    def _forget(self) -> None:
        self._lines.clear()
        self._errors.clear()

    def _close(self) -> None:
        if self._model is not None:
            llama.llama_model_free(self._model)
        self._model = self._opened = None


def answer_all(answerer: Answerer) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what llama.cpp prints is no answer
    for line in sys.stdin:
        print(json.dumps(answerer.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    answer_all(Answerer())
