"""Why an engine ended, in words."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from planner.engine.faults import diagnose, own_words
from planner.engine.oom import count_kills, kills_since

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
    assert diagnose(returncode, "").words == f"{words}, without a word."


def test_the_engine_is_quoted() -> None:
    assert diagnose(1, "hello\nerror: something of its own\n").words == (
        'ended with exit code 1. It said: "error: something of its own".'
    )


def test_a_processor_that_is_too_old_is_told_from_a_log_that_just_stops() -> None:
    log = (LOGS / "b10434-sigill-at-first-compute.log").read_text(encoding="utf-8")
    assert diagnose(132, log).words == (
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


# Kinds -----------------------------------------------------------------------------------------------------

REFUSED_BY_THE_CPU = """\
0.00.170.238 E ggml_aligned_malloc: insufficient memory (attempted to allocate 4398.75 MB)
0.00.170.266 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4612423680
0.00.170.267 E ggml_backend_buft_alloc_buffer_n_default: failed to allocate CPU buffer of size 4612423680
0.00.179.025 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache
0.00.179.647 E srv  llama_server: exiting due to model loading error
"""
"""b11434 below `ulimit -v`."""


@pytest.mark.parametrize(
    ("returncode", "output", "kind", "words"),
    [
        (-signal.SIGILL, "", "instruction", "built for a newer processor"),
        (1, REFUSED_BY_THE_CPU, "allocation", "exit code 1: CPU refused 4.3 GiB of memory."),
        (
            1,
            "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5563.55 MiB on device 0: cudaMalloc failed: "
            "out of memory\nE alloc_tensor_range: failed to allocate CUDA0 buffer of size 5833805824\n",
            "allocation",
            "CUDA0 refused 5.4 GiB of memory",
        ),
        (
            -signal.SIGABRT,
            "allocating 512.00 MiB on device 1: cudaMalloc failed: out of memory",
            "allocation",
            "died of SIGABRT: device 1 refused 512.0 MiB of memory",
        ),
        (
            1,
            "ggml_vulkan: Device memory allocation of size 2166360064 failed.\nggml_vulkan: Requested buffer size "
            "exceeds device memory allocation limit: ErrorOutOfDeviceMemory",
            "allocation",
            "Vulkan refused 2.0 GiB of memory",
        ),
        (-signal.SIGABRT, "what():  std::bad_alloc", "allocation", "CPU refused memory."),
        (1, "error: invalid argument: --no-such-thing", "argument", "exit code 1: it does not take an argument."),
        (
            1,
            "0.00.007.207 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18433\n"
            "0.00.007.285 E srv  llama_server: exiting due to HTTP server error\n",
            "port",
            "its port is in use. It said: \"srv         start: couldn't bind",
        ),
        (1, "E llama_model_load_from_file_impl: failed to load model", "model", "the model does not load"),
        (127, "s: error while loading shared libraries: libcudart.so.12: cannot open", "library", "a library that"),
        (-signal.SIGSEGV, "", "crash", "it crashed"),
        (-signal.SIGTERM, "", "ended", "it was ended"),
        (3, "", "ended", "exit code 3, without"),
    ],
)
def test_faults_are_told_apart(returncode: int, output: str, kind: str, words: str) -> None:
    diagnosis = diagnose(returncode, output)
    assert diagnosis.kind == kind
    assert words in diagnosis.words
    fault = diagnosis.fault("llama-server")
    assert (fault.kind, fault.message) == (kind, f"llama-server {diagnosis.words}")


def test_a_kill_is_told_by_the_counters_of_the_kernel() -> None:
    assert diagnose(-signal.SIGKILL, "", "oom_kill in memory.events rose").kind == "memory"
    assert (
        "because memory ran out (oom_kill in memory.events rose)"
        in diagnose(137, "", "oom_kill in memory.events rose").words
    )
    somebody = diagnose(-signal.SIGKILL, "", "")
    assert (somebody.kind, "not the kernel" in somebody.words) == ("killed", True)


def machine(root: Path, **counts: int) -> Path:
    """A file tree with these counters: of version 1, of version 2 and of the machine."""
    files = {
        "proc/self/cgroup": "4:memory:/box\n1:cpu:/\n0::/slice/box\n",
        "proc/vmstat": f"pgfault 9\noom_kill {counts.get('all', 0)}\n",
        "sys/fs/cgroup/memory/box/memory.oom_control": f"under_oom 0\noom_kill {counts.get('v1', 0)}\n",
        "sys/fs/cgroup/slice/box/memory.events": f"oom 7\noom_kill {counts.get('v2', 0)}\noom_group_kill 0\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_nearest_counter_that_rose_is_named(tmp_path: Path) -> None:
    before = count_kills(machine(tmp_path))
    assert len(before) == 3
    assert kills_since(before, count_kills(machine(tmp_path))) == ""
    assert kills_since(before, count_kills(machine(tmp_path, all=1))) == "oom_kill in /proc/vmstat rose"
    both = count_kills(machine(tmp_path, all=1, v2=1))
    assert kills_since(before, both) == "oom_kill in /sys/fs/cgroup/slice/box/memory.events rose"
    assert "memory.oom_control" in str(kills_since(before, count_kills(machine(tmp_path, v1=2, all=2))))


def test_a_container_that_sees_its_group_as_the_root(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/../far/away\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.events").write_text("oom_kill 2\n")
    assert count_kills(tmp_path) == {"/sys/fs/cgroup/memory.events": 2}


def test_without_counters_nothing_is_said(tmp_path: Path) -> None:
    assert count_kills(tmp_path) == {}
    assert kills_since({}, {}) is None
