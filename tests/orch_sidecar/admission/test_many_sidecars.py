"""Several sidecars in front of one engine: never over, nothing starves, fair shares."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orch_sidecar.api.refusal import Refusal
from tests.fuzz import examples
from tests.orch_sidecar.admission.cluster import SLOTS, Cluster
from tests.orch_sidecar.admission.cluster_sidecar import RULES, Sidecar
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    class_rules,
    core_of,
    fill,
    interactive,
    queue,
    report,
    rules,
)
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import Subscriber

_PICK = st.integers(0, 1000)
# Requests: more than are served in 15 s by eight slots, 0.4 s each.
BACKLOG = 350

# What happens most, and to which of a sidecar's things.
_OF = {
    "deliver": "sent",
    "finish": "running",
    "leave": "running",
    "answer": "answers",
    "read": "stream",
    "drop": "sent",
    "called": "call",
    "call is lost": "call",
    "call is late": "late",
}
_TRAFFIC = (
    *("arrive", "deliver", "deliver", "finish", "answer", "read", "read", "read") * 3,
    *("push", "claim", "called") * 2,
    *("leave", "drop", "call is lost", "call is late"),
)


class ManySidecars(RuleBasedStateMachine):
    """Messages of any sidecar are delivered in any order; streams break, sidecars die."""

    @initialize(sidecars=st.integers(1, 4))
    def start(self, sidecars: int) -> None:
        self.cluster = Cluster()
        for _ in range(sidecars):
            self.cluster.add()

    def _any(self, pick: int, of: str = "") -> tuple[Sidecar, Any] | None:
        """A sidecar that has some `of` it, and one of these."""
        sidecars = [each for each in self.cluster.sidecars if not of or getattr(each, of)]
        if not sidecars:
            return None
        sidecar = sidecars[pick % len(sidecars)]
        found = list(getattr(sidecar, of)) if of and of != "call" else [None]
        return sidecar, found[pick // 7 % len(found)]

    @rule(
        what=st.lists(st.tuples(st.sampled_from(_TRAFFIC), _PICK), min_size=1, max_size=40),
        costs=st.sampled_from(((1,), (1, 1, 2), (1, 5), (SLOTS, 1))),
    )
    def traffic_flows(self, what: list[tuple[str, int]], costs: tuple[int, ...]) -> None:
        for each, pick in what:
            self._one(each, pick, costs[pick // 3 % len(costs)])
            self.engine_never_has_more_than_its_slots()

    def _one(self, what: str, pick: int, cost: int) -> None:
        found = self._any(pick, _OF.get(what, ""))
        if found is None:
            return
        sidecar, each = found
        match what:
            case "arrive":
                sidecar.arrive(cost, urgent=bool(pick % 2))
            case "deliver":
                sidecar.deliver(each)
            case "finish":
                sidecar.finish(each)
            case "leave":
                sidecar.lose(each)
            case "answer":
                sidecar.receive(each)
            case "push":
                sidecar.push()
            case "read":
                sidecar.read()
            case "drop":
                sidecar.drop(each)
            case "claim":
                sidecar.put()
            case "called":
                sidecar.deliver_call()
            case "call is lost":
                sidecar.lose_call()
            case "call is late":
                sidecar.deliver_late(each)

    @rule(pick=_PICK)
    def stream_breaks(self, pick: int) -> None:
        if (found := self._any(pick)) is not None:
            found[0].reconnect()

    @rule(pick=_PICK)
    def sidecar_asks_for_ends(self, pick: int) -> None:
        if (found := self._any(pick)) is not None:
            found[0].revoke()

    @rule(pick=_PICK)
    def sidecar_dies(self, pick: int) -> None:
        if (found := self._any(pick)) is not None:
            self.cluster.kill(found[0])

    @precondition(lambda self: len(self.cluster.sidecars) < 4)
    @rule()
    def sidecar_starts(self) -> None:
        self.cluster.add()

    @rule(seconds=st.sampled_from((0.001, 0.02, 0.2, 2.0)))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds
        self.cluster.engine.tick()
        for sidecar in self.cluster.sidecars:
            sidecar.timer()

    @invariant()
    def engine_never_has_more_than_its_slots(self) -> None:
        if hasattr(self, "cluster"):
            engine = self.cluster.engine
            assert engine.leases.leased() <= SLOTS
            assert engine.leases.leased() + engine.claims.offered <= SLOTS

    def teardown(self) -> None:
        """Whatever happened: once messages flow, each request is answered."""
        if not hasattr(self, "cluster") or sys.exc_info()[0] is not None:
            return  # a step has failed
        queued = sum(len(each.requests) for each in self.cluster.sidecars)
        self.cluster.settle(2000 + 200 * queued)
        self.engine_never_has_more_than_its_slots()
        assert self.cluster.peak <= SLOTS
        assert self.cluster.engine.leases.leased() == 0


TestManySidecars = ManySidecars.TestCase
TestManySidecars.settings = settings(
    max_examples=examples(200), stateful_step_count=60, deadline=None
)


@pytest.mark.parametrize("sidecars", [1, 2, 4])
def test_backlogs_are_served_in_equal_shares_with_hardly_a_rejection(sidecars: int) -> None:
    """Eight slots, requests of 0.4 s: changes of the state are late by 2 ms, offers by none."""
    cluster = Cluster(takes_s=0.4)
    for _ in range(sidecars):
        cluster.add()
    for sidecar in cluster.sidecars:
        for _ in range(BACKLOG):
            sidecar.arrive(1, urgent=True)
    cluster.run(15_000)
    answered = [each.answered for each in cluster.sidecars]
    assert sum(answered) > 0.96 * SLOTS * 15 / 0.4
    # At the beginning each finds all slots free.
    assert max(answered) <= 1.05 * min(answered) + SLOTS, answered
    rejected = sum(each.rejected for each in cluster.sidecars) - SLOTS * (sidecars - 1)
    assert rejected <= (0 if sidecars == 1 else 0.02 * sum(answered)), (rejected, answered)
    assert cluster.peak == SLOTS


@pytest.mark.parametrize("sidecars", [2, pytest.param(4, marks=pytest.mark.long)])
def test_slow_network_costs_several_sidecars_no_more_than_one(sidecars: int) -> None:
    """256 slots, 10 ms for a round trip, requests of 2 s: an offer is for all that are free."""
    served = []
    for count in (1, sidecars):
        cluster = Cluster(takes_s=2.0, varies=0.1, delay_s=0.005, slots=256)
        for _ in range(count):
            cluster.add()
        for sidecar in cluster.sidecars:
            for _ in range(1600 // count):
                sidecar.arrive(1, urgent=True)
        cluster.run(2300)  # the first one had all slots in the beginning
        before = [(each.answered, each.rejected) for each in cluster.sidecars]
        cluster.run(4200)
        now = [(each.answered, each.rejected) for each in cluster.sidecars]
        answered = [each - was for (each, _), (was, _) in zip(now, before, strict=True)]
        assert max(answered) <= 1.1 * min(answered), answered
        assert [each for _, each in now] == [each for _, each in before], "none is rejected"
        assert cluster.peak == 256
        served.append(sum(answered))
    assert served[1] > 0.97 * served[0], served


@pytest.mark.parametrize("round_trip_s", [0.15, 0.24])
def test_sidecar_far_away_gets_its_share_beside_one_that_is_near(round_trip_s: float) -> None:
    """Its requests come later than OFFER_S behind the offers."""
    cluster = Cluster(takes_s=0.4)
    near, far = cluster.add(0.001), cluster.add(round_trip_s / 2)
    for _ in range(500):
        near.arrive(1, urgent=True)
        far.arrive(1, urgent=True)
    cluster.run(5000)  # in which the engine learns how far away it is
    before = near.answered, far.answered, far.rejected
    cluster.run(10_000)
    served = near.answered - before[0], far.answered - before[1]
    assert served[1] >= 0.9 * served[0] > 0, served
    assert far.rejected == before[2]


def test_sidecar_that_cannot_take_offers_in_time_costs_the_others_little() -> None:
    cluster = Cluster(takes_s=0.4)
    near, far = cluster.add(0.001), cluster.add(0.75)
    for _ in range(500):
        near.arrive(1, urgent=True)
        far.arrive(1, urgent=True)
    cluster.run(5000)
    before = near.answered
    cluster.run(10_000)
    assert near.answered - before > 0.9 * SLOTS * 10 / 0.4


@pytest.mark.parametrize("urgent", [True, False])
def test_large_requests_get_their_turn_beside_small_ones(urgent: bool) -> None:
    cluster = Cluster(takes_s=0.4)
    small, large = cluster.add(), cluster.add()
    for _ in range(BACKLOG):
        small.arrive(1, urgent=urgent)
        large.arrive(SLOTS, urgent=urgent)
    cluster.run(12_000)
    assert large.answered >= 4, (small.answered, large.answered)
    assert small.answered >= 4, (small.answered, large.answered)


@pytest.mark.parametrize("sidecars", [1, 2, 4])
def test_steady_traffic_below_saturation_is_hardly_ever_rejected(sidecars: int) -> None:
    """Queues come and go, and with them claims: a claim is withdrawn while the request that took
    its offer is on its way."""
    cluster, chance = Cluster(takes_s=0.4), random.Random(1)
    for _ in range(sidecars):
        cluster.add()
    began = cluster.now
    while cluster.now < began + 20:
        cluster.run(round(1000 * chance.expovariate(0.85 * SLOTS / 0.4)))
        chance.choice(cluster.sidecars).arrive(1, urgent=True)
    answered = sum(each.answered for each in cluster.sidecars)
    rejected = sum(each.rejected for each in cluster.sidecars)
    assert answered > 250
    assert rejected <= (0 if sidecars == 1 else 0.05 * answered), (rejected, answered)


def test_interactive_backlog_goes_before_another_sidecars_bulk_work() -> None:
    """Also where all slots come free at the same time."""
    cluster = Cluster(takes_s=0.4)
    bulk, interactive = cluster.add(), cluster.add()
    for _ in range(BACKLOG):
        bulk.arrive(1, urgent=False)
        interactive.arrive(1, urgent=True)
    cluster.run(15_000)
    share = bulk.answered / (bulk.answered + interactive.answered)
    assert RULES.bulk_share / 2 * 0.5 < share < RULES.bulk_share, "its part of the share"


def test_interactive_requests_go_before_another_sidecars_bulk_work() -> None:
    cluster = Cluster(takes_s=0.4)
    bulk, interactive = cluster.add(), cluster.add()
    for _ in range(SLOTS):  # one after the other
        bulk.arrive(1, urgent=False)
        cluster.run(int(1000 * cluster.takes_s / SLOTS))
    for _ in range(BACKLOG):
        bulk.arrive(1, urgent=False)
    for _ in range(25):
        interactive.arrive(1, urgent=True)
        cluster.run(557)  # within which it is to be answered; those of bulk end 50 ms apart
    assert len(interactive.waits) == 25
    assert max(interactive.waits) < 0.4 / SLOTS * 2 + 0.05, "the next free slot is theirs"


def test_slots_beyond_an_equal_share_go_to_other_sidecars_that_claim_some() -> None:
    """Four end after 1.4 s; two sidecars share them, and the next requests take two of four."""

    measured: dict[str, Any] = {"step_time": STEP_TIME, "prefill_tokens_per_s": 1000.0}

    def starts(**known: Any) -> list[int | None]:
        core = core_of(4, **measured)
        fill(core, interactive(max_tokens=100), *"abcd")
        core.engine_reports(report(4, **measured, **known), 0.0)
        return [
            each.predicted_start_ms for each in queue(core, interactive(max_tokens=100), *"efghi")
        ]

    alone = starts()
    assert starts(sidecars=2) == alone, "nobody else wants any"
    contended = starts(sidecars=2, contended=True)
    assert contended[:2] == alone[:2] == [1400, 1400]
    assert contended[2:4] == [alone[4]] * 2, "they wait for those before them"
    assert contended[4] is not None
    assert alone[4] is not None
    assert contended[4] > alone[4]


def test_retry_after_is_longer_while_others_take_their_part_of_what_comes_free() -> None:
    waits = []
    for contended in (False, True):
        core = core_of(8, rules(class_rules(queue_capacity=1)))
        fill(core, interactive(), *"abcdefgh")
        for second, name in enumerate("abc", 1):
            core.release(name, second, 10)
            fill(core, interactive(), name, at=second)
        core.engine_reports(report(8, sidecars=4, contended=contended), 3.0)
        queue(core, interactive(), "queued", at=3.0)
        refusal = core.arrive("refused", interactive(), 3.0)
        assert isinstance(refusal, Refusal)
        assert refusal.retry_after_ms is not None
        waits.append(refusal.retry_after_ms)
    assert waits[1] == pytest.approx(4 * waits[0], rel=0.3)


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
