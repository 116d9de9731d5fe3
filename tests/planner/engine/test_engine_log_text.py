"""The text of a log: kept whole, or by its ends."""

from __future__ import annotations

from planner.engine.log_text import LogText


def test_nothing_is_left_out_of_a_log_that_fits() -> None:
    text = LogText(1000)
    lines = [f"{number}\n" for number in range(20)]
    for line in lines:
        text.add(line)
    assert (str(text), text.count) == ("".join(lines), 20)


def test_of_a_longer_log_the_middle_is_counted() -> None:
    text = LogText(1000)
    for number in range(100):
        text.add(f"{number:06}\n")
    told = str(text).splitlines()
    kept = 1000 // (7 + 64)
    assert told[:kept] == [f"{number:06}" for number in range(kept)]
    assert told[kept] == f"... {100 - 2 * kept} lines were left out here ..."
    assert told[kept + 1 :] == [f"{number:06}" for number in range(100 - kept, 100)]
