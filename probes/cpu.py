"""The processor: its instruction sets decide which llama.cpp builds start, its cores how many threads pay."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from probes._files import excerpt, to_integer
from probes.cgroup import probe_cpu_quota
from probes.machine import Clients, Files, Machine, Run, Where
from probes.report import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor as this process may use it. None and an empty set are unknown; `warnings` says why."""

    model: str | None
    """Its name, as the maker or the board's device tree states it."""
    architecture: str
    """As Linux names it: x86_64, aarch64; empty when unknown."""
    physical_cores: int | None
    """Cores this process may use, hyperthreads counted once."""
    logical_cores: int | None
    """Hardware threads this process may use (sched_getaffinity)."""
    quota_cores: float | None
    """Processor time the control groups allow, in cores (cpu.max); None when nothing limits it."""
    features: frozenset[str]
    """Instruction sets, on every platform by their names in Linux's cpuinfo: avx2, avx_vnni, asimddp."""
    sources: tuple[str, ...]
    """Where each figure came from, one line each."""
    warnings: tuple[str, ...]
    """What could not be read or believed, one line each."""


@dataclass(slots=True)
class _Findings:
    """What one platform's reader found."""

    model: str | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    features: frozenset[str] = frozenset()
    sources: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def probe_cpu(
    root: Where = Path("/"),
    *,
    run: Run | None = None,
    system: str | None = None,
    machine: str | None = None,
) -> Cpu:
    """The processor of the machine at `root`. Never raises: what fails is unknown, with a warning.

    `run`, `system` and `machine` stand for another machine where `root` is only a file tree: `run` is asked
    for sysctl on macOS, the others default to platform.system() and platform.machine().
    """
    if not isinstance(root, Machine):
        clients = Clients() if run is None else Clients(run=run)
        root = Machine(root, system=system, architecture=machine, clients=clients)
    architecture = root.architecture.lower()
    try:
        match root.system:
            case "Linux":
                found = _from_linux(root)
            case "Darwin":
                found = _from_sysctl(root)
            case "Windows":
                found = _from_windows(root)
            case system:
                found = _Findings(warnings=[f"no processor probe for {system or 'an unknown system'}"])
    except Exception as error:  # a probe never raises, whatever the platform does
        found = _Findings(warnings=[f"processor: {error!r}"])
    quota_cores, quota_warnings = probe_cpu_quota(root)
    figures = ("model", "physical_cores", "logical_cores", "features")
    unknown = [name for name in figures if not getattr(found, name)]
    sources = [source for source in found.sources if source.partition(":")[0] not in unknown]
    if quota_cores is not None:
        sources.append("quota_cores: the tightest control group")
    return Cpu(
        model=found.model,
        architecture={"amd64": "x86_64", "arm64": "aarch64"}.get(architecture, architecture),
        physical_cores=found.physical_cores,
        logical_cores=found.logical_cores,
        quota_cores=quota_cores,
        features=found.features,
        sources=tuple(sources),
        warnings=(*found.warnings, *(f"{name}: unknown" for name in unknown), *quota_warnings),
    )


# Linux

_CPUINFO = "/proc/cpuinfo"
_CPUINFO_KEPT = re.compile(
    r"^(?:(?:processor|model name|flags|features|physical id|core id)[ \t]*:.*|[ \t]*)$", re.MULTILINE | re.IGNORECASE
)
"""Of cpuinfo; a board's serial number stands there too. Empty lines separate the processors."""
_STATUS = "/proc/self/status"
_STATUS_KEPT = re.compile(r"^Cpus_allowed_list:.*$", re.MULTILINE)
_DEVICE_TREE_MODEL = "/proc/device-tree/model"
_MAX_CPUS = 8192
"""The most that a Linux kernel can be built for (NR_CPUS)."""


def _from_linux(root: Machine) -> _Findings:
    files = Files(root)
    processors = _processors(files.text(_CPUINFO, _CPUINFO_KEPT) or "")
    found = _Findings(warnings=files.warnings)
    if not processors:
        found.warnings.append(f"{_CPUINFO}: names no processor")
    found.model = _model(files, processors, found.sources)
    lines = {processor.get("flags") or processor.get("features") or "" for processor in processors}
    if lines:
        # Cores may differ (big.LITTLE), and a thread may run on any: only what all of them have counts.
        found.features = frozenset.intersection(*(frozenset(line.lower().split()) for line in lines))
        found.sources.append(f"features: {_CPUINFO}")
    allowed = _allowed_cpus(files)
    # The mask may name processors that are offline, and lxcfs renumbers those it shows: count, not match.
    counts = [len(cpus) for cpus in (allowed, processors) if cpus]
    if counts:
        found.logical_cores = min(counts)
        found.sources.append(f"logical_cores: {_STATUS} Cpus_allowed_list, {_CPUINFO}")
    _count_physical(files, found, allowed or range(len(processors)), processors)
    return found


def _processors(text: str) -> list[dict[str, str]]:
    """The blocks of cpuinfo that describe a processor; names in lower case, where x86 and ARM differ."""
    blocks = []
    for block in text.split("\n\n"):
        fields = (line.partition(":") for line in block.splitlines())
        names = {name.strip().lower(): value.strip() for name, _, value in fields}
        if "processor" in names:
            blocks.append(names)
    return blocks


def _model(files: Files, processors: list[dict[str, str]], sources: list[str]) -> str | None:
    """x86 states `model name`; ARM states only numbers, so that the board's name has to do."""
    if processors and (name := processors[0].get("model name")):
        sources.append(f"model: {_CPUINFO}")
        return name
    board = (files.text(_DEVICE_TREE_MODEL) or "").strip("\0 \n")
    if board:
        sources.append(f"model: {_DEVICE_TREE_MODEL}")
    return board or None


