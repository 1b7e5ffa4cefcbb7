"""The status of an admission: the free slots are those that the next request would get."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Lease
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    bulk,
    class_rules,
    core_of,
    fill,
    interactive,
    kv_of,
    queue,
    reason,
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
