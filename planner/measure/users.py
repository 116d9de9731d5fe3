"""People at the server: each in a slot of its own, with a prompt of its own, all at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from planner.engine.server import POLL_S, LlamaServer
from planner.errors import EngineError
from planner.launch import ResolvedContext
from planner.measure.measurement import Speed

GENERATED_TOKENS = 32
PROMPT_BEYOND_UBATCH_TOKENS = 88
"""A prompt is one ubatch and a little more, so that the compute buffer is used at its full width."""
ANSWER_TIMEOUT_S = 3600.0

_WORDS = (
    "water light stone river garden winter morning letter music window paper table bread silver "
    "forest evening market bridge island engine kitchen summer painter shadow harbour mountain story village"
).split()


@dataclass(frozen=True, slots=True)
class Workload:
    """What each person sends and gets, in tokens."""

    prompt_tokens: int
    generated_tokens: int


def workload_for(context: ResolvedContext) -> Workload:
    """One ubatch and a little more of prompt, as far as a slot's context allows."""
    # A unified cache must hold everyone at once.
    room = context.n_ctx_seq // (context.n_seq_max if context.n_stream == 1 else 1)
    generated = min(GENERATED_TOKENS, max(1, room // 8))
    return Workload(
        prompt_tokens=max(1, min(context.n_ubatch + PROMPT_BEYOND_UBATCH_TOKENS, room - generated - 8)),
        generated_tokens=generated,
    )


def prompt_tokens(server: LlamaServer, count: int, seed: int) -> list[int]:
    """Exactly `count` tokens of text generated from `seed`, in the model's own vocabulary."""
    words = random.Random(seed)
    text = " ".join(words.choice(_WORDS) for _ in range(count))
    answer = server.post("/tokenize", {"content": text}, timeout_s=ANSWER_TIMEOUT_S)
    tokens = [int(token) for token in answer.get("tokens", [])]
    if not tokens:
        raise EngineError("llama-server turned a text of plain words into no tokens.")
    return (tokens * (count // len(tokens) + 1))[:count]


def serve(server: LlamaServer, users: int, workload: Workload, seed: int, on_answer: Callable[[int], None]) -> Speed:
    """Send one request per person at once, wait for all answers, and say how fast they came.

    Raises EngineError if the server refuses, breaks off, dies or stops short; Cancelled if the person asks.
    """
    prompts = [prompt_tokens(server, workload.prompt_tokens, seed + user) for user in range(users)]
    pool = ThreadPoolExecutor(max_workers=users, thread_name_prefix="user")
    start = time.monotonic()
    try:
        futures = [pool.submit(_complete, server, slot, prompt, workload) for slot, prompt in enumerate(prompts)]
        answers = _collect(server, futures, on_answer)
    finally:
        # Never waits here: on the way out the server is stopped, which ends every open request.
        pool.shutdown(wait=False, cancel_futures=True)
    return speed_of(workload, start, answers)


def _complete(server: LlamaServer, slot: int, prompt: list[int], workload: Workload) -> list[float]:
    """When each generated token came."""
    body = {
        "prompt": prompt,
        "n_predict": workload.generated_tokens,
        "ignore_eos": True,
        "id_slot": slot,
        "seed": slot,
        "cache_prompt": False,
        "stream": True,
        "return_tokens": True,
    }
    moments: list[float] = []
    for event in server.stream("/completion", body, timeout_s=ANSWER_TIMEOUT_S):
        # A token that ends within a character is held back; it is counted with the next one that is told.
        predicted = event.get("tokens_predicted", len(moments) + len(event.get("tokens", [])))
        moments.extend([time.monotonic()] * (predicted - len(moments)))
    if len(moments) < workload.generated_tokens:
        raise EngineError(
            f"llama-server generated {len(moments)} tokens of the {workload.generated_tokens} it was asked for."
        )
    return moments


def _collect(
    server: LlamaServer, futures: list[Future[list[float]]], on_answer: Callable[[int], None]
) -> list[list[float]]:
    while True:
        done = [future for future in futures if future.done()]
        for future in done:
            future.result()
        answered = len(done)
        on_answer(answered)
        if answered == len(futures):
            return [future.result() for future in futures]
        server.check_alive()
        server.pause(POLL_S)


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
