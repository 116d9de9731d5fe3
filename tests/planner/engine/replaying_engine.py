"""A llama-server that says what a real one said, of devices or of a build that is not here, and answers with no model.

python replaying_engine.py LOG DEVICES ...: what follows are the arguments of a llama-server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

from fake_engines import HELP, write_script

_MORE_HELP = """
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM
-sm,   --split-mode {none,layer}        how to split the model across multiple GPUs
-ts,   --tensor-split N0,N1,N2,...      fraction of the model to offload to each GPU
"""
_LAST_BEFORE_WORK = "listening on"


def write_replay(path: Path, log: Path, devices: str = "") -> Path:
    """A llama-server that lists these devices and tells this log."""
    words = f"'{sys.executable}' '{__file__}' '{log}' '{devices}'"
    return write_script(path, f"PYTHONPATH='{os.pathsep.join(sys.path)}' exec {words} \"$@\"")


class _Answers(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing: the log is the real one's."""

    def do_GET(self) -> None:
        self._send({"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._send({"tokens": [1 + index % 7 for index, _ in enumerate(asked["content"].split())]})
            return
        self.send_response(200)
        self.end_headers()
        count = asked["n_predict"]
        for number in range(1, count + 1):
            event = {"tokens": [number], "tokens_predicted": number, "stop": number == count}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def _send(self, answer: dict[str, object]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(log: Path, port: int) -> None:
    """Tell the log of loading, answer until an interrupt, tell the rest."""
    lines = log.read_text(encoding="utf-8").splitlines()
    ready = next(index for index, line in enumerate(lines) if _LAST_BEFORE_WORK in line)
    print(*lines[: ready + 1], sep="\n", file=sys.stderr, flush=True)
    server = ThreadingHTTPServer(("127.0.0.1", port), _Answers)

    def end(*_: object) -> NoReturn:
        print(*lines[ready + 1 :], sep="\n", file=sys.stderr, flush=True)
        os._exit(0)

    signal.signal(signal.SIGINT, end)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        signal.pause()


def main() -> None:
    """Answer like a llama-server."""
    log, devices, *arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print("version: 11434 (86a2835)")
    elif arguments == ["--help"]:
        print(HELP + _MORE_HELP)
    elif arguments == ["--list-devices"]:
        print(f"Available devices:\n{devices}")
    else:
        serve(Path(log), int(arguments[arguments.index("--port") + 1]))


if __name__ == "__main__":
    main()
