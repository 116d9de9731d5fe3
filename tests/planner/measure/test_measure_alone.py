"""Two measurements at once are refused, by whichever program they are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import EngineError
from planner.measure.alone import alone

_HOLD = """
import sys
from pathlib import Path
from planner.measure.alone import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no flock there")
def test_a_second_measurement_waits_for_the_first_to_be_over(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(EngineError, match="Another planner is measuring here"), alone(tmp_path):
            pass
        other.kill()
    with alone(tmp_path):  # it goes with the program that held it
        pass
    with alone(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
