"""What `benchmarks.oracle` runs in processes of their own: the library's answers, and devices for them.

`serve PORT` is an RPC server of the CPU device. `answer ENDPOINT...` is the child of planner's dry runs, with such
servers as its devices. Both end when their standard input does.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

from planner.engine.library_child import Answerer, answer_all, function, library


def serve(port: int) -> None:
    """Be a device for others, on one thread, until the parent is gone."""
    threading.Thread(target=lambda: os._exit(len(sys.stdin.read())), daemon=True).start()
    device = function(
        library("ggml-base"), "ggml_backend_reg_dev_get", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    )
    registry = function(library("ggml-cpu"), "ggml_backend_cpu_reg", ctypes.c_void_p)
    start = function(
        library("ggml-rpc"),
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


def add_servers(endpoints: list[str]) -> None:
    """Make the RPC servers devices of this process."""
    register = function(library("ggml"), "ggml_backend_register", None, ctypes.c_void_p)
    add = function(library("ggml-rpc"), "ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    for endpoint in endpoints:
        register(add(endpoint.encode()))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        answerer = Answerer()
        if sys.argv[2:]:
            add_servers(sys.argv[2:])
        answer_all(answerer)
