"""Admission of requests that run in parts: the first part answers for all, the others wait."""

from __future__ import annotations

import pytest

from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    bulk,
    class_rules,
    core_of,
    ended,
    fill,
    granted,
    interactive,
    queue,
    reason_of,
    refused,
    rules,
)
from vllm_plugin.contracts.profile import FullQueue


def test_later_parts_take_no_place_in_a_full_queue() -> None:
    of_class = class_rules(queue_capacity=1)
    core = core_of(1, rules(of_class, of_class))
    fill(core, interactive(), "a")
    queue(core, interactive(later=True), "p2", "p3", "p4")
    queue(core, interactive(), "b")
    queue(core, interactive(later=True), "q2")
    assert reason_of(core.arrive("c", interactive(), 0.0)) is Reason.QUEUE_FULL
    order = ["a"]
    for _ in range(5):
        order += granted(core.release(order[-1], 1.0))
    assert order == ["a", "p2", "p3", "p4", "b", "q2"]


def test_later_part_outlives_the_longest_wait() -> None:
    core = core_of(1, rules(class_rules(max_wait_s=5.0)))
    fill(core, interactive(), "a")
    queue(core, interactive(later=True), "p2")
    queue(core, interactive(), "b")
    assert refused(core.dispatch(3_600.0)) == {"b": Reason.QUEUE_TIMEOUT}
    assert granted(core.release("a", 3_600.0)) == ["p2"]


@pytest.mark.parametrize("first", ["later", "whole"])
def test_part_that_runs_already_is_evicted_by_nobody(first: str) -> None:
    """A full queue is relieved by those that have a place in it."""
    of_class = class_rules(queue_capacity=1)
    core = core_of(1, rules(of_class, of_class, full_queue=FullQueue.DROP_LRU))
    fill(core, bulk(), "a")
    if first == "later":
        queue(core, bulk(later=True), "p2", "p3")
        queue(core, bulk(), "b")
    else:
        queue(core, bulk(), "b")
        queue(core, bulk(later=True), "p2", "p3")
    queue(core, bulk(), "c")
    assert refused(core.take_displaced()) == {"b": Reason.QUEUE_FULL_DROP_LRU}
    left = [*granted(core.release("a", 1.0))]
    for _ in range(2):
        left += granted(core.release(left[-1], 1.0))
    assert sorted(left) == ["c", "p2", "p3"]


def test_keys_are_compared_by_the_places_that_they_take() -> None:
    """Of two keys in a full queue that with more requests gives one up, however many parts the
    other's has."""
    of_class = class_rules(queue_capacity=3)
    core = core_of(1, rules(of_class, of_class))
    fill(core, interactive(), "a")
    queue(core, interactive(key="one"), "o1")
    queue(core, interactive(key="one", later=True), *(f"o{number}" for number in range(2, 9)))
    queue(core, interactive(key="two"), "t1", "t2")
    queue(core, interactive(key="three"), "x")
    assert [*refused(core.take_displaced())] == ["t2"]


def test_parts_count_for_their_key_like_requests() -> None:
    """A key with many parts gets no more than its share beside another."""
    core = core_of(2)
    fill(core, interactive(), "a", "b")
    queue(core, interactive(key="one"), "o1")
    queue(core, interactive(key="one", later=True), "o2", "o3", "o4")
    queue(core, interactive(key="two"), "t1", "t2")
    order: list[str] = []
    for name in ("a", "b", *("o1", "t1", "o2", "t2")):
        order += granted(ended(core, [name], 1.0))
    assert sorted(order[:4]) == ["o1", "o2", "t1", "t2"]


def test_depth_counts_parts_and_returns_to_zero() -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    queue(core, interactive(), "p1")
    queue(core, interactive(later=True), "p2")
    assert core.queue_depth == 2
    core.leave("p1", 1.0)
    core.leave("p2", 1.0)
    assert core.queue_depth == 0
    for service_class in (INTERACTIVE, BULK):
        assert core.queues.places(service_class) == 0
