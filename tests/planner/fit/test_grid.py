from __future__ import annotations

import pytest

from planner import Hardware, Model, predict
from planner.fit import MAIN_CACHE_TYPES, USERS, contexts_for, make_grid
from planner.memory import Learned, LearnedSize
from planner.units import GIB, MIB

MACHINE = Hardware.simulate(ram=64 * GIB)


@pytest.mark.parametrize(
    ("n_ctx_train", "contexts"),
    [
        (32768, (2048, 4096, 8192, 16384, 32768)),
        (40960, (2048, 4096, 8192, 16384, 32768, 40960)),
        (1_048_576, (8192, 16384, 32768, 65536, 131072, 262144, 524288, 1_048_576)),
        (2048, (2048,)),
        (512, (512,)),
    ],
)
def test_contexts_double_up_to_what_the_model_was_trained_on(n_ctx_train: int, contexts: tuple[int, ...]) -> None:
    assert contexts_for(n_ctx_train) == contexts


def test_a_grid_holds_every_combination_with_the_cache_types_slowest(gemma: Model) -> None:
    cells = make_grid(gemma, MACHINE, contexts=(2048, 8192)).cells
    assert len(cells) == len(MAIN_CACHE_TYPES) * 2 * len(USERS)
    assert [(cell.cache_type, cell.ctx_per_user, cell.users) for cell in cells] == [
        (cache_type, context, users)
        for cache_type in ("f16", "q8_0", "q4_0")
        for context in (2048, 8192)
        for users in (1, 2, 3, 4, 5, 8)
    ]


def test_each_cell_is_the_plan_of_its_own_launch(gemma: Model) -> None:
    for cell in make_grid(gemma, MACHINE, contexts=(4096,), users=(1, 3), cache_types=("q8_0",)).cells:
        launch = cell.plan.launch
        assert (launch.ctx_size, launch.parallel) == (4096 * cell.users, cell.users)
        assert (launch.cache_type_k, launch.cache_type_v) == ("q8_0", "q8_0")
        assert cell.plan == predict(gemma, launch, MACHINE)
        assert cell.plan.n_ctx_slot == 4096


LEARNED = Learned(overhead={(): LearnedSize(999 * MIB, "0a1b2c3d")})


def test_what_was_learned_counts_in_every_cell(gemma: Model) -> None:
    cells = make_grid(gemma, MACHINE, contexts=(2048,), users=(1,), learned=LEARNED).cells
    assert len(cells) == 3
    for cell in cells:
        learned = [item.reserved_bytes for item in cell.plan.allocations if item.certainty == "learned"]
        assert learned == [999 * MIB]
