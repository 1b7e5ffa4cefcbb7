"""Several sidecars in front of one engine, in virtual time; their messages may be late or lost.

The engine's books are the plugin's own `EngineState`, each sidecar's admission is a real
controller. What runs between them is written here: requests and their responses, which overtake
each other; the state stream, in order; claims, one at a time.
"""

from __future__ import annotations

import json
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease
from orch_sidecar.engine_state import report
from orch_sidecar.pools.claim_sender import REPEAT_S
from tests.orch_sidecar.admission.examples import bulk, class_rules, interactive, rules
from tests.vllm_plugin.examples import FACTS
from vllm_plugin.engine_state import EngineState
from vllm_plugin.lease_protocol import Claim, changes_every_s
from vllm_plugin.leases import Rejected
from vllm_plugin.subscriber import Subscriber

RULES = rules(
    class_rules(queue_capacity=10_000, max_wait_s=86_400),
    class_rules(queue_capacity=10_000, max_wait_s=86_400),
    bulk_share=0.1,
)
SLOTS = FACTS.slots_total


@dataclass
class Attempt:
    """A request on its way: sent to the engine under this ticket, running there under `key`."""

    ticket: str
    request: AdmissionRequest
    arrived: float
    key: int | None = None
    ends: float = 0.0


class Sidecar:
    """One sidecar: its admission, what it has sent, and what is on its way to it."""

    def __init__(self, cluster: Cluster, instance: str) -> None:
        self.cluster = cluster
        self.instance = instance
        self.controller = AdmissionController(RULES, random.Random(1))
        self.requests: dict[str, Attempt] = {}  # by ticket, until they are answered
        self.sent: list[Attempt] = []
        self.running: list[Attempt] = []
        self.answers: list[tuple[Attempt, bool]] = []  # with whether the engine had run it
        self.stream: deque[tuple[str, Any]] = deque()
        self.recorded: Claim | None = None
        self.answered = 0
        self.rejected = 0
        self._tickets = 0
        self._sent_fields: dict[str, Any] = {}
        self._sent_at = self._put_at = 0.0
        self.connect()

    # The state stream.

    def connect(self) -> None:
        """Opens the stream; the first event is the whole state."""
        engine = self.cluster.engine
        self.stream.clear()
        self.subscriber = Subscriber(self.instance, lambda: None)
        engine.subscribe(self.subscriber)
        document = engine.document(self.instance) | {"leases": engine.leases.of(self.instance)}
        self._sent_fields = engine.change_fields(self.instance)
        self.stream.append(("state", json.loads(json.dumps(document))))

    def disconnect(self) -> None:
        self.cluster.engine.unsubscribe(self.subscriber)
        self.stream.clear()

    def reconnect(self) -> None:
        """The stream broke, with all that was on its way in it."""
        self.disconnect()
        self.connect()

    def push(self) -> None:
        """The engine writes to the stream what has changed."""
        engine, subscriber = self.cluster.engine, self.subscriber
        engine.tick()
        if subscriber.ended:
            self.stream.append(("ended", subscriber.ended))
            subscriber.ended = []
        fields, now = engine.change_fields(self.instance), self.cluster.now
        changed = {k: v for k, v in fields.items() if self._sent_fields[k] != v}
        offers, subscriber.offers = subscriber.offers, []
        if changed and (offers or now - self._sent_at >= changes_every_s(engine.claims.sidecars)):
            self._sent_fields, self._sent_at = fields, now
            self.stream.append(("change", json.loads(json.dumps(changed))))
        self.stream.extend(("offer", (offer.cost, offer.number)) for offer in offers)

    def read(self) -> None:
        """Applies the next event, as `EngineWatcher` does."""
        name, data = self.stream.popleft()
        controller, now = self.controller, self.cluster.now
        if name == "ended":
            for lease in data:
                self._perform(controller.release(lease, now))
        elif name == "offer":
            if self.claim is not None:  # as in `Gate.offered`
                cost, number = data
                controller.constraints.offers.offer(cost, number, now)
                self._perform(controller.dispatch(now))
        else:
            self.document = data if name == "state" else self.document | data
            self._perform(controller.engine_reports(report.report_of(self.document), now))
            if name == "state":
                for lease in data["leases"]:
                    controller.ledger.adopt(lease, int(lease.rpartition(".")[2]))
            if "claim" in data:
                self.recorded = report.claim_of(data)

    document: dict[str, Any]

    # Requests.

    def arrive(self, cost: int, *, urgent: bool) -> None:
        request = interactive(cost) if urgent else bulk(cost)
        self._ask(request, self.cluster.now)

    def _new_ticket(self, request: AdmissionRequest, arrived: float) -> str:
        self._tickets += 1
        ticket = f"{self.instance}.{self._tickets:032x}.{request.cost}"
        self.requests[ticket] = Attempt(ticket, request, arrived)
        return ticket

    def _ask(self, request: AdmissionRequest, arrived: float) -> None:
        ticket = self._new_ticket(request, arrived)
        outcome = self.controller.arrive(ticket, request, self.cluster.now)
        self._perform(self.controller.take_displaced())
        if isinstance(outcome, Lease):
            self.sent.append(self.requests[ticket])

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            assert isinstance(decision.outcome, Lease), decision
            self.sent.append(self.requests[decision.ticket])

    def timer(self) -> None:
        self._perform(self.controller.dispatch(self.cluster.now))

    def deliver(self, attempt: Attempt) -> None:
        """A request reaches the engine."""
        self.sent.remove(attempt)
        engine = self.cluster.engine
        urgent = attempt.request.service_class.value != "bulk"
        entered = engine.enter(attempt.ticket, urgent=urgent)
        if isinstance(entered, Rejected):
            assert entered in (Rejected.NO_SLOT, Rejected.BUSY), entered
            self.rejected += 1
            self.answers.append((attempt, False))
        else:
            attempt.key = entered
            attempt.ends = self.cluster.now + self.cluster.takes_s
            self.running.append(attempt)

    def finish(self, attempt: Attempt) -> None:
        """The engine completes a response; its end is booked before it is sent."""
        assert attempt.key is not None
        self.running.remove(attempt)
        self.cluster.engine.leave(attempt.key)
        self.answers.append((attempt, True))

    def lose(self, attempt: Attempt) -> None:
        """The client left: the connection is closed, and the engine aborts the request."""
        assert attempt.key is not None
        self.running.remove(attempt)
        self.controller.ledger.abandon(attempt.ticket)
        self.cluster.engine.leave(attempt.key)
        del self.requests[attempt.ticket]

    def receive(self, answer: tuple[Attempt, bool]) -> None:
        """A response, or a rejection, reaches the sidecar."""
        self.answers.remove(answer)
        attempt, served = answer
        controller, now = self.controller, self.cluster.now
        del self.requests[attempt.ticket]
        if served:
            self.answered += 1
            self._perform(controller.release(attempt.ticket, now, 10))
            return
        controller.constraints.offers.reject()
        self._perform(controller.release(attempt.ticket, now, served=False))
        ticket = self._new_ticket(attempt.request, attempt.arrived)
        controller.requeue(ticket, attempt.request, attempt.arrived, now)
        self._perform(controller.dispatch(now))

    # Claims.

    @property
    def claim(self) -> Claim | None:
        """As `Gate.claim`."""
        controller = self.controller
        if not controller.constraints.offers.shared or not controller.queue_depth:
            return None
        return controller.order.claim

    def put(self) -> None:
        """Sends the claim, as `ClaimSender` does."""
        claim, offers = self.claim, self.controller.constraints.offers
        if claim is None:
            offers.settle()
        again = claim is not None and self.cluster.now - self._put_at >= REPEAT_S
        if claim == self.recorded and not again:
            return
        self._put_at = self.cluster.now
        if self.cluster.engine.claim(self.instance, claim, offers.taken):
            self.recorded = claim

    def revoke(self) -> None:
        """Asks for leases whose ends may be lost."""
        for lease in self.controller.ledger.closing():
            if self.cluster.engine.leases.revoke(lease):
                self._perform(self.controller.release(lease, self.cluster.now))


