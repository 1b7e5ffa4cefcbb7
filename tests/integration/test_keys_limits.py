"""What a key may have: the class, and how many sequences at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_sidecar.auth.keys import Keys
from tests.integration.cancelling import cancel, named, new_id
from tests.integration.client import CHAT, Response
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import breaks_off, resets


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    ring = KeyRing(tmp_path)
    ring.add("free")
    ring.add("two", concurrency=2)
    ring.add("bulk", bulk=True)
    return ring


def in_use(running: Running, name: str) -> int:
    guard = running.sidecar.frontend._authorizer
    held = guard.keys
    assert isinstance(held, Keys)
    return next(guard.sequences(each) for each in held if each.name == name)


async def test_key_for_bulk_is_served_as_bulk_whatever_the_body_demands(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine
) -> None:
    client = await keyed.client()
    for extra in ({}, {"service_tier": "default"}, {"priority": 0}, {"service_tier": "flex"}):
        assert (await client.post(headers=[ring.bearer("bulk")], **extra)).status == 200
    header = ("X-Orch-Class", "bulk")
    assert (await client.post(headers=[ring.bearer("bulk"), header])).status == 200
    assert (await client.post(headers=[ring.bearer("free")])).status == 200
    counts = {
        name: value
        for name, value in (await keyed.metrics()).items()
        if name.startswith("orch_admission_wait_seconds_count")
    }
    assert sorted(counts.values()) == [0, 1, 5]
    [bulk] = [name for name, value in counts.items() if value == 5]
    assert 'class="bulk"' in bulk
    assert len({request.header("x-vllm-priority") for request in engine.generating[:5]}) == 1


def assert_too_many(response: Response) -> None:
    assert (response.status, response.error["code"]) == (429, "ADMISSION_KEY_CONCURRENCY")
    assert response.error["policy_label"] == "key-concurrency"
    assert response.error["retriable"] is True
    assert int(response.header("retry-after") or "0") >= 1
    assert response.header("retry-after-ms") == str(response.error["retry_after_ms"])


@pytest.mark.parametrize("end", ["disconnect", "cancel", "refuse", "fail", "stream"])
async def test_however_a_request_ends_its_sequences_are_given_back_once(
    keyed: Running, ring: KeyRing, engine: ScriptedEngine, end: str
) -> None:
    two, held = [ring.bearer("two")], Held()

    client = await keyed.client()
    if end in ("disconnect", "cancel"):
        engine.answer = held
        request_id = new_id()
        busy = await started(keyed, headers=[*two, named(request_id)], n=2)
        await eventually(lambda: held.waiting)
        assert_too_many(await client.post(headers=two))
        if end == "disconnect":
            await busy.close()
        else:
            assert (await cancel(keyed, request_id, *two)).status == 204
            assert (await busy.response()).status == 499
    elif end == "refuse":
        response = await client.post(headers=[*two, ("X-Orch-Pool", "other")])
        assert response.status == 400
    elif end == "fail":
        engine.answer = resets
        assert (await client.post(headers=two, n=2)).status == 502
    else:
        engine.answer = breaks_off
        client.start(CHAT, two, stream=True, n=2)
        assert b"engine_failed" in (await client.response()).body
    await eventually(lambda: in_use(keyed, "two") == 0)
    await keyed.idle()
    engine.answer = held
    again = await started(keyed, headers=two, n=2)
    await eventually(lambda: held.waiting)
    assert in_use(keyed, "two") == 2
    assert_too_many(await client.post(headers=two))
    held.release_all()
    assert (await again.response()).status == 200
