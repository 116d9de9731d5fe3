"""A llama-server under our control, on a free port of this machine with a key of its own, and what is asked of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from planner.engine.faults import EngineFault
from planner.engine.process import POLL_S, EngineProcess

HOST = "127.0.0.1"
_NO_CONTEXT = re.compile(r"exceeds the available context size|[Cc]ontext size has been exceeded")
"""`tools/server/server-context.cpp`: of one request that is too long, and of slots that share a full cache."""


class ServerAnswerError(EngineFault):
    """The server answered a request with an error, in its own words."""


class LlamaServer(EngineProcess):
    """A running llama-server. It listens on a free loopback port with an API key of its own."""

    port = 0
    """Chosen when it starts, as the key is; both are added to its command and its environment, as is the verbosity."""
    _key = ""

    def _whole_command(self) -> list[str]:
        self.port, self._key = _free_port(), secrets.token_hex(16)
        return [*self._command, "--host", HOST, "--port", str(self.port), "--verbosity", "4"]

    def _environment(self) -> dict[str, str]:
        # In the environment and not among the arguments, where every user of the machine could read it.
        return {**super()._environment(), "LLAMA_API_KEY": self._key}

    def _is_ready(self) -> bool:
        try:
            status, _ = self._send("GET", "/health", None, timeout_s=5)
        except (OSError, http.client.HTTPException):
            return False
        return status == 200

    def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Send a request and give the decoded answer. Blocks: call it from a thread that may wait."""
        with self._answering(path, timeout_s):
            status, answer = self._send("POST", path, body, timeout_s)
        if status != 200:
            raise _refusal(path, status, answer)
        return answer

    def stream(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Send a request and yield the events of its answer as they come (server-sent events)."""
        with self._answering(path, timeout_s), self._request("POST", path, body, timeout_s) as response:
            if response.status != 200:
                raise _refusal(path, response.status, _decode(response.read()))
            complete = False
            for line in response:
                if line.startswith(b"data: {"):
                    event = _decode(line.removeprefix(b"data: "))
                    if "error" in event:
                        raise _refusal(path, response.status, event)
                    complete = event.get("stop") is True
                    yield event
                elif line.startswith(b"error:"):
                    raise _refusal(path, response.status, _decode(line.removeprefix(b"error:")))
            if not complete:  # http.client takes a broken connection for the end of the answer
                raise ConnectionError("the answer has no end")

    @contextlib.contextmanager
    def _answering(self, path: str, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise EngineFault(
                f"llama-server did not answer {path} within {timeout_s:.0f} seconds.", kind="hang"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self._await_death()
            raise EngineFault(f"llama-server broke off while answering {path} ({error}).", kind="answer") from None

    def _await_death(self) -> None:
        # A connection that breaks mostly means that the server is dying: its own words say more.
        for _ in range(20):
            self.check_alive()
            time.sleep(POLL_S)

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> tuple[int, dict[str, Any]]:
        with self._request(method, path, body, timeout_s) as response:
            return response.status, _decode(response.read())

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        with contextlib.closing(connection):
            payload = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
            connection.request(method, path, payload, headers)
            with contextlib.closing(connection.getresponse()) as response:
                yield response


def _decode(text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _refusal(path: str, status: int, answer: dict[str, Any]) -> ServerAnswerError:
    error = answer.get("error", answer)
    message = error.get("message", error) if isinstance(error, dict) else error
    status = error.get("code", status) if isinstance(error, dict) else status
    words = f'llama-server answered {path} with status {status}: "{message}".'
    if _NO_CONTEXT.search(str(message)):
        return ServerAnswerError(f"A slot ran out of context: {words}", "Give it more --context.", kind="context")
    return ServerAnswerError(words, kind="answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
