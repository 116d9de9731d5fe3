"""What runs in a process of its own and serves people: llama-cpp-python with a launch of a model, allocated for real.

JSON lines: the first on standard input opens the model, every further one asks; answers stand on standard output,
llama.cpp's log on standard error. It ends when its input does, and with exit code 1 where nothing can be opened.
Like llama-server it decodes everyone's tokens in one batch: one of each answer under way, then prompts, as many of
their tokens as a batch has room for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import llama_cpp as llama
import numpy as np

if TYPE_CHECKING:
    from planner.engine.library_child import Llama
else:
    # Last, since the folder holds modules of planner, which are none of this process.
    sys.path.append(str(Path(__file__).parent))
    from library_child import Llama

_DEBUG_LEVEL, _CONTINUED_LEVEL = 1, 5
_LOG = 2
"""Standard error, unbuffered: what was said before an abort is heard."""


@dataclass(slots=True)
class _Person:
    """One conversation in a sequence of its own."""

    sequence: int
    prompt: list[int]
    left: int
    """Tokens that are still to be generated."""
    position: int = 0
    """Tokens that were handed over."""
    next_token: int | None = None
    """The one that was generated last and is to be decoded."""


@dataclass(slots=True)
class _Batch:
    """`llama_batch`, filled anew for each step."""

    room: int
    batch: Any = field(init=False)
    outputs: list[tuple[int, _Person]] = field(default_factory=list)
    """Where logits are asked for, and whose they are."""

    def __post_init__(self) -> None:
        self.batch = llama.llama_batch_init(self.room, 0, 1)

    @property
    def is_full(self) -> bool:
        return bool(self.batch.n_tokens >= self.room)

    def clear(self) -> None:
        self.batch.n_tokens = 0
        self.outputs.clear()

    def add(self, token: int, person: _Person, *, output: bool) -> None:
        index = self.batch.n_tokens
        self.batch.token[index] = token
        self.batch.pos[index] = person.position
        self.batch.n_seq_id[index] = 1
        self.batch.seq_id[index][0] = person.sequence
        self.batch.logits[index] = output
        self.batch.n_tokens = index + 1
        person.position += 1
        if output:
            self.outputs.append((index, person))


class Server(Llama):
    """Serves people."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers
        self._heard = True
        super().__init__()

    def _logged(self, level: int, text: bytes, _data: object) -> None:
        if level != _CONTINUED_LEVEL:
            self._heard = level != _DEBUG_LEVEL
        if self._heard:
            os.write(_LOG, text)

    def _say(self, **answer: Any) -> None:
        """With the moment: `time.monotonic` is one clock for all processes of a machine."""
        print(json.dumps({**answer, "at": time.monotonic()}), file=self._answers, flush=True)

    def open(self, request: dict[str, Any]) -> None:
        """Open the model and make its context; ends the process where llama.cpp does not, having said why."""
        self._model = self._open(request["path"], request["model"])
        if not self._model:
            sys.exit(1)
        self._context_now = self._context(request["context"])
        if not self._context_now:
            sys.exit(1)
        self._vocabulary = llama.llama_model_get_vocab(self._model)
        self._tokens = llama.llama_vocab_n_tokens(self._vocabulary)
        self._memory = llama.llama_get_memory(self._context_now)
        self._batch = _Batch(llama.llama_n_batch(self._context_now))
        threads = request["context"]["plain"]["n_threads"]
        os.write(_LOG, f"system_info: n_threads = {threads} | {llama.llama_print_system_info().decode()}\n".encode())
        self._warm_up()
        os.write(_LOG, f"{Path(__file__).stem}: model loaded\n".encode())
        self._say(ready=True)

    def _warm_up(self) -> None:
        """One empty run, as `common/common.cpp: common_init_from_params` makes it: weights come into memory."""
        ends = (llama.llama_vocab_bos(self._vocabulary), llama.llama_vocab_eos(self._vocabulary))
        words = [token for token in ends if token >= 0] or [0]
        llama.llama_set_warmup(self._context_now, True)
        llama.llama_decode(self._context_now, llama.llama_batch_get_one((llama.llama_token * 2)(*words), len(words)))
        llama.llama_memory_clear(self._memory, True)
        llama.llama_synchronize(self._context_now)
        llama.llama_set_warmup(self._context_now, False)

    def answer(self, request: dict[str, Any]) -> None:
        """Turn a text into tokens, or serve people at once."""
        if "text" in request:
            self._say(tokens=self._tokenized(request["text"].encode()))
        else:
            self._serve(request["prompts"], request["generate"])

    def _tokenized(self, text: bytes) -> list[int]:
        room = len(text) + 8
        tokens = (llama.llama_token * room)()
        count = llama.llama_tokenize(self._vocabulary, text, len(text), tokens, room, False, True)
        return list(tokens[: max(0, count)])

    def _serve(self, prompts: list[list[int]], generate: int) -> None:
        people = [_Person(sequence, prompt, generate) for sequence, prompt in enumerate(prompts)]
        for person in people:
            llama.llama_memory_seq_rm(self._memory, person.sequence, -1, -1)
        while any(person.left for person in people):
            self._fill([person for person in people if person.left])
            code = llama.llama_decode(self._context_now, self._batch.batch)
            if code:
                self._say(refused=code)
                return
            for index, person in self._batch.outputs:
                person.next_token = self._most_likely(index)
                person.left -= 1
            if self._batch.outputs:
                self._say(answered=[person.sequence for _, person in self._batch.outputs])
        self._say(done=True)

    def _fill(self, people: list[_Person]) -> None:
        """The next step's tokens (`tools/server/server-context.cpp: update_slots`)."""
        self._batch.clear()
        for person in people:
            if person.next_token is not None:
                self._batch.add(person.next_token, person, output=True)
        for person in people:
            while person.position < len(person.prompt) and not self._batch.is_full:
                token = person.prompt[person.position]
                self._batch.add(token, person, output=person.position == len(person.prompt) - 1)

    def _most_likely(self, index: int) -> int:
        logits = llama.llama_get_logits_ith(self._context_now, index)
        return int(np.ctypeslib.as_array(logits, (self._tokens,)).argmax())


def main() -> None:
    """Open what the first line names, then answer until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it holds nothing that the system does not take back
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(_LOG, 1)  # what llama.cpp prints is no answer
    server = Server(answers)
    for number, line in enumerate(sys.stdin):
        (server.answer if number else server.open)(json.loads(line))


if __name__ == "__main__":
    main()
