"""A sidecar of `cluster`: its admission, what it has sent, and what is on its way to it."""

from __future__ import annotations

import json
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orch_sidecar.admission.claims import ClaimCalls, EngineClaims
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease
from orch_sidecar.engine_state import report
from orch_sidecar.pools.engine_calls import REPEAT_S
from tests.orch_sidecar.admission.examples import bulk, class_rules, interactive, rules
from vllm_plugin.contracts.lease_protocol import ClaimCall, changes_every_s
from vllm_plugin.contracts.slot_claims import Subscriber
from vllm_plugin.state.leases import Rejected

if TYPE_CHECKING:
    from tests.orch_sidecar.admission.cluster import Cluster

RULES = rules(
    class_rules(queue_capacity=10_000, max_wait_s=86_400),
    class_rules(queue_capacity=10_000, max_wait_s=86_400),
    bulk_share=0.1,
)


@dataclass
class Attempt:
    """A request: sent to the engine under this ticket, running there under `key`, answered.
    `due`: when it arrives there, ends, or its answer arrives."""

    ticket: str
    request: AdmissionRequest
    arrived: float
    key: int | None = None
    due: float = 0.0
    granted: float = 0.0  # when it was sent


class Sidecar:
    """One sidecar: its admission, what it has sent, and what is on its way to it."""

    def __init__(self, cluster: Cluster, instance: str, delay_s: float) -> None:
        self.cluster = cluster
        self.delay_s = delay_s  # of each message, one way
        self.instance = instance
        self.controller = AdmissionController(RULES, random.Random(1))
        self.requests: dict[str, Attempt] = {}  # by ticket, until they are answered
        self.sent: list[Attempt] = []
        self.running: list[Attempt] = []
        self.answers: list[tuple[Attempt, bool]] = []  # with whether the engine had run it
        self.stream: deque[tuple[str, Any, float]] = deque()
        self.claims = EngineClaims(self.controller, instance)
        self.claims.on_change = lambda: None
        self.calls = ClaimCalls(self.claims)
        self.call: tuple[ClaimCall, float] | None = None  # under way, and when it arrives
        self.calling_until = 0.0
        self.late: list[ClaimCall] = []  # given up, and still under way
        self.answered = self.rejected = self.called = 0
        self.waits: list[float] = []  # of those that were answered, for their slots
        self._tickets = 0
        self._sent_fields: dict[str, Any] = {}
        self._sent_at = self._called_at = 0.0
        self.connect()

    def due(self) -> float:
        """When something is: it arrives or ends, a timer runs down, or there is more to say."""
        now, subscriber = self.cluster.now, self.subscriber
        if subscriber.ended or subscriber.offers or self.controller.ledger.closing():
            return now
        times = [self._called_at + REPEAT_S, *(each.due for each in (*self.sent, *self.running))]
        times += [answer[0].due for answer in self.answers]
        if self.stream:
            times.append(self.stream[0][2])
        if subscriber.changed:
            times.append(self._changes_at())
        if (timer_at := self.controller.next_event(now)) is not None:
            times.append(timer_at)
        if self.call is not None:
            times.append(self.call[1])
        elif now < self.calling_until:
            times.append(self.calling_until)
        return min(times)

    # The state stream.

    def connect(self) -> None:
        """Opens the stream; the first event is the whole state."""
        engine = self.cluster.engine
        self.stream.clear()
        self.subscriber = Subscriber(self.instance, lambda: None)
        engine.subscribe(self.subscriber)
        document = engine.document(self.instance) | {"leases": engine.leases.of(self.instance)}
        self._sent_fields = engine.look(self.subscriber)
        self._send_event("state", document)

    def disconnect(self) -> None:
        self.cluster.engine.unsubscribe(self.subscriber)
        self.stream.clear()

    def reconnect(self) -> None:
        """The stream broke, with all that was on its way in it."""
        self.disconnect()
        self.connect()

    def push(self) -> None:
        """The engine writes to the stream what has changed, as its endpoint does."""
        engine, subscriber = self.cluster.engine, self.subscriber
        engine.tick()
        if subscriber.ended:
            self._send_event("ended", subscriber.ended)
            subscriber.ended = []
        now = self.cluster.now
        offers, subscriber.offers = subscriber.offers, []
        if subscriber.changed and (offers or now >= self._changes_at()):
            fields = engine.look(subscriber)
            changed = {k: v for k, v in fields.items() if self._sent_fields[k] != v}
            self._sent_fields, self._sent_at = fields, now
            if changed:
                self._send_event("change", changed)
        for offer in offers:
            self._send_event("offer", (offer.slots, offer.number))

    def _changes_at(self) -> float:
        """When the next change may be written."""
        return self._sent_at + changes_every_s(self.cluster.engine.claims.sidecars)

    def _send_event(self, name: str, data: Any) -> None:
        due = self.cluster.now + self.delay_s
        self.stream.append((name, json.loads(json.dumps(data)), due))

    def read(self) -> None:
        """Applies the next event, as `EngineWatcher` does."""
        name, data, _ = self.stream.popleft()
        controller, now = self.controller, self.cluster.now
        if name == "ended":
            for lease in data:
                self._perform(controller.release(lease, now))
        elif name == "offer":
            slots, number = data
            self._perform(self.claims.offered(slots, number, now))
        else:
            self.document = data if name == "state" else self.document | data
            self._perform(controller.engine_reports(report.report_of(self.document), now))
            if name == "state":
                for lease in data["leases"]:
                    controller.ledger.adopt(lease, int(lease.rpartition(".")[2]))
            self.calls.reported(*report.claim_of(self.document))

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
            self._send(ticket)

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            assert isinstance(decision.outcome, Lease), decision
            self._send(decision.ticket)

    def _send(self, ticket: str) -> None:
        attempt = self.requests[ticket]
        attempt.granted = self.cluster.now
        attempt.due = self.cluster.now + self.delay_s
        self.sent.append(attempt)

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
            attempt.due = self.cluster.now + self.delay_s
            self.answers.append((attempt, False))
        else:
            attempt.key = entered
            attempt.due = self.cluster.now + self.cluster.takes()
            self.running.append(attempt)

    def finish(self, attempt: Attempt) -> None:
        """The engine completes a response; its end is booked before it is sent."""
        assert attempt.key is not None
        self.running.remove(attempt)
        self.cluster.engine.leave(attempt.key)
        attempt.due = self.cluster.now + self.delay_s
        self.answers.append((attempt, True))

    def lose(self, attempt: Attempt) -> None:
        """The client left: the connection is closed, and the engine aborts the request."""
        assert attempt.key is not None
        self.running.remove(attempt)
        self.controller.ledger.abandon(attempt.ticket)
        self.cluster.engine.leave(attempt.key)
        del self.requests[attempt.ticket]

    def drop(self, attempt: Attempt) -> None:
        """The client left before its request was sent."""
        self.sent.remove(attempt)
        del self.requests[attempt.ticket]
        controller, now = self.controller, self.cluster.now
        self._perform(controller.release(attempt.ticket, now, served=False, sent=False))

    def receive(self, answer: tuple[Attempt, bool]) -> None:
        """A response, or a rejection, reaches the sidecar."""
        self.answers.remove(answer)
        attempt, served = answer
        controller, now = self.controller, self.cluster.now
        del self.requests[attempt.ticket]
        if served:
            self.answered += 1
            self.waits.append(attempt.granted - attempt.arrived)
            self._perform(controller.release(attempt.ticket, now, 10))
            return
        controller.constraints.offers.rejected()
        self._perform(controller.release(attempt.ticket, now, served=False))
        ticket = self._new_ticket(attempt.request, attempt.arrived)
        controller.requeue(ticket, attempt.request, attempt.arrived, now)
        self._perform(controller.dispatch(now))

    # Claims.

    def put(self) -> None:
        """Calls the engine about the claim, as `ClaimSender` does."""
        now = self.cluster.now
        if self.call is not None or now < self.calling_until:
            return
        call = self.calls.next(again=now - self._called_at >= REPEAT_S)
        if call is not None:
            self.called += 1
            self._called_at = now
            self.call = call, now + self.delay_s

    def deliver_call(self) -> None:
        """A call reaches the engine; the next one waits for the answer."""
        assert self.call is not None
        if not self.cluster.engine.claim(self.instance, self.call[0]):
            self.calls.failed()
        self.call, self.calling_until = None, self.cluster.now + self.delay_s

    def lose_call(self) -> None:
        """No answer to a call comes in time; it may still arrive."""
        assert self.call is not None
        self.late.append(self.call[0])
        self.call = None
        self.calls.failed()

    def deliver_late(self, call: ClaimCall) -> None:
        """A call that was given up reaches the engine after all."""
        self.late.remove(call)
        self.cluster.engine.claim(self.instance, call)

    def revoke(self) -> None:
        """Asks for leases whose ends may be lost."""
        for lease in self.controller.ledger.closing():
            if self.cluster.engine.leases.revoke(lease):
                self._perform(self.controller.release(lease, self.cluster.now))
