"""The short form of the soak: clients and faults by chance, at several pools.

`make soak` is the long one, with both event loops and another seed each time. What a seed does is
in `tests/benchmarks/soak`.
"""

from __future__ import annotations

from tests.benchmarks.soak.ends import ENDS_WITHIN_S, Ends
from tests.benchmarks.soak.report import Report
from tests.benchmarks.soak.run import soak
from tests.benchmarks.soak.scenes import scenes
from tests.benchmarks.soak.trouble import Trouble

DIVIDES = True
SCENE_S = 2.0
CLIENTS = 24
SEED = 20261


async def test_nothing_leaks_and_every_answer_is_whole_and_its_own_whatever_happens() -> None:
    *_, several = scenes(0.0, 2 * SCENE_S)
    report = await soak([several], SEED, CLIENTS)
    assert not report.breaches, report.text()


def test_engine_works_for_nobody_only_after_time_in_which_the_machine_let_it_run() -> None:
    report = Report(SEED)
    ends = Ends(report, Trouble(), ["a"], most=1)
    for key in ("stays", "ends"):
        ends.seen("began", key)
        ends.left(key)
    ends.check(0.5)  # however long it was: the machine stopped all of them meanwhile
    assert not report.breaches
    ends.seen("ended", "ends")
    ends.check(ENDS_WITHIN_S)
    assert [*report.breaches] == ["an engine works for nobody"]
    [example] = report.breaches["an engine works for nobody"].examples
    assert "stays, " in example
