"""People at the server: each in a slot of its own, with a prompt of its own, all at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from planner.engine.faults import EngineFault
from planner.engine.process import POLL_S
from planner.engine.server import LlamaServer
from planner.errors import EngineError
from planner.launch import ResolvedContext
from planner.measure.measurement import Speed

GENERATED_TOKENS = 32
PROMPT_BEYOND_UBATCH_TOKENS = 88
"""A prompt is one ubatch and a little more, so that the compute buffer is used at its full width."""
ANSWER_TIMEOUT_S = 3600.0

_SPARE_TOKENS = 8
_WORDS = (
    "water light stone river garden winter morning letter music window paper table bread silver "
    "forest evening market bridge island engine kitchen summer painter shadow harbour mountain story village"
).split()

OnServing = Callable[[bool, int], None]
"""Gets whether everyone is being answered by now, and how many answers have ended."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What each person sends and gets, in tokens."""

    prompt_tokens: int
    generated_tokens: int


def workload_for(context: ResolvedContext, *, n_ctx_train: int | None = None, fill: float | None = None) -> Workload:
    """How deep each person fills the context: to the part `fill` of it, else one ubatch and a little more.

    That reaches every buffer at its full width, and takes minutes on the slowest machine. A slot gets no more than
    the model was trained on (`n_ctx_train`), and a unified cache must hold everyone at once.
    """
    shared = context.n_ctx_seq // (context.n_seq_max if context.n_stream == 1 else 1)
    room = min(shared, n_ctx_train or shared)
    generated = min(GENERATED_TOKENS, max(1, room // 8))
    asked = context.n_ubatch + PROMPT_BEYOND_UBATCH_TOKENS if fill is None else int(fill * room)
    return Workload(
        prompt_tokens=max(1, min(asked, room - generated - _SPARE_TOKENS)),
        generated_tokens=generated,
    )


def prompt_tokens(server: LlamaServer, count: int, seed: int) -> list[int]:
    """Exactly `count` tokens of text generated from `seed`, in the model's own vocabulary."""
    answer = server.post("/tokenize", {"content": text_of(count, seed)}, timeout_s=ANSWER_TIMEOUT_S)
    return cut_to(count, tokens_of(answer), server.name)


def text_of(words: int, seed: int) -> str:
    """So many plain words generated from `seed`: as many tokens in most vocabularies."""
    source = random.Random(seed)
    return " ".join(source.choice(_WORDS) for _ in range(words))


def cut_to(count: int, tokens: list[int], engine: str) -> list[int]:
    """Exactly `count` of these tokens, again from the first where they are fewer. `engine` is who made them."""
    if not tokens:
        raise EngineError(f"{engine} turned a text of plain words into no tokens.")
    return (tokens * (count // len(tokens) + 1))[:count]


def tokens_of(answer: Mapping[str, Any]) -> list[int]:
    """The tokens that an answer tells. Raises EngineFault where they are none."""
    tokens = answer.get("tokens", [])
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise EngineFault("llama-server answered with tokens that are no numbers.", kind="answer")
    return tokens


@dataclass(slots=True)
class Answer:
    """One answer, as far as it has come."""

    tokens: list[int] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    """When each token came, in seconds of one clock."""


def serve(server: LlamaServer, users: int, workload: Workload, seed: int, on_serving: OnServing) -> Speed:
    """Send one request per person at once, wait for all answers, and say how fast they came.

    Raises EngineError if the server refuses, breaks off, dies or stops short; Cancelled if the person asks.
    """
    prompts = [prompt_tokens(server, workload.prompt_tokens, seed + user) for user in range(users)]
    answers = [Answer() for _ in prompts]
    start = time.monotonic()

    def ask(slot: int) -> None:
        # In a slot of its own, and nothing of it kept: what is measured is one conversation per slot.
        fixed = {"id_slot": slot, "seed": slot, "cache_prompt": False}
        complete(server, prompts[slot], workload.generated_tokens, answers[slot], fixed)

    def report(answered: int) -> None:
        on_serving(all(answer.moments for answer in answers), answered)

    at_once(server, users, ask, report)
    return speed_of(workload, start, [answer.moments for answer in answers])


def at_once(server: LlamaServer, users: int, ask: Callable[[int], None], on_answered: Callable[[int], None]) -> None:
    """Let everyone ask at once, each in a thread of its own, and wait until all have their answers."""
    pool = ThreadPoolExecutor(max_workers=users, thread_name_prefix="user")
    try:
        _wait(server, [pool.submit(ask, user) for user in range(users)], on_answered)
    finally:
        # Never waits here: on the way out the server is stopped, which ends every open request.
        pool.shutdown(wait=False, cancel_futures=True)


def _wait(server: LlamaServer, futures: list[Future[None]], on_answered: Callable[[int], None]) -> None:
    while True:
        done = [future for future in futures if future.done()]
        for future in done:
            future.result()
        on_answered(len(done))
        if len(done) == len(futures):
            return
        server.check_alive()
        server.pause(POLL_S)


def complete(
    server: LlamaServer, prompt: Sequence[int], generated_tokens: int, answer: Answer, fixed: Mapping[str, object]
) -> None:
    """Have one prompt answered; `fixed` is what the request says beside it. Fills `answer` as tokens come."""
    body = {
        "prompt": list(prompt),
        "n_predict": generated_tokens,
        "ignore_eos": True,
        "stream": True,
        "return_tokens": True,
        **fixed,
    }
    last: dict[str, Any] = {}
    for last in server.stream("/completion", body, timeout_s=ANSWER_TIMEOUT_S):
        answer.tokens += tokens_of(last)
        # A token that ends within a character is held back; it is counted with the next one that is told.
        predicted = last.get("tokens_predicted")
        predicted = predicted if isinstance(predicted, int) else len(answer.tokens)
        answer.moments += [time.monotonic()] * (predicted - len(answer.moments))
    if len(answer.moments) < generated_tokens:
        _raise_short(len(prompt), len(answer.moments), generated_tokens, out_of_context=last.get("truncated") is True)


def _raise_short(prompt: int, generated: int, asked: int, *, out_of_context: bool) -> None:
    if out_of_context:
        raise EngineFault(
            f"A slot ran out of context after {prompt} tokens of prompt and {generated} of answer.",
            "Give it more --context, or fill less of it (--fill).",
            kind="context",
        )
    raise EngineFault(f"llama-server generated {generated} tokens of the {asked} it was asked for.", kind="answer")


def speed_of(workload: Workload, start: float, answers: Sequence[Sequence[float]]) -> Speed:
    """Rates from the moments of each person's tokens (seconds of one clock, `start` on the same clock).

    Generation is judged over the time in which everyone was being answered: before it some still wait for
    their prompt, after it some have finished. Where there is no such time, over the whole generation.
    """
    begun = max(moments[0] for moments in answers)
    ended = min(moments[-1] for moments in answers)
    if ended <= begun:
        begun, ended = min(moments[0] for moments in answers), max(moments[-1] for moments in answers)
    together = sum(1 for moments in answers for moment in moments if begun < moment <= ended)
    return Speed(
        users=len(answers),
        prompt_tokens=workload.prompt_tokens,
        generated_tokens=workload.generated_tokens,
        prompt_tokens_per_s=_rate(len(answers) * workload.prompt_tokens, begun - start),
        generated_tokens_per_s=_rate(together, ended - begun),
        first_token_s=max(moments[0] for moments in answers) - start,
    )


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
