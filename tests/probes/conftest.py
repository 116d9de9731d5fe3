from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import MEMINFO, FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    """A machine with nothing on it."""
    return FakeMachine(tmp_path)


@pytest.fixture
def host(machine: FakeMachine) -> FakeMachine:
    """A machine with a sound /proc/meminfo and no control groups."""
    machine.write("/proc/meminfo", MEMINFO)
    return machine
