"""Headers of the Gateway API's inference extension and of llm-d, through HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tests.integration.held import Held
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine

KEYS = {"alice": {}, "bob": {}, "gateway": {"gateway": True}}

FAIRNESS = "x-gateway-inference-fairness-id"


Headers = Sequence[tuple[str, str]]


async def answers_of_two_groups(
    sidecar: Running,
    engine: ScriptedEngine,
    held: Held,
    one: Headers = (),
    other: Headers = (),
    answers: int = 48,
) -> tuple[int, int]:
    """How many answers each of two groups of 12 clients gets. All ask again at once, and one
    request has all slots. Those of the first group have a fresh fairness id in each request."""
    clients = [await sidecar.client() for _ in range(24)]
    fresh = itertools.count()

    def ask(number: int) -> None:
        headers = [*other, (FAIRNESS, "other")]
        if number % 2 == 0:
            headers = [*one, (FAIRNESS, f"fresh-{next(fresh)}")]
        clients[number].start(headers=headers, stream=False, seed=number, n=4)

    for number in range(24):
        ask(number)
        await eventually(lambda number=number: sidecar.queued == number)  # type: ignore[misc]
    got = [0, 0]
    for answer in range(answers + 24):
        await eventually(lambda: held.waiting)
        number = engine.generating[-1].json()["seed"]
        held.release()
        assert (await clients[number].response()).status == 200
        if answer < answers:
            got[number % 2] += 1
            ask(number)
            await eventually(lambda: sidecar.queued == 23)
    return got[0], got[1]


async def test_fresh_flows_of_clients_get_no_more_than_others(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    fresh, others = await answers_of_two_groups(sidecar, engine, held)
    assert fresh == others == 24


@pytest.mark.parametrize("by", ["address", "network", "key"])
async def test_flows_count_that_a_gateway_names(
    engine: ScriptedEngine, start: Start, held: Held, ring: KeyRing, by: str
) -> None:
    """It knows its clients: each of these gets as much as the one that has many requests."""
    key: Headers = ()
    if by == "key":
        sidecar, key = await start(api_keys_file=ring.path), [ring.bearer("gateway")]
    else:
        known = ["10.0.0.0/8", "127.0.0.1"] if by == "address" else ["::1", "127.0.0.0/8"]
        sidecar = await start(gateways=known)
    fresh, others = await answers_of_two_groups(sidecar, engine, held, key, key)
    assert fresh > 3 * others
