"""A real llama-server, and processes to watch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner.engine.find import Engine, find_engine


@pytest.fixture(scope="session", autouse=True)
def sleeping_threads() -> Iterator[None]:
    """Let idle threads of llama.cpp sleep instead of spin: tests share the processor with other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "passive")
        yield


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The embedded llama-server."""
    return find_engine(environment={}, path="")