def _allowed_cpus(files: Files) -> list[int]:
    """The processors that this process may run on: `Cpus_allowed_list: 0-3,8`; empty if unknown."""
    for line in (files.text(_STATUS, _STATUS_KEPT) or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            cpus = _cpu_list(value.strip())
            if not cpus:
                files.warnings.append(f"{_STATUS}: Cpus_allowed_list not understood: {excerpt(value)}")
            return cpus
    return []


def _cpu_list(text: str) -> list[int]:
    """The kernel's list format, `0-3,8`, as numbers; empty when it is not understood."""
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = to_integer(first), to_integer(last or first)
        if start is None or end is None or not 0 <= start <= end < _MAX_CPUS:
            return []
        cpus += range(start, end + 1)
    return cpus


def _count_physical(files: Files, found: _Findings, cpus: Iterable[int], processors: list[dict[str, str]]) -> None:
    """Distinct cores among `cpus`: by sysfs, or by the ids that cpuinfo states on x86."""
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores: set[object] = {text.strip() for cpu in cpus if (text := files.text(topology.format(cpu)))}
    source = topology.format("*")
    if not cores:
        cores = {(p.get("physical id"), p["core id"]) for p in processors if "core id" in p}
        source = _CPUINFO
    if cores and found.logical_cores:
        found.physical_cores = min(len(cores), found.logical_cores)
        found.sources.append(f"physical_cores: {source}")


# macOS

_SYSCTL = ("sysctl", "machdep.cpu", "hw.optional", "hw.physicalcpu", "hw.logicalcpu")
"""One call for all: a name that stands for a group prints the group; a missing one only complains."""

_ARM_FEATURES = {
    "FEAT_FP16": "asimdhp",
    "FEAT_DotProd": "asimddp",
    "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16",
    "FEAT_SME": "sme",
    "FEAT_SME2": "sme2",
}
"""hw.optional.arm.* to Linux's name, for what llama.cpp has kernels for."""

_INTEL_FEATURES = {"sse4.1": "sse4_1", "sse4.2": "sse4_2", "avx1.0": "avx", "avx512vnni": "avx512_vnni"}
"""machdep.cpu.features and leaf7_features to Linux's name, where they differ by more than case."""


def _from_sysctl(machine: Machine) -> _Findings:
    try:
        output = str(machine.answer(" ".join(_SYSCTL), lambda: machine.clients.run(_SYSCTL)))
    except LookupError as error:
        return _Findings(warnings=[f"sysctl: {error.args[0]}"])
    values = {name: value.strip() for name, _, value in (line.partition(":") for line in output.splitlines())}
    intel = [values.get(f"machdep.cpu.{group}", "").lower() for group in ("features", "leaf7_features")]
    features = {_INTEL_FEATURES.get(name, name) for name in " ".join(intel).split()}
    features |= {linux for arm, linux in _ARM_FEATURES.items() if values.get(f"hw.optional.arm.{arm}") == "1"}
    return _Findings(
        model=values.get("machdep.cpu.brand_string"),
        physical_cores=to_integer(values.get("hw.physicalcpu", "")),
        logical_cores=to_integer(values.get("hw.logicalcpu", "")),
        features=frozenset(features),
        sources=[
            "model: sysctl machdep.cpu.brand_string",
            "physical_cores: sysctl hw.physicalcpu",
            "logical_cores: sysctl hw.logicalcpu",
            "features: sysctl hw.optional.arm, machdep.cpu.features, machdep.cpu.leaf7_features",
        ],
    )


# Windows

_WINDOWS_FEATURES = {
    36: "ssse3",
    37: "sse4_1",
    38: "sse4_2",
    39: "avx",
    40: "avx2",
    41: "avx512f",
    43: "asimddp",
}
"""PF_* numbers of IsProcessorFeaturePresent (winnt.h) to Linux's name. There is none for FMA, F16C and BMI2,
which come with AVX2: they are missing from the set even where the processor has them."""


def _from_windows(machine: Machine) -> _Findings:
    readers: dict[str, tuple[str, Callable[[], Json]]] = {
        "model": ("registry, CentralProcessor\\0", _windows_model),
        "physical_cores": ("psutil.cpu_count(logical=False)", _psutil_physical_cores),
        "logical_cores": ("psutil.Process().cpu_affinity()", _psutil_allowed_cores),
        "features": ("IsProcessorFeaturePresent, which knows few", _windows_features),
    }
    found = _Findings()
    for name, (source, read) in readers.items():
        try:
            answer = machine.answer(f"windows processor {name}", read)
        except LookupError as error:  # one figure that fails must not cost the others
            found.warnings.append(f"{name}: {source}: {error.args[0]}")
            continue
        if name == "features":
            answer = frozenset(word for word in answer or () if isinstance(word, str))
        setattr(found, name, answer)
        found.sources.append(f"{name}: {source}")
    return found


def _psutil_physical_cores() -> int | None:
    import psutil

    return psutil.cpu_count(logical=False)


def _psutil_allowed_cores() -> int | None:
    import psutil

    return len(psutil.Process().cpu_affinity() or []) or None


def _windows_features() -> list[str]:
    if sys.platform == "win32":
        from ctypes import windll

        is_present = windll.kernel32.IsProcessorFeaturePresent
        return [name for number, name in _WINDOWS_FEATURES.items() if is_present(number)]
    return []


def _windows_model() -> str | None:
    if sys.platform == "win32":
        import winreg

        key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as processor:
            return str(winreg.QueryValueEx(processor, "ProcessorNameString")[0]).strip()
    return None
