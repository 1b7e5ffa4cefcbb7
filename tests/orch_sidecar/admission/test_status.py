"""The status of an admission: the free slots are those that the next request would get."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Lease
from tests.orch_sidecar.admission.examples import (
    BULK,
    DRAIN,
    INTERACTIVE,
    STALE,
    bulk,
    class_rules,
    core_of,
    fill,
    interactive,
    kv_of,
    queue,
    reason,
    report,
    rules,
)
from vllm_plugin.contracts.profile import BatchBounds


def free(core: AdmissionController, now: float = 0.0) -> tuple[int, int]:
    """Of interactive and of bulk requests."""
    status = core.status(now)
    return status.of(INTERACTIVE).free, status.of(BULK).free


def starts(core: AdmissionController, request: AdmissionRequest, now: float = 0.0) -> bool:
    """Whether it gets a slot at once."""
    return isinstance(core.arrive("next", request, now), Lease)


def test_all_slots_are_free_while_nothing_waits() -> None:
    core = core_of(4)
    fill(core, interactive(), "i")
    assert free(core) == (3, 3)


@pytest.mark.parametrize("next_one", [interactive(), bulk()])
def test_none_is_free_while_dispatching_is_paused(next_one: AdmissionRequest) -> None:
    """The upstream rejected a request a moment ago."""
    core = core_of(4)
    core.pause("none", 0.5, 0.0)
    assert free(core, 0.4) == (0, 0)
    assert not starts(core, next_one, 0.4)


def test_slots_are_free_again_when_the_pause_is_over() -> None:
    core = core_of(4)
    core.pause("none", 0.5, 0.0)
    assert free(core, 0.5) == (4, 4)
    assert starts(core, bulk(), 0.5)


@pytest.mark.parametrize("next_one", [interactive(max_tokens=1), bulk(max_tokens=1)])
def test_none_is_free_while_the_kv_cache_has_no_room(next_one: AdmissionRequest) -> None:
    core = core_of(4, kv=kv_of(100))
    fill(core, interactive(prompt_tokens=50, max_tokens=50), "i")
    assert free(core) == (0, 0)
    assert not starts(core, next_one)


def test_interactive_requests_that_wait_only_for_their_batch_leave_slots_to_bulk() -> None:
    core = core_of(4, rules(class_rules(batch=BatchBounds(least=1, most=1))))
    fill(core, interactive(), "i")
    queue(core, interactive(), "waits")
    assert reason(core.blocked_by) == "batch"
    assert free(core) == (0, 3)
    assert starts(core, bulk())


def test_none_is_free_behind_requests_of_the_class() -> None:
    core = core_of(4)
    fill(core, bulk(3), "b")
    queue(core, bulk(2), "large")
    assert free(core) == (1, 0)
    queue(core, interactive(2), "larger")
    assert free(core) == (0, 0)


@pytest.mark.parametrize("what", ["parents_wait", "rejected"])
def test_none_is_free_while_others_are_to_be_offered_slots_first(what: str) -> None:
    core = core_of(4)
    core.engine_reports(report(4, sidecars=2), 0.0)
    offers = core.constraints.offers
    offers.set_parents_wait(True) if what == "parents_wait" else offers.rejected()
    assert free(core) == (0, 0)
    assert not starts(core, interactive())


def test_none_is_free_while_nothing_is_admitted() -> None:
    core = core_of(4)
    core.drain(DRAIN)
    assert free(core) == (0, 0)
    core.resume()
    core.engine_unavailable(STALE, 0.0)
    assert free(core) == (0, 0)
