"""The real pynvml against a library of the shape of NVIDIA's, since no card is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probes import Machine, Report, probe_everything

SOURCE = Path(__file__).with_name("fake_libnvidia_ml.c")
ASK = """
import json, os
import pynvml
from probes import Clients, Machine, probe_everything, probe_process_devices
machine = Machine(clients=Clients(nvml=pynvml))
probe_everything(machine)
own = probe_process_devices(os.getpid(), machine)
print(json.dumps([machine.report.to_document(), [[d.device, d.own_bytes] for d in own.devices], list(own.reasons)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="loads a library for Linux")
@pytest.mark.parametrize("old", [False, True])
def test_pynvml_is_understood(old: bool, tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", *(["-DOLD_DRIVER"] if old else []), "-o", str(library), str(SOURCE)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except OSError:
        pytest.skip("no C compiler")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    document, own, reasons = json.loads(result.stdout)
    device = document["answers"]["nvml"]["devices"][0]
    assert (device["name"], device["pci"]) == ("Tesla P40", "00000000:AF:00.0")
    assert device["mig"] == {"error": "NotSupported"}
    assert device["memory"]["version"] == (1 if old else 2)
    (gpu,) = probe_everything(Machine.replay(Report.from_document(document))).gpus
    assert (gpu.pci, gpu.total_bytes, gpu.free_bytes) == ("0000:af:00.0", 25443893248, 24000000000)
    assert [process["used_bytes"] for process in device["processes"]] == [900000000, None]
    assert (own, reasons) == ([["0000:af:00.0", 900000000]], [])