@dataclass
class Cluster:
    """One engine and its sidecars."""

    now: float = 1000.0
    takes_s: float = 0.008  # a request
    peak: int = 0
    sidecars: list[Sidecar] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = EngineState(FACTS, lambda: self.now)
        self._instances = 0

    def add(self) -> Sidecar:
        self._instances += 1
        sidecar = Sidecar(self, f"{self._instances:016x}")
        sidecar.read()
        self.sidecars.append(sidecar)
        return sidecar

    def kill(self, sidecar: Sidecar) -> None:
        """A sidecar dies: its connections are closed, and the engine aborts its requests."""
        self.sidecars.remove(sidecar)
        sidecar.disconnect()
        for attempt in sidecar.running:
            assert attempt.key is not None
            self.engine.leave(attempt.key)

    def run(self, milliseconds: int) -> None:
        """Delivers everything within a millisecond."""
        for _ in range(milliseconds):
            self.now += 0.001
            self.engine.tick()
            for sidecar in self.sidecars:
                for attempt in list(sidecar.sent):
                    sidecar.deliver(attempt)
                for attempt in [each for each in sidecar.running if each.ends <= self.now]:
                    sidecar.finish(attempt)
                self.peak = max(self.peak, self.engine.leases.leased())
                for answer in list(sidecar.answers):
                    sidecar.receive(answer)
                sidecar.push()
                while sidecar.stream:
                    sidecar.read()
                sidecar.timer()
                sidecar.put()
                sidecar.revoke()

    def settle(self, most_ms: int) -> None:
        """Runs until all requests are answered."""
        for _ in range(most_ms):
            if not any(each.requests for each in self.sidecars):
                return
            self.run(1)
        waiting = {
            each.instance: (len(each.requests), each.claim, each.recorded) for each in self.sidecars
        }
        raise AssertionError(f"not answered in {most_ms} ms: {waiting}")
