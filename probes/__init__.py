"""What this machine is and what a process holds.

Every probe takes a machine, or the root of one's file tree, returns plain values with their sources, and never
raises: what it cannot learn is None, with the reason. `python -m probes --json` prints everything that was read.
The makers' probes stand in modules of their own (`probes.nvidia`, `probes.amd`, `probes.intel`, `probes.apple`,
`probes.windows`), which `probe_everything` imports where there is something for them to look at.
"""

from probes.accelerator import has_accelerator
from probes.cgroup import MemoryLimit, probe_cpu_quota, probe_limits
from probes.cpu import Cpu, probe_cpu
from probes.everything import Findings, Settings, probe_everything
from probes.gpu import Gpu, Holder
from probes.host import ARC_SHARE, HostMemory, probe_host
from probes.machine import Clients, Machine
from probes.place import Place, probe_place
from probes.process import ProcessMemory, probe_process
from probes.process_devices import DeviceMemory, ProcessDevices, probe_group_peak, probe_process_devices
from probes.report import Report

__all__ = [
    "ARC_SHARE",
    "Clients",
    "Cpu",
    "DeviceMemory",
    "Findings",
    "Gpu",
    "Holder",
    "HostMemory",
    "Machine",
    "MemoryLimit",
    "Place",
    "ProcessDevices",
    "ProcessMemory",
    "Report",
    "Settings",
    "has_accelerator",
    "probe_cpu",
    "probe_cpu_quota",
    "probe_everything",
    "probe_group_peak",
    "probe_host",
    "probe_limits",
    "probe_place",
    "probe_process",
    "probe_process_devices",
]
