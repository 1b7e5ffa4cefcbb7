"""Sidecars that claim slots and use none of them: what they take from the others is bounded."""

from __future__ import annotations

import pytest

from tests.orch_sidecar.admission.cluster import SLOTS, Cluster
from vllm_plugin.contracts.claiming_sidecar import Subscriber
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall


@pytest.mark.parametrize(
    ("wanted", "takes_s"),
    [(Claim(1, urgent=True, more=2 * SLOTS), 0.4), (Claim(SLOTS, urgent=True), 2.0)],
)
def test_sidecars_that_use_no_offer_do_not_starve_those_that_do(
    wanted: Claim, takes_s: float
) -> None:
    """Four that claim all the time, the whole engine at most, beside two with queues."""
    cluster = Cluster(takes_s=takes_s)
    honest = [cluster.add() for _ in range(2)]
    for sidecar in honest:
        for _ in range(300):  # more than are served
            sidecar.arrive(1, urgent=True)
    rogues = [f"{number:016x}" for number in range(100, 104)]
    for instance in rogues:
        cluster.engine.subscribe(Subscriber(instance, lambda: None))
    cluster.run(2000)
    before = sum(each.answered for each in honest)
    for _ in range(1000):
        for instance in rogues:
            cluster.engine.claim(instance, ClaimCall(wanted))
        cluster.run(10)
    answered = sum(each.answered for each in honest) - before
    assert answered > 0.7 * SLOTS * 10 / takes_s
