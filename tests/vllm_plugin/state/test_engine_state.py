"""The engine's state, its document, and the subscribers that are woken by its changes."""

from __future__ import annotations

from tests.vllm_plugin.examples import FACTS, LEASE, THEM, US, lease_of, report, subscribed
from vllm_plugin.contracts.claiming_sidecar import Subscriber
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall
from vllm_plugin.speed.engine_speed import SchedulerReport
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.readiness import NotReady


def test_document_contains_the_facts_and_the_counts() -> None:
    engine_state = EngineState(FACTS)
    engine_state.record(report(3, 1, batch=3, usage=0.25))
    state = engine_state.document(None)
    assert state["engine"] == "vllm"
    assert state["engine_version"] == "0.32.0"
    assert state["models"] == ["tiny", "alias"]
    assert state["measurement_type"] == "batched_online"
    assert state["epoch"] == "e1"
    assert state["state"] == "ready"
    assert (state["running"], state["waiting"], state["slots_free"]) == (3, 1, 4)
    assert state["kv_cache_usage"] == 0.25
    assert state["steps_by_batch"] == {"3": [1, 0.01]}


def test_peak_includes_sequences_that_ended_in_the_step() -> None:
    """Counts are taken after a step: sequences that ended in it are in its batch only."""
    engine_state = EngineState(FACTS)
    engine_state.record(report(0, 2, batch=6))
    assert engine_state.change_fields(None)["peak"] == 8
    engine_state.record(report(7, 2, batch=6))
    assert engine_state.change_fields(None)["peak"] == 9


def test_prefilling_counts_prompts_that_wait_or_are_computed() -> None:
    engine_state = EngineState(FACTS)
    engine_state.record(SchedulerReport(0.0, 5, 2, 0.1, 0, 5, False, 0.01, 900, decoding=3))
    assert engine_state.change_fields(None)["prefilling"] == 4
    _, woken = subscribed(engine_state)
    engine_state.record(SchedulerReport(0.0, 5, 2, 0.1, 0, 5, False, 0.01, 300, decoding=4))
    assert engine_state.change_fields(None)["prefilling"] == 3
    assert len(woken) == 1
    engine_state.record(report(5, batch=5))
    assert engine_state.change_fields(None)["prefilling"] == 0


def test_subscribers_are_woken_by_changes_only() -> None:
    engine_state = EngineState(FACTS)
    engine_state.enter(LEASE)
    _, woken = subscribed(engine_state)
    engine_state.record(report(1, batch=1, usage=0.1001))
    assert len(woken) == 1
    for _ in range(100):
        engine_state.record(report(1, batch=1, usage=0.1002))
    assert len(woken) == 1, "steady decoding costs no wake-ups"
    assert engine_state.speed.steps.count == 101
    engine_state.record(report(1, batch=1, usage=0.102))
    assert len(woken) == 2
    engine_state.record(report(0, usage=0.102))
    assert len(woken) == 3
    engine_state.record(report(0, usage=0.102, preempted=1))
    assert len(woken) == 4


def test_subscriber_that_has_yet_to_look_is_not_woken_again_by_changes() -> None:
    engine_state, woken = EngineState(FACTS), list[None]()
    subscriber = Subscriber(US, lambda: woken.append(None))
    engine_state.subscribe(subscriber)
    for running in range(1, 6):
        engine_state.record(report(running))
    assert (len(woken), subscriber.changed) == (1, True)
    assert engine_state.look(subscriber)["running"] == 5
    assert not subscriber.changed
    engine_state.record(report(7))
    assert len(woken) == 2


def test_what_is_sent_at_once_wakes_also_those_that_have_yet_to_look() -> None:
    """Ends, offers and readiness do not wait for the turn of a change."""
    engine_state, woken = EngineState(FACTS), list[None]()
    key = engine_state.enter(LEASE)
    assert isinstance(key, int)
    subscriber = Subscriber(US, lambda: woken.append(None))
    engine_state.subscribe(subscriber)
    engine_state.record(report(3))
    engine_state.leave(key)
    assert (len(woken), subscriber.ended) == (2, [LEASE])
    assert engine_state.claim(US, ClaimCall(Claim(1, urgent=True)))
    assert (len(woken), [offer.slots for offer in subscriber.offers]) == (3, [1])
    engine_state.readiness.call_began(NotReady("paused", "by a test"))
    engine_state.readiness_changed(100.0)
    assert len(woken) == 4


def test_end_of_a_request_without_a_lease_is_reported_to_no_instance() -> None:
    engine_state = EngineState(FACTS)
    subscriber, _ = subscribed(engine_state, None)
    key = engine_state.enter("nonsense")
    assert isinstance(key, int)
    engine_state.leave(key)
    assert subscriber.ended == []


def test_new_stream_of_a_sidecar_replaces_the_one_before() -> None:
    """That one's connection may be lost without its end: nothing is collected for it."""
    engine_state = EngineState(FACTS)
    former, _ = subscribed(engine_state)
    other, _ = subscribed(engine_state, THEM)
    readers = [subscribed(engine_state, None)[0] for _ in range(2)]
    engine_state.claim(US, ClaimCall(None, number=1))
    current, _ = subscribed(engine_state)
    assert [each.replaced for each in (former, other, *readers, current)] == [True] + [False] * 4
    for number in range(3):
        entered = engine_state.enter(lease_of(US, number))
        assert isinstance(entered, int)
        engine_state.leave(entered)
    assert (len(former.ended), len(current.ended)) == (0, 3)
    assert (engine_state.claims.sidecars, engine_state.claims.number_of(US)) == (2, 1)
    engine_state.unsubscribe(former)
    assert engine_state.claims.sidecars == 2
    engine_state.unsubscribe(current)
    assert engine_state.claims.sidecars == 1


def test_unsubscribed_reader_is_not_woken() -> None:
    engine_state = EngineState(FACTS)
    subscriber, woken = subscribed(engine_state)
    engine_state.unsubscribe(subscriber)
    engine_state.unsubscribe(subscriber)
    engine_state.record(report(3))
    assert woken == []
