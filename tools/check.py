"""One command from a clean checkout: lint, format, types, import rules and tests.

    python3 tools/check.py                    install what is missing, then run everything
    python3 tools/check.py --no-install       only run everything (a quick repeat)
    python3 tools/check.py --fix              let ruff format and mend instead of complaining
    python3 tools/check.py -- -k ghost -x     what follows -- goes to pytest

It needs Python 3.11 and the standard library, since it runs before anything is installed. Everything goes
into `.venv`, in the versions of `requirements.lock`; what has to be compiled first, `engines.py` does once.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

from engines import PYTHON, ROOT, VENV, CheckError, build_second_engine, library_wheel, must, pip, program, run, say

LOCK = ROOT / "requirements.lock"


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
    wheel = library_wheel()
    must(f"{wheel} could not be installed.", *pip("install", "-qq", "--no-deps", str(wheel)))
    must("planner could not be installed.", *pip("install", "-qq", "--no-deps", "--editable", str(ROOT)))
    # Everything is there, so neither command changes anything: both fail where the lock has fallen behind.
    stale = f"{LOCK.name} does not give what pyproject.toml asks for: renew it, its first lines say how."
    must(stale, *pip("check"))
    must(stale, *pip("install", "-qq", "--no-index", "--group", "test"))
    build_second_engine()


def check(fix: bool, pytest_args: list[str]) -> int:
    """Run every stage, so that a person sees all faults at once; give the exit code for the whole."""
    ruff = (PYTHON, "-m", "ruff")
    stages = {
        "ruff check": (*ruff, "check", *(("--fix",) if fix else ())),
        "ruff format": (*ruff, "format", *(() if fix else ("--check",))),
        "mypy": (PYTHON, "-m", "mypy"),
        "import rules": (program(VENV, "lint-imports"), "--no-cache", "--no-logo"),
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
