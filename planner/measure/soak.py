"""Conversation after conversation, until nothing grows any more or the time is over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from planner.engine.server import LlamaServer
from planner.launch import ResolvedContext
from planner.measure.measurement import Kept, Sample, Soak
from planner.measure.users import PROMPT_BEYOND_UBATCH_TOKENS, Answer, Workload, at_once, complete, prompt_tokens
from planner.units import MIB

ANSWER_TOKENS = 8
"""Of each turn: what grows depends on what was said, not on who said it."""
_LEVEL_ROUNDS = 2
"""Rounds after which nothing more is kept than before them."""
_QUIET_S = 0.3
_CACHE_STATE = re.compile(r"cache state: \d+ prompts, (?P<mib>\d+[.,]\d+) MiB")
_KEPT = re.compile(
    r"- prompt \S+\s+(?P<tokens>\d+) tokens, checkpoints:\s*(?P<checkpoints>\d+),\s*(?P<mib>\d+[.,]\d+) MiB"
)


@dataclass(frozen=True, slots=True)
class Script:
    """How one conversation goes: how many tokens each prompt adds, and how many the answers."""

    turns: tuple[int, ...]
    answer_tokens: int

    @property
    def prompt_ends(self) -> tuple[int, ...]:
        """Tokens in the slot when each prompt has been read."""
        ends = []
        held = 0
        for added in self.turns:
            held += added
            ends.append(held)
            held += self.answer_tokens
        return tuple(ends)

    @property
    def tokens(self) -> int:
        """Tokens in the slot at the end; the last token that was generated is not read again."""
        return self.prompt_ends[-1] + self.answer_tokens - 1


def script_for(workload: Workload, context: ResolvedContext) -> Script:
    """A conversation that fills what the measurement filled, in turns of one ubatch and a little more."""
    answer = min(ANSWER_TOKENS, workload.generated_tokens)
    turn = context.n_ubatch + PROMPT_BEYOND_UBATCH_TOKENS
    turns = max(1, (workload.prompt_tokens + answer) // (turn + answer))
    return Script((turn,) * turns if turns > 1 else (workload.prompt_tokens,), answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """What is asked of a soak."""

    users: int
    script: Script
    seed: int
    minutes: float
    before: Sample
    """The memory before the first conversation."""
    take: Callable[[], Sample]
    on_conversation: Callable[[int], None]
    """Gets how many have come to their end."""


def soak(server: LlamaServer, asked: Conversations) -> Soak:
    """Let everyone hold conversations, each about something else, as a busy day would. When the time is over nobody
    asks another question: a conversation that is cut off by it does not count.

    Raises EngineError if the server fails, Cancelled if the person asks.
    """
    kept_before, _ = kept_prompts(server.log_text)
    start = time.monotonic()
    conversations = 0
    held = [0] * asked.users
    sizes: list[int] = []
    ended: Literal["level", "time"] = "time"

    def is_over() -> bool:
        return time.monotonic() - start >= asked.minutes * 60

    while not is_over():
        told = _round(server, asked, len(sizes), conversations, is_over)
        whole = told.count(asked.script.tokens)
        conversations += whole
        held = [tokens or earlier for tokens, earlier in zip(told, held, strict=True)]
        server.quiet_log(_QUIET_S)
        sizes.append(kept_prompts(server.log_text)[0])
        if whole == asked.users and len(sizes) > _LEVEL_ROUNDS and len(set(sizes[-_LEVEL_ROUNDS - 1 :])) == 1:
            ended = "level"
            break
    kept_bytes, kept = kept_prompts(server.log_text)
    return Soak(
        seconds=time.monotonic() - start,
        conversations=conversations,
        turns=len(asked.script.turns),
        tokens=asked.script.tokens,
        held=tuple(held),
        ended=ended,
        before=asked.before,
        after=asked.take(),
        kept_before_bytes=kept_before,
        kept_bytes=kept_bytes,
        kept=kept,
    )


def _round(
    server: LlamaServer, asked: Conversations, number: int, ended_before: int, is_over: Callable[[], bool]
) -> list[int]:
    """One conversation of everyone; the tokens that each slot holds then."""
    told = [0] * asked.users

    def talk(user: int) -> None:
        told[user] = _converse(server, asked.script, asked.seed + number * asked.users + user, is_over)

    at_once(server, asked.users, talk, lambda done: asked.on_conversation(ended_before + done))
    return told


def _converse(server: LlamaServer, script: Script, seed: int, is_over: Callable[[], bool]) -> int:
    """One conversation, until the time is over; the tokens that its slot holds then."""
    said: list[int] = []
    held = 0
    for turn, added in enumerate(script.turns):
        if is_over():
            break
        said += prompt_tokens(server, added, seed + 7_919 * turn)
        answer = Answer()
        complete(server, said, script.answer_tokens, answer, {"cache_prompt": True, "seed": seed})
        said += answer.tokens
        held = script.prompt_ends[turn] + script.answer_tokens - 1
    return held


def kept_prompts(log_text: str) -> tuple[int, tuple[Kept, ...]]:
    """The bytes of the prompt cache and what is in it, as the log last said; nothing said is nothing kept."""
    states = list(_CACHE_STATE.finditer(log_text))
    if not states:
        return 0, ()
    state = states[-1]
    kept = (
        Kept(int(match["tokens"]), int(match["checkpoints"]), _bytes(match["mib"]))
        for match in _KEPT.finditer(log_text, state.end())
    )
    return _bytes(state["mib"]), tuple(kept)


def _bytes(mib: str) -> int:
    return round(float(mib.replace(",", ".")) * MIB)
