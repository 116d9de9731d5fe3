"""One command from a clean checkout: lint, format, types, import rules and tests.

    python3 tools/check.py                    install what is missing, then run everything
    python3 tools/check.py --no-install       only run everything (a quick repeat)
    python3 tools/check.py --fix              let ruff format and mend instead of complaining
    python3 tools/check.py -- -k ghost -x     what follows -- goes to pytest

It needs Python 3.11 and the standard library, since it runs before anything is installed. Everything goes
into `.venv`, in the versions of `requirements.lock`. llama-cpp-python comes as source only and takes minutes
to build, so its wheel is built once and kept in the user's cache directory.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = str(BIN / ("python.exe" if os.name == "nt" else "python"))
LOCK = ROOT / "requirements.lock"
ENGINE = "llama-cpp-python"


class CheckError(Exception):
    """Nothing can be checked, for a reason that one sentence tells."""


def say(line: str) -> None:
    """Print at once: the tools that we start write to the same place."""
    print(line, flush=True)


def run(*command: str, env: dict[str, str] | None = None) -> int:
    """Run a command in the repository's root and give its exit code."""
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def must(reason: str, *command: str, env: dict[str, str] | None = None) -> None:
    """Run a command without which the rest makes no sense."""
    if run(*command, env=env) != 0:
        raise CheckError(reason)


def pip(*arguments: str) -> tuple[str, ...]:
    """A pip command of the virtual environment; `python -m`, so that it can replace itself on Windows too."""
    return (PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments)


def make_venv() -> None:
    """Make `.venv`, or keep the one that is there as long as its Python starts (its base may be gone)."""
    if Path(PYTHON).exists() and run(PYTHON, "-c", "import pip") == 0:
        return
    say(f"Making {VENV}")
    must(
        "Python could not make a virtual environment (Debian and Ubuntu: apt install python3-venv).",
        *(sys.executable, "-m", "venv", "--clear", str(VENV)),
    )


def install() -> None:
    """Put everything that the checks need into `.venv`."""
    make_venv()
    say(f"Installing the packages of {LOCK.name}")
    # The lock names every package; --no-deps keeps pip from adding any, such as a second build of the engine.
    must(
        f"The packages of {LOCK.name} could not be installed.",
        *pip("install", "-qq", "--no-deps", "--requirement", str(LOCK)),
    )
    wheel = engine_wheel()
    must(f"{wheel} could not be installed.", *pip("install", "-qq", "--no-deps", str(wheel)))
    must("planner could not be installed.", *pip("install", "-qq", "--no-deps", "--editable", str(ROOT)))
    # Everything is there, so neither command changes anything: both fail where the lock has fallen behind.
    stale = f"{LOCK.name} does not give what pyproject.toml asks for: renew it, its first lines say how."
    must(stale, *pip("check"))
    must(stale, *pip("install", "-qq", "--no-index", "--group", "test"))


def engine_requirement() -> str:
    """The exact llama-cpp-python that pyproject.toml names, as `llama-cpp-python==0.3.36`."""
    import tomllib  # not at the top: an older Python should reach the sentence about its version

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["optional-dependencies"][ENGINE][0])


def engine_wheel() -> Path:
    """The wheel of llama-cpp-python for this machine, built if there is none yet.

    llama.cpp is compiled for the processor at hand, so a cache that is shared between machines, or that
    outlives a processor, must not hand one machine's code to another: the key holds whatever shapes the code.
    """
    requirement = engine_requirement()
    cmake_args = f"-DGGML_RPC=ON {os.environ.get('CMAKE_ARGS', '')}".strip()
    tags = (requirement, sys.implementation.cache_tag, sysconfig.get_platform(), cmake_args, cpu_features())
    folder = cache_dir() / "wheels" / hashlib.sha256("\n".join(tags).encode()).hexdigest()[:16]
    if wheels := sorted(folder.glob("*.whl")):
        return wheels[-1]

    # On Windows the compiler is not on PATH, and CMake finds it by itself.
    compilers = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    if os.name != "nt" and not any(shutil.which(name) for name in compilers if name):
        raise CheckError(
            f"Building {ENGINE} needs a C++ compiler and none was found "
            "(Debian and Ubuntu: apt install build-essential; macOS: xcode-select --install)."
        )

    say(f"Building {requirement} once, in 5 to 10 minutes; it is kept in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    nice = ("nice", "-n", "10") if shutil.which("nice") else ()
    # Beside its destination, so that the last step is one rename: an interrupted build leaves no half wheel.
    with tempfile.TemporaryDirectory(dir=folder) as building:
        must(
            f"{requirement} could not be built; the reason is above.",
            *nice,
            # Without pip's own cache: that one knows neither CMAKE_ARGS nor the processor.
            *pip("wheel", "--no-deps", "--no-cache-dir", "--no-binary", ENGINE, "--wheel-dir", building),
            requirement,
            env=os.environ | {"CMAKE_ARGS": cmake_args},
        )
        (built,) = Path(building).glob("*.whl")
        return built.replace(folder / built.name)


def cache_dir() -> Path:
    """Where the platform keeps what can be made again."""
    home, env = Path.home(), os.environ
    places = {
        "darwin": home / "Library" / "Caches",
        "win32": Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local"),
    }
    return places.get(sys.platform, Path(env.get("XDG_CACHE_HOME") or home / ".cache")) / "planner"


def cpu_features() -> str:
    """What this processor can do, as far as the operating system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    for name, _, value in (line.partition(":") for line in lines):
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(value.split()))
    return platform.processor()


def check(fix: bool, pytest_args: list[str]) -> int:
    """Run every stage, so that a person sees all faults at once; give the exit code for the whole."""
    ruff = (PYTHON, "-m", "ruff")
    stages = {
        "ruff check": (*ruff, "check", *(("--fix",) if fix else ())),
        "ruff format": (*ruff, "format", *(() if fix else ("--check",))),
        "mypy": (PYTHON, "-m", "mypy"),
        "import rules": (str(BIN / "lint-imports"), "--no-cache", "--no-logo"),
    }
    failed = []
    for name, command in stages.items():
        say(f"\n== {name}")
        start = time.monotonic()
        if run(*command) != 0:
            failed.append(name)
        say(f"-- {name}: {'FAILED' if name in failed else 'ok'} in {time.monotonic() - start:.1f} s")
    # pytest comes last and nothing is printed after it, so what failed before it is said here.
    say("\n== pytest" + (f" (already FAILED: {', '.join(failed)})" if failed else ""))
    return run(PYTHON, "-m", "pytest", *pytest_args) or (1 if failed else 0)


def main() -> int:
    """The command line."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file also meets Pythons that planner does not support
        sys.exit(f"planner needs Python 3.11 or newer; {sys.executable} is {platform.python_version()}.")
    parser = argparse.ArgumentParser(description="Install what the checks need, then run all of them.")
    parser.add_argument("--no-install", action="store_true", help="use .venv as it is")
    parser.add_argument("--fix", action="store_true", help="let ruff format and mend instead of complaining")
    parser.add_argument("pytest_args", nargs="*", metavar="-- PYTEST_ARG", help="passed to pytest")
    options = parser.parse_args()
    try:
        if not options.no_install:
            say(f"== install into {VENV}")
            start = time.monotonic()
            install()
            say(f"-- install: ok in {time.monotonic() - start:.1f} s")
        elif not Path(PYTHON).exists():
            raise CheckError(f"There is no {VENV} yet: run this once without --no-install.")
        return check(options.fix, options.pytest_args)
    except CheckError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
