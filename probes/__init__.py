"""What this machine is and what a process holds.

Every probe takes a machine, or the root of one's file tree, returns plain values with their sources, and never
raises: what it cannot learn is None, with the reason. `python -m probes --json` prints everything that was read.
"""

from probes.accelerator import has_accelerator
from probes.amd import probe_amd
from probes.apple import probe_apple, working_set_rule
from probes.cgroup import MemoryLimit, probe_cpu_quota, probe_limits
from probes.cpu import Cpu, probe_cpu
from probes.everything import Findings, Settings, probe_everything
from probes.gpu import Gpu, Holder
from probes.host import ARC_SHARE, HostMemory, probe_host
from probes.intel import probe_intel
from probes.machine import Clients, Machine
from probes.nvidia import probe_nvidia
from probes.place import Place, probe_place
from probes.process import ProcessMemory, probe_process
from probes.report import Report

__all__ = [
    "ARC_SHARE",
    "Clients",
    "Cpu",
    "Findings",
    "Gpu",
    "Holder",
    "HostMemory",
    "Machine",
    "MemoryLimit",
    "Place",
    "ProcessMemory",
    "Report",
    "Settings",
    "has_accelerator",
    "probe_amd",
    "probe_apple",
    "probe_cpu",
    "probe_cpu_quota",
    "probe_everything",
    "probe_host",
    "probe_intel",
    "probe_limits",
    "probe_nvidia",
    "probe_place",
    "probe_process",
    "working_set_rule",
]
