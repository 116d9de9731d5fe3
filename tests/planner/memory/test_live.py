"""Launches that no file lists, put to the llama.cpp that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import oracle
from benchmarks.live_sources import live_cases

pytestmark = pytest.mark.xdist_group("oracle")


@pytest.mark.skipif(not oracle.AVAILABLE, reason="llama-cpp-python is not installed")
def test_random_launches_of_every_header_are_exact(shared: Path) -> None:
    cases = list(live_cases(shared, per_header=3))
    assert len(cases) > 350
    assert [str(case) for case in cases if not case.exact] == []
