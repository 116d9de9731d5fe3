"""What this machine is and what a process holds.

Every probe takes the root of the machine's file tree, returns plain values with their sources, and never
raises: what it cannot learn is None, with the reason.
"""

from probes.accelerator import has_accelerator
from probes.cgroup import MemoryLimit, probe_cpu_quota, probe_limits
from probes.cpu import Cpu, probe_cpu
from probes.host import HostMemory, probe_host
from probes.process import ProcessMemory, probe_process

__all__ = [
    "Cpu",
    "HostMemory",
    "MemoryLimit",
    "ProcessMemory",
    "has_accelerator",
    "probe_cpu",
    "probe_cpu_quota",
    "probe_host",
    "probe_limits",
    "probe_process",
]
