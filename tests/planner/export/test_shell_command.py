from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from planner.errors import UsageError
from planner.export import shell_command

SERVING = ["--host", "127.0.0.1", "--port", "8080"]


def test_the_command_serves_on_loopback() -> None:
    command = ["llama-server", "--model", "m.gguf", "--ctx-size", "8192"]
    assert shell_command(command) == "llama-server --model m.gguf --ctx-size 8192 --host 127.0.0.1 --port 8080"


@pytest.mark.skipif(sys.platform == "win32", reason="quoted for cmd there")
@pytest.mark.parametrize("path", ["/models/My Model.gguf", "it's.gguf", "$HOME/a;b.gguf", 'say "hi".gguf'])
def test_a_shell_reads_back_every_word(path: str) -> None:
    assert shlex.split(shell_command(["llama-server", "--model", path])) == [
        "llama-server",
        "--model",
        path,
        *SERVING,
    ]


def test_a_ghost_s_own_file_is_not_in_its_command() -> None:
    command = shell_command(["llama-server", "--model", "/tmp/x/ghost.gguf", "--ctx-size", "1"], ghost=True)
    assert "ghost" not in command
    assert command.startswith("llama-server --model MODEL.gguf --ctx-size 1 ")


def test_the_file_that_a_ghost_stands_for_is_named() -> None:
    words = ["llama-server", "--model", "/tmp/x/m.ghost.gguf"]
    command = shell_command(words, ghost=True, stands_for=Path("/models/m.gguf"))
    assert command.startswith("llama-server --model /models/m.gguf --host ")


@pytest.mark.parametrize("name", ["m.ghost.gguf", "/tmp/x/M.Ghost.GGUF", "m.ghost-00001-of-00003.gguf"])
def test_no_command_serves_a_ghost(name: str) -> None:
    with pytest.raises(UsageError, match="is a ghost: a header without weights, so there is nothing to serve"):
        shell_command(["llama-server", "--model", name])
