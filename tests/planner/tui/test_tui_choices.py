"""What the list of models offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import ENGINE, GEMMA3, MACHINE, SMOLLM2

from planner import Launch, Model, predict
from planner.errors import PlannerError, UsageError
from planner.grids import plan_grid
from planner.model.catalogue import CatalogueEntry
from planner.model.fingerprint import fingerprint
from planner.model.ghost import write_ghost
from planner.reconcile.record import Record
from planner.tui.choices import Choice, find_choices, ghost_choices, ghost_model, on_disk
from planner.tui.work import Selected, write_command


@pytest.mark.parametrize("entry", [SMOLLM2, GEMMA3], ids=lambda entry: entry.name)
def test_a_ghost_is_planned_without_its_file_as_with_it(entry: CatalogueEntry, tmp_path: Path) -> None:
    imagined, written = ghost_model(entry), Model.open(write_ghost(entry, tmp_path))
    launch = Launch.for_users(2, 4096)
    assert imagined.is_ghost
    assert fingerprint(imagined) == fingerprint(written)
    assert predict(imagined, launch, MACHINE).bytes() == predict(written, launch, MACHINE).bytes()


def test_files_come_with_the_damaged_ones(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = own_home / "models"
    folder.mkdir()
    write_ghost(SMOLLM2, folder).rename(folder / "good.gguf")
    (folder / "bad.gguf").write_bytes(b"GGUF and no more")
    bad, good = find_choices()
    assert (bad.name, good.name) == ("bad.gguf", "good.gguf")
    assert bad.model is None and "bad.gguf" in bad.problem
    assert good.model is not None and good.problem == ""


def test_ghosts_stand_in_where_no_file_can_be_read(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [choice.entry for choice in find_choices()] == [SMOLLM2, GEMMA3]
    (own_home / "models").mkdir()
    (own_home / "models" / "bad.gguf").write_bytes(b"")
    assert [choice.entry for choice in find_choices()] == [None, SMOLLM2, GEMMA3]


def test_a_ghost_has_a_file_only_while_it_is_used() -> None:
    choice = next(ghost_choices())
    with on_disk(choice) as model:
        assert model.path.is_file()
    assert not model.path.exists()


def test_a_damaged_file_is_never_used() -> None:
    with pytest.raises(PlannerError, match="cut off"), on_disk(Choice(name="x", model=None, problem="cut off")):
        pass


def test_there_is_no_command_for_a_ghost() -> None:
    choice = next(ghost_choices())
    assert choice.model is not None
    cell = plan_grid(choice.model, MACHINE, None, Record(Path("/nowhere"))).cells[0]
    with pytest.raises(UsageError, match="ghost"):
        write_command(Selected(choice, cell), MACHINE, ENGINE)
