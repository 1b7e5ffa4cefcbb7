"""The readers of the state stream that name no instance: all are sent the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_sidecar.control import state_feed, state_stream
from tests.orch_sidecar.control.test_state_stream import Client, client
from tests.orch_sidecar.parents import grant
from tests.orch_sidecar.published import STREAM, Tier

__all__ = ["client"]


async def test_events_of_readers_that_name_no_instance_are_made_once(
    tier: Tier, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, made = STREAM.partition("?")[0], list[str]()
    monkeypatch.setattr(state_feed, "HEARTBEAT_EVERY_S", 0.2)
    first = await client.read(tier, target)
    before = await first.expect("state")
    encode = state_stream._encoded

    def counted(name: str, data: dict[str, Any]) -> bytes:
        made.append(name)
        return encode(name, data)

    monkeypatch.setattr(state_stream, "_encoded", counted)
    others = [await client.read(tier, target) for _ in range(3)]
    for each in others:
        state = await each.expect("state")
        assert {**state, "observed_at": ""} == {**before, "observed_at": ""}
    grant(tier.slots, "another", 2)
    assert tier.changed is not None
    tier.changed()
    changes = [await each.expect("change") for each in (first, *others)]
    assert changes[0]["foreign"] == 2
    assert changes == [changes[0]] * 4
    assert made.count("change") == 1
    parent = await client.read(tier)
    assert (await parent.expect("state"))["foreign"] == 2
    late = await client.read(tier, target)
    assert (await late.expect("state"))["foreign"] == 2
    beats = [await each.next() for each in (first, *others)]
    assert len({json.dumps(each) for each in beats}) == 1
