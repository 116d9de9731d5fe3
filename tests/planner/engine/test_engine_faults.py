"""Why an engine ended, in words."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from planner.engine.faults import describe_exit, own_words

LOGS = Path(__file__).parents[2] / "data" / "logs"


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (-signal.SIGILL, "died of SIGILL: it was built for a newer processor than this one"),
        (128 + signal.SIGILL, "died of SIGILL: it was built for a newer processor than this one"),
        (-signal.SIGKILL, "died of SIGKILL: it was killed: most often the system ran out of memory"),
        (128 + signal.SIGKILL, "died of SIGKILL: it was killed: most often the system ran out of memory"),
        (-signal.SIGSEGV, "died of SIGSEGV: it crashed (segmentation fault)"),
        (-signal.SIGABRT, "died of SIGABRT: it aborted"),
        (-signal.SIGBUS, "died of SIGBUS: it lost a mapped file, or the disk is full or damaged"),
        (-signal.SIGTERM, "died of SIGTERM: it was ended"),
        (-99, "died of signal 99: it was ended"),
        (0, "ended with exit code 0"),
        (1, "ended with exit code 1"),
        (127, "ended with exit code 127"),
        (255, "ended with exit code 255"),
        (0xC000001D, "ended with exit code 3221225501"),
    ],
)
def test_exit_codes_and_signals_are_told_apart(returncode: int, words: str) -> None:
    assert describe_exit(returncode, "") == f"{words}, without a word."


def test_the_engine_is_quoted() -> None:
    assert describe_exit(1, "hello\nerror: invalid argument: --x\n") == (
        'ended with exit code 1. It said: "error: invalid argument: --x".'
    )


def test_a_processor_that_is_too_old_is_told_from_a_log_that_just_stops() -> None:
    log = (LOGS / "b10434-sigill-at-first-compute.log").read_text(encoding="utf-8")
    assert describe_exit(132, log) == (
        "died of SIGILL: it was built for a newer processor than this one. "
        'It said: "cmn          init: llama threadpool init, n_threads = 2".'
    )


def test_the_telling_lines_are_chosen_and_the_last_two_of_them() -> None:
    log = """\
0.00.001.000 I srv  llama_server: initializing ...
0.00.002.000 E first error
0.00.003.000 E gguf_init_from_file: failed to open GGUF file 'x.gguf'
0.00.004.000 E srv    load_model: failed to load model, 'x.gguf'
0.00.005.000 I srv    operator(): cleaning up before exit...
0.00.006.000 E srv  llama_server: exiting due to model loading error
"""
    assert own_words(log) == (
        "\"gguf_init_from_file: failed to open GGUF file 'x.gguf'\" / "
        "\"srv    load_model: failed to load model, 'x.gguf'\""
    )


def test_a_general_complaint_is_better_than_none() -> None:
    line = "0.00.006.000 E srv  llama_server: exiting due to model loading error"
    assert own_words(f"hello\n{line}\nbye\n") == '"srv  llama_server: exiting due to model loading error"'


def test_without_a_telling_line_the_last_one_is_quoted() -> None:
    assert own_words("one\ntwo\n\n") == '"two"'


def test_silence_is_empty() -> None:
    assert own_words(" \n\n") == ""


def test_colours_and_prefixes_are_taken_off() -> None:
    assert own_words("\x1b[34m0.00.002.000 \x1b[0mE \x1b[31merror: no\x1b[0m").strip('"').startswith("error: no")


def test_the_same_line_is_quoted_once() -> None:
    assert own_words("error: no memory\nerror: no memory\n") == '"error: no memory"'


def test_a_very_long_line_is_cut() -> None:
    assert len(own_words("error " + "x" * 5000)) < 400


@pytest.mark.parametrize(
    "line",
    [
        "error while loading shared libraries: libcudart.so.12: cannot open shared object file",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 8589934592",
        "llama_init_from_model: failed to initialize the context: quantized V cache requires Flash Attention",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "error: invalid argument: --no-such-thing",
        "main: no backends are loaded. hint: use ggml_backend_load()",
        "couldn't bind HTTP server socket: error, hostname: 127.0.0.1, port: 8080",
    ],
)
def test_lines_of_real_failures_are_recognised(line: str) -> None:
    assert line.splitlines()[-1].strip() in own_words(f"starting\n{line}\nlast words\n")
