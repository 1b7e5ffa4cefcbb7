"""Requests of LoRA adapters wait where the engine would have them wait, and keep nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Lease, Queued
from orch_sidecar.pools.status import status_of
from tests.orch_sidecar.admission.examples import (
    INTERACTIVE,
    STEP_TIME,
    core_of,
    fill,
    granted,
    interactive,
    queue,
    reason,
    report,
    rules,
)
from vllm_plugin.contracts.profile import ServiceClass

SLOTS = 4
KNOWN: dict[str, Any] = {"step_time": STEP_TIME, "prefill_tokens_per_s": 1e6}


def of(
    adapter: str | None, tokens: int = 100, of_class: ServiceClass = INTERACTIVE
) -> AdmissionRequest:
    return AdmissionRequest(of_class, max_tokens=tokens, adapter=adapter)


def engine(max_loras: int = 1, slots: int = SLOTS, **more: Any) -> AdmissionController:
    return core_of(slots, rules(), max_loras=max_loras, **(KNOWN | more))


def test_one_of_another_adapter_waits_here_and_not_in_the_engine() -> None:
    core = engine()
    fill(core, of("a"), "a1", "a2")
    [waits] = queue(core, of("b"), "b1")
    assert reason(core.blocked_by) == "adapter"
    # 100 tokens in a batch of two, at 12 ms each.
    assert waits.predicted_start_ms == pytest.approx(1200, rel=0.2)
    assert granted(core.release("a1", 1.0, 100)) == []
    assert granted(core.release("a2", 1.2, 100)) == ["b1"]


def test_base_model_and_adapters_in_use_pass() -> None:
    core = engine()
    fill(core, of("a"), "a1")
    queue(core, of("b"), "b1")
    fill(core, of(None), "base")
    fill(core, of("a"), "a2", at=0.1)
    assert status_of(core, 0.1).interactive.free == SLOTS - 3


def test_as_many_run_at_once_as_the_engine_has_room_for() -> None:
    core = engine(max_loras=2)
    fill(core, of("a"), "a1")
    fill(core, of("b"), "b1")
    queue(core, of("c"), "c1")
    assert granted(core.release("b1", 1.0, 100)) == ["c1"]
    assert isinstance(core.arrive("b2", of("b"), 1.1), Queued)


def test_without_adapters_in_the_engine_nothing_is_counted() -> None:
    core = engine(max_loras=0)
    fill(core, of("a"), "a1")
    fill(core, of("b"), "b1")


def test_waiting_adapter_has_its_turn_after_the_slots_were_used_once() -> None:
    core = engine()
    fill(core, of("a"), "a0", "a1", "a2", "a3")
    queue(core, of("b"), "b")
    order, running = [], ["a0", "a1", "a2", "a3"]
    for number in range(4, 30):
        now = 0.01 * number
        core.arrive(f"a{number}", of("a"), now)
        began = granted(core.release(running.pop(0), now, 10))
        order += began
        running += began
        if "b" in order or not running:
            break
    assert order.index("b") == SLOTS


def test_turns_of_adapters_follow_each_other_in_batches() -> None:
    """Each adapter that waits gets the slots, not one of them."""
    core = engine()
    fill(core, of("a"), "a")
    queue(core, of("b"), "b1", "b2", "b3")
    queue(core, of("c"), "c1", "c2", at=0.1)
    assert granted(core.release("a", 1.0, 100)) == ["b1", "b2", "b3"]
    assert granted(core.release("b1", 2.0, 100)) == []
    core.release("b2", 2.0, 100)
    assert granted(core.release("b3", 2.0, 100)) == ["c1", "c2"]


def test_later_turns_are_predicted_behind_earlier_ones() -> None:
    core = engine()
    fill(core, of("a"), "a")
    [b] = queue(core, of("b"), "b")
    [c] = queue(core, of("c"), "c")
    assert b.predicted_start_ms is not None
    assert c.predicted_start_ms is not None
    assert c.predicted_start_ms == pytest.approx(2 * b.predicted_start_ms, rel=0.2)
    starts = core.forecaster.starts(INTERACTIVE, core.blocked_by, 0.0)
    assert [round(1000 * (at or 0.0)) for _, at in starts] == [
        b.predicted_start_ms,
        c.predicted_start_ms,
    ]


def test_request_in_line_for_a_slot_is_told_of_the_adapter_that_it_will_wait_for() -> None:
    """A step takes 14 ms. The adapter of the second in line has room when that of the longest
    request has ended; the others get the first slots."""
    core = engine()
    fill(core, of("a"), "a1", "a2", "a3")
    fill(core, of("a", 1000), "a4")
    [plain] = queue(core, of(None), "plain")
    [b] = queue(core, of("b"), "b")
    [later] = queue(core, of(None), "later")
    assert reason(core.blocked_by) == "slot"
    starts = [each.predicted_start_ms for each in (plain, b, later)]
    assert starts == [1400, 14_000, 1400]
    shown = core.forecaster.starts(INTERACTIVE, core.blocked_by, 0.0)
    assert [round(1000 * (start_s or 0)) for _, start_s in shown] == starts


def test_adapters_of_others_take_room_as_long_as_the_engine_reports_them() -> None:
    core = engine(foreign=1, adapters_foreign=frozenset({"x"}))
    queue(core, of("b"), "b")
    fill(core, of("x"), "x")
    later = report(SLOTS, max_loras=1, **KNOWN)
    assert granted(core.engine_reports(later, 1.0)) == [], "its own still runs"
    assert granted(core.release("x", 2.0, 100)) == ["b"]


def test_statistics_count_while_leases_are_known_by_their_names_alone() -> None:
    core = engine()
    running = frozenset({"x"})
    lease = "a" * 16 + "." + "b" * 32 + ".1"
    adopted = report(SLOTS, max_loras=1, adapters_running=running, leases=((lease, 1),), **KNOWN)
    core.engine_reports(adopted, 0.0)
    queue(core, of("b"), "b")
    fill(core, of("x"), "x")


def test_adapters_that_others_wait_for_go_first() -> None:
    core = engine(max_loras=2, adapters_wanted=frozenset({"x"}))
    fill(core, of("a"), "a")
    queue(core, of("b"), "b")
    fill(core, of("x"), "x")
    later = report(SLOTS, max_loras=2, **KNOWN)
    assert granted(core.engine_reports(later, 1.0)) == []
    assert granted(core.release("x", 2.0, 100)) == ["b"]


def test_adapters_in_use_end_when_others_have_waited_for_long_enough() -> None:
    core = engine()
    fill(core, of("a"), "a1")
    core.engine_reports(report(SLOTS, max_loras=1, adapters_joinable=False, **KNOWN), 1.0)
    queue(core, of("a"), "a2", at=1.0)
    fill(core, of(None), "base", at=1.0)
    core.engine_reports(report(SLOTS, max_loras=1, **KNOWN), 2.0)
    assert core.ledger.get("a2") is not None


def test_rejected_adapter_is_held_until_the_engine_reports_and_no_other_request_is() -> None:
    core = engine()
    fill(core, of("a"), "a1")
    core.rejected("a1", "no_adapter", 0.0)
    core.release("a1", 0.0, served=False)
    assert isinstance(core.requeue("a1", of("a"), 0.0, 0.0), Queued)
    assert granted(core.dispatch(0.0)) == []
    fill(core, of(None), "base", at=0.1)
    assert core.next_event(0.1) == pytest.approx(0.25)
    assert granted(core.dispatch(0.25)) == ["a1"], "a report may be lost"
    core.rejected("a1", "no_adapter", 0.3)
    core.release("a1", 0.3, served=False)
    core.requeue("a1", of("a"), 0.0, 0.3)
    foreign = report(SLOTS, max_loras=1, foreign=1, adapters_foreign=frozenset({"x"}), **KNOWN)
    assert granted(core.engine_reports(foreign, 0.35)) == []
    assert granted(core.engine_reports(report(SLOTS, max_loras=1, **KNOWN), 0.4)) == ["a1"]


def test_adapters_that_have_waited_long_still_follow_each_other_in_batches() -> None:
    core = engine()
    fill(core, of("a"), "a")
    queue(core, of("b"), "b1", "b2", "b3")
    queue(core, of("c"), "c1", "c2")
    assert granted(core.release("a", 3.0, 100)) == ["b1", "b2", "b3"]
    queue(core, of("b"), "b4", at=5.5)
    core.release("b1", 5.5, 100)
    core.release("b2", 5.5, 100)
    assert granted(core.release("b3", 5.5, 100)) == ["c1", "c2"]
    core.release("c1", 6.0, 100)
    assert granted(core.release("c2", 6.0, 100)) == ["b4"]


def test_restart_of_the_engine_frees_all_adapters() -> None:
    core = engine()
    fill(core, of("a"), "a")
    queue(core, of("b"), "b")
    again = report(SLOTS, "e2", max_loras=1, **KNOWN)
    assert granted(core.engine_reports(again, 1.0)) == ["b"]
    assert core.release("a", 2.0) == []
    assert isinstance(core.arrive("a2", of("a"), 2.1), Queued)


def test_request_that_is_set_aside_is_refused_when_its_time_is_over_and_reads_of_its_adapter() -> (
    None
):
    core = engine()
    fill(core, of("a"), "a")
    queue(core, of("b"), "b")
    assert core.blocked_by is not None
    assert core.blocked_by.text() == "its LoRA adapter: the engine runs 1 at once, and has a"
    core.leave("b", 1.0)
    assert isinstance(core.arrive("plain", interactive(), 1.0), Lease)
    assert core.blocked_by is None
