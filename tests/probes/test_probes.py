from __future__ import annotations

import subprocess
import sys


def test_importing_loads_neither_psutil_nor_planner() -> None:
    heavy = {"psutil", "subprocess", "ctypes", "planner"}
    script = f"import probes, sys; print({heavy} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
