"""What the list of models offers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from stand_ins import ENGINE, FILES, GEMMA3, MACHINE, SMOLLM2, never_measured

from planner import Launch, Model, predict
from planner.engine.dry_run import who_answers
from planner.engine.find import Engine
from planner.errors import PlannerError, UsageError
from planner.grids import plan_grid
from planner.memory.learned import Learned, LearnedSize
from planner.model.catalogue import CatalogueEntry
from planner.model.fingerprint import fingerprint
from planner.model.ghost import write_ghost
from planner.reconcile.record import Record
from planner.tui.choices import Choice, file_choice, find_choices, ghost_choices, ghost_model, to_ask, to_run
from planner.tui.work import Selected, Sources, ask_cell, write_command
from planner.units import MIB


@pytest.mark.parametrize("entry", [SMOLLM2, GEMMA3], ids=lambda entry: entry.name)
def test_a_ghost_is_planned_without_its_file_as_with_it(entry: CatalogueEntry, tmp_path: Path) -> None:
    imagined, written = ghost_model(entry), Model.open(write_ghost(entry, tmp_path))
    launch = Launch.for_users(2, 4096)
    assert imagined.is_ghost
    assert fingerprint(imagined) == fingerprint(written)
    assert predict(imagined, launch, MACHINE).bytes() == predict(written, launch, MACHINE).bytes()


def test_damaged_files_come_last(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = own_home / "models"
    folder.mkdir()
    write_ghost(SMOLLM2, folder).rename(folder / "good.gguf")
    (folder / "bad.gguf").write_bytes(b"GGUF and no more")
    good, bad = find_choices()
    assert (bad.name, good.name) == ("bad.gguf", "good.gguf")
    assert bad.model is None and "bad.gguf" in bad.problem
    assert good.model is not None and good.problem == ""


def cut_off(path: Path, model: Path) -> Path:
    """The header of a model and a little more, as a download that was broken off leaves it."""
    with model.open("rb") as file:
        path.write_bytes(file.read(Model.open(model).header.data_offset + 1000))
    return path


def test_a_download_that_was_broken_off_can_be_planned_asked_about_and_run_as_a_ghost(
    smollm_path: Path, tmp_path: Path
) -> None:
    choice = file_choice(cut_off(tmp_path / "half.gguf", smollm_path))
    assert choice.model is not None and "cut off" in choice.problem
    with to_ask(choice) as asked:
        assert asked.tensor_bytes == Model.open(smollm_path).tensor_bytes
    with to_run(choice, ghost=True) as ghost:
        assert ghost.is_ghost and ghost.path.parent != tmp_path
        assert ghost.tensors == choice.model.tensors
    with pytest.raises(PlannerError, match="cut off"), to_run(choice):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["half.gguf"]


def test_ghosts_stand_in_where_no_file_can_be_read(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [choice.entry for choice in find_choices()] == [SMOLLM2, GEMMA3]
    (own_home / "models").mkdir()
    (own_home / "models" / "bad.gguf").write_bytes(b"")
    assert [choice.entry for choice in find_choices()] == [SMOLLM2, GEMMA3, None]


def test_a_ghost_has_a_file_only_while_it_is_used() -> None:
    choice = next(ghost_choices())
    with to_run(choice) as model:
        assert model.path.is_file()
    assert not model.path.exists()


def test_a_damaged_file_is_never_used() -> None:
    with pytest.raises(PlannerError, match="cut off"), to_run(Choice(name="x", model=None, problem="cut off")):
        pass


def test_there_is_no_command_for_a_ghost() -> None:
    choice = next(ghost_choices())
    assert choice.model is not None
    cell = plan_grid(choice.model, MACHINE, None, Record(Path("/nowhere"))).cells[0]
    with pytest.raises(UsageError, match="ghost"):
        write_command(Selected(choice, cell), ENGINE)


class Taught(Record):
    """A record whose runs taught one thing."""

    def learned(self, *_: object) -> Learned:
        return Learned(overhead={(): LearnedSize(400 * MIB, "run")})


def test_the_command_is_that_of_the_plan_on_show() -> None:
    """What was learned decides what may grow, so that a launch made anew without it would be another one."""
    choice = FILES[1]
    assert choice.model is not None
    cell = plan_grid(choice.model, MACHINE, ENGINE, Taught(Path("/nowhere"))).cells[0]
    unlearned = plan_grid(choice.model, MACHINE, ENGINE, Record(Path("/nowhere"))).cells[0]
    assert cell.plan.launch.cache_ram != unlearned.plan.launch.cache_ram
    assert f"--cache-ram {cell.plan.launch.cache_ram} " in write_command(Selected(choice, cell), ENGINE)


@pytest.mark.engine
def test_a_dry_run_is_held_against_the_plan_on_show(engine: Engine) -> None:
    choice, record = next(ghost_choices()), Taught(Path("/nowhere"))
    assert choice.model is not None
    cell = plan_grid(choice.model, MACHINE, engine, record).cells[0]
    sources = Sources(
        detect=lambda: MACHINE,
        find_engine=lambda: engine,
        find_choices=tuple,
        record=record,
        run=never_measured,
        answerer=who_answers,
        clock=time.monotonic,
    )
    made = ask_cell(Selected(choice, cell), MACHINE, engine, sources, cancelled=lambda: False)
    assert made.plan.bytes(component="overhead") == cell.plan.bytes(component="overhead")
