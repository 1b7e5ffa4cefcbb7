"""Which sidecar's requests may bring a LoRA adapter into the engine."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.vllm_plugin.examples import FACTS, THEM, US, lease_of, report, subscribed
from vllm_plugin.contracts.lease_protocol import (
    CLAIM_S,
    OFFER_S,
    PASSED_S,
    Claim,
    ClaimCall,
    encoded_adapter,
    parse_adapter,
)
from vllm_plugin.state.adapter_use import AdapterUse
from vllm_plugin.state.engine_speed import LoraUse
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.leases import Rejected

NAMES = ("a", "b", "c", "d")


def engine(now: list[float], max_loras: int = 1) -> EngineState:
    facts = replace(FACTS, features={"max_loras": max_loras})
    engine_state = EngineState(facts, clock=lambda: now[0])
    engine_state.set_models(("tiny",), NAMES)
    for instance in (US, THEM):
        subscribed(engine_state, instance)
    return engine_state


class Sidecar:
    """Sends requests with leases."""

    def __init__(self, engine_state: EngineState, instance: str) -> None:
        self.engine_state, self.instance, self.sent = engine_state, instance, 0

    def enter(self, adapter: str | None) -> int | Rejected:
        self.sent += 1
        return self.engine_state.enter(lease_of(self.instance, self.sent), adapter=adapter)

    def entered(self, adapter: str | None) -> int:
        key = self.enter(adapter)
        assert isinstance(key, int), (adapter, key)
        return key

    @property
    def lora(self) -> dict[str, object]:
        found = self.engine_state.change_fields(self.instance)["lora"]
        assert isinstance(found, dict)
        return found


@pytest.mark.parametrize("name", ["sql", "a b", "ä/ö", "x%20y", "日本", "a\r\nb: c"])
def test_name_is_read_as_it_was_written(name: str) -> None:
    assert encoded_adapter(name).isascii()
    assert "\n" not in encoded_adapter(name)
    assert parse_adapter(encoded_adapter(name)) == name
    assert parse_adapter("") is None


def test_request_of_another_adapter_is_rejected_while_the_engine_has_as_many_as_it_runs() -> None:
    engine_state = engine([0.0])
    us, them = Sidecar(engine_state, US), Sidecar(engine_state, THEM)
    key = us.entered("a")
    assert them.enter("b") is Rejected.NO_ADAPTER
    them.entered("a")
    them.entered(None)
    assert (us.lora["foreign"], them.lora["foreign"]) == (["a"], ["a"])
    assert (us.lora["wanted"], them.lora["wanted"]) == (["b"], [])
    engine_state.leave(key)
    assert us.lora["foreign"] == ["a"]
    assert us.enter("b") is Rejected.NO_ADAPTER
    assert engine_state.rejected_for_slots == 0


def test_rejected_request_leaves_offered_slots_where_they_are() -> None:
    engine_state = engine([0.0])
    us, them = Sidecar(engine_state, US), Sidecar(engine_state, THEM)
    keys = [us.entered("a") for _ in range(8)]
    engine_state.claim(THEM, ClaimCall(Claim(1, urgent=True), number=1))
    engine_state.leave(keys[0])
    assert engine_state.claims.booked(THEM) == 1
    assert them.enter("b") is Rejected.NO_ADAPTER
    assert engine_state.claims.booked(THEM) == 1
    them.entered("a")


def test_those_that_wait_for_longer_go_first_and_wait_no_longer_than_they_must() -> None:
    now = [0.0]
    engine_state = engine(now)
    us, them = Sidecar(engine_state, US), Sidecar(engine_state, THEM)
    key = us.entered("a")
    assert them.enter("b") is Rejected.NO_ADAPTER
    assert us.enter("c") is Rejected.NO_ADAPTER
    now[0] = PASSED_S - 0.1
    engine_state.tick()
    joined = us.entered("a")
    assert engine_state.ticks_at() == PASSED_S
    now[0] = PASSED_S
    _, woken = subscribed(engine_state, US)
    engine_state.tick()
    assert woken, "it learns that others have waited for long enough"
    assert us.lora["joinable"] is False
    assert us.enter("a") is Rejected.NO_ADAPTER
    them.entered(None)
    for each in (key, joined):
        engine_state.leave(each)
    assert us.enter("c") is Rejected.NO_ADAPTER
    now[0] += 1.0
    last = them.entered("b")
    engine_state.tick()
    assert them.lora["joinable"] is True, "the time begins again with each turn"
    them.entered("b")
    now[0] += PASSED_S
    engine_state.tick()
    assert them.lora["joinable"] is False
    engine_state.leave(last)


def test_sidecar_that_says_no_more_what_it_wants_keeps_no_room() -> None:
    now = [0.0]
    engine_state = engine(now)
    us, them = Sidecar(engine_state, US), Sidecar(engine_state, THEM)
    key = us.entered("a")
    engine_state.claim(THEM, ClaimCall(None, number=2, adapters=("b", "c")))
    assert us.lora["wanted"] == ["b", "c"]
    engine_state.claim(THEM, ClaimCall(None, number=1, adapters=("d",)))  # overtaken
    assert us.lora["wanted"] == ["b", "c"]
    engine_state.claim(THEM, ClaimCall(None, number=3, adapters=("c",)))
    assert us.lora["wanted"] == ["b", "c"], "a request may be under way"
    now[0] = OFFER_S
    engine_state.tick()
    assert us.lora["wanted"] == ["c"]
    assert not engine_state.change_fields(US)["contended"], "it is no claim of slots"
    engine_state.leave(key)
    now[0] = 1.0
    assert us.enter("d") is Rejected.NO_ADAPTER
    now[0] = CLAIM_S
    engine_state.tick()
    assert us.lora["wanted"] == []
    us.entered("d")
    assert them.enter("b") is Rejected.NO_ADAPTER
    assert us.lora["wanted"] == ["b"]


def test_body_corrects_what_the_header_said() -> None:
    engine_state = engine([0.0])
    us, them = Sidecar(engine_state, US), Sidecar(engine_state, THEM)
    key = us.entered("a")
    engine_state.model_received(key, "b")
    assert them.lora["foreign"] == ["b"]
    them.entered("b")
    engine_state.model_received(key, "tiny")
    assert them.lora["foreign"] == []
    engine_state.leave(key)
    engine_state.model_received(key, "a")  # it has left
    assert them.lora["foreign"] == []


def test_requests_without_a_lease_count_by_their_bodies_and_by_the_statistics() -> None:
    engine_state = engine([0.0])
    us = Sidecar(engine_state, US)
    key = engine_state.enter(None, adapter="b")
    assert isinstance(key, int)
    assert us.lora["foreign"] == [], "anybody can send a header"
    engine_state.model_received(key, "a")
    assert us.enter("b") is Rejected.NO_ADAPTER
    engine_state.record(replace(report(running=2), lora=LoraUse(("a", "d"))))
    assert us.lora["foreign"] == ["a", "d"]
    engine_state.leave(key)
    engine_state.record(replace(report(running=1), lora=LoraUse(("a",))))
    assert us.lora["foreign"] == []


def test_loads_are_counted_as_vllm_loads_and_what_was_used_last_stays() -> None:
    use = AdapterUse(2)
    for key, adapter in enumerate(("a", "b", "a", "b", "c", "a")):
        use.entered(key, US, adapter, 0.0)
        use.left(key)
    assert use.fields(US)["resident"] == ["a", "c"]
    assert use.loads_total == 4


def test_engine_forgets_adapters_that_it_does_not_serve() -> None:
    engine_state = engine([0.0])
    us = Sidecar(engine_state, US)
    us.entered("unknown")
    us.entered("a")
    engine_state.set_models(("tiny",))
    us.entered("b")
    assert us.lora["foreign"] == []


def test_sidecar_that_names_no_adapter_is_served_as_before_and_counted_by_its_bodies() -> None:
    """Of API version 1.2: vLLM has the requests wait, in slots."""
    engine_state = engine([0.0])
    us, them = Sidecar(engine_state, US), Sidecar(engine_state, THEM)
    for model in ("a", "b"):
        engine_state.model_received(us.entered(None), model)
    assert them.lora["foreign"] == ["a", "b"]
    assert them.enter("c") is Rejected.NO_ADAPTER
    them.entered("b")


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_adapter_waits_longer_than_the_turns_of_all_others(most: int) -> None:
    """Three sidecars ask for all adapters without a pause, in virtual time."""
    draw, step_s, longest_s = random.Random(most), 0.02, 1.0
    use = AdapterUse(most)
    running: dict[int, float] = {}  # until when, by request
    since: dict[tuple[str, str], float] = {}
    waited, number = dict.fromkeys(NAMES, 0.0), 0
    entered = Counter[tuple[str, str]]()
    for step in range(10_000):
        now = step * step_s
        for key in [key for key, until in running.items() if until <= now]:
            assert use.left(key)
            del running[key]
        use.expire(now)
        for sidecar in draw.sample(("x", "y", "z"), 3):
            rejected = []
            for adapter in draw.sample(NAMES, 4):
                want = sidecar, adapter
                if use.try_enter(sidecar, adapter, now):
                    number += 1
                    use.entered(number, sidecar, adapter, now)
                    running[number] = now + draw.uniform(0.05, longest_s)
                    waited[adapter] = max(waited[adapter], now - since.pop(want, now))
                    entered[want] += 1
                else:
                    rejected.append(adapter)
                    since.setdefault(want, now)
            use.wants(sidecar, rejected, now)
        assert len(use.fields(None)["foreign"]) <= most
    assert len(entered) == 12
    # A turn is the time for which others may join, until the last of them has ended.
    turns = -(-len(NAMES) // most)
    assert max(waited.values()) <= turns * (PASSED_S + longest_s) + longest_s, waited
    assert min(entered.values()) > 0.3 * max(entered.values()), entered
