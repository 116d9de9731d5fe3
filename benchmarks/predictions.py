"""Predictions per second of a model that is open already.

python -m benchmarks.predictions
"""

from __future__ import annotations

import random
import time

from benchmarks._support import model_files, print_table
from planner import Hardware, Launch, Model, predict
from planner.launch import CACHE_TYPES
from planner.units import GIB

COUNT = 10_000
SEED = 7


def random_launches(count: int) -> list[Launch]:
    """Different launches, the same every time."""
    choose = random.Random(SEED)
    return [
        Launch(
            ctx_size=choose.randrange(256, 131_072),
            parallel=choose.randrange(1, 17),
            kv_unified=choose.random() < 0.5,
            cache_type_k=choose.choice(CACHE_TYPES),
            cache_type_v=choose.choice(CACHE_TYPES),
            ubatch_size=choose.choice((128, 256, 512, 1024)),
        )
        for _ in range(count)
    ]


def main() -> None:
    """Print the table."""
    hardware = Hardware.simulate(ram=16 * GIB)
    launches = random_launches(COUNT)
    rows = []
    for name, path in model_files().items():
        model = Model.open(path)
        start = time.perf_counter()
        for launch in launches:
            predict(model, launch, hardware)
        seconds = time.perf_counter() - start
        rows.append((name, f"{COUNT / seconds:,.0f}", f"{seconds / COUNT * 1e6:.0f} µs"))
    print_table((f"{COUNT:,} launches of", "per second", "each"), rows)


if __name__ == "__main__":
    main()
