"""The short form of the soak: clients and faults by chance, first one pool and then several.

`make soak` is the long one, with both event loops and another seed each time. What a seed does is
in `tests/benchmarks/soak`.
"""

from __future__ import annotations

from tests.benchmarks.soak.run import soak
from tests.benchmarks.soak.scenes import scenes

SCENE_S = 6.0
CLIENTS = 24
SEED = 20261


async def test_nothing_leaks_and_every_answer_is_whole_and_its_own_whatever_happens() -> None:
    one_pool, _, several, _ = scenes(2 * SCENE_S, 2 * SCENE_S)
    report = await soak([one_pool, several], SEED, CLIENTS)
    assert not report.breaches, report.text()
