from pathlib import Path

import pytest

from probes import has_accelerator


def test_a_machine_without_any_driver_has_none(tmp_path: Path) -> None:
    assert not has_accelerator(tmp_path, "linux")


@pytest.mark.parametrize("sign", ["nvidiactl", "kfd", "dri", "dxg", "nvhost-gpu"])
def test_a_driver_is_a_sign(tmp_path: Path, sign: str) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / sign).touch()
    assert has_accelerator(tmp_path, "linux")


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_where_looking_is_dear_an_engine_is_asked(tmp_path: Path, platform: str) -> None:
    assert has_accelerator(tmp_path, platform)
