from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "probes"))  # for the sample machines
sys.path.insert(0, str(Path(__file__).parent / "model"))  # for files that are written by hand
