"""The short form of the soak: a minute of clients and faults by chance, half of it with one pool.

`make soak` is the long one. What a seed does is in `tests/benchmarks/soak`.
"""

from __future__ import annotations

import random

import pytest

from tests.benchmarks.soak.run import soak
from tests.benchmarks.soak.scenes import scenes

HALF_S = 30.0
CLIENTS = 32


@pytest.mark.timeout(600)
async def test_nothing_leaks_and_every_answer_is_whole_and_its_own_whatever_happens() -> None:
    seed = random.SystemRandom().getrandbits(32)
    report = await soak(scenes(HALF_S, HALF_S), seed, CLIENTS)
    assert not report.breaches, report.text()
