"""Runs one part of a request: routed, admitted and forwarded like any request."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.record import OK, Outcome
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy.engine_response import EngineResponse, Sink
from orch_sidecar.proxy.request import Attempt, NotSent, Request, Result
from orch_sidecar.proxy.route import Route
from orch_sidecar.splitting.division import Part
from orch_sidecar.wire.client_connections import SilenceLimit, StallWatchdog
from orch_sidecar.wire.http1 import Head


class WholeRequest(Protocol):
    """The request that a part is of."""

    stream: bool

    @property
    def has_begun(self) -> bool:
        """Whether an engine was sent a part."""

    def take(self, part: RunningPart, event: bytes) -> None:
        """Passes an event of a part's stream on."""

    def part_failed(self, part: RunningPart, refusal: Refusal | None) -> None:
        """A part has failed; `refusal`: None if the engine answered it with an error."""

    def stop(self) -> None:
        """Ends all parts."""


class RunningPart(Sink):
    """A part of a request, and the sink of its answer."""

    dechunk = True
    keep_alive = True  # the client's connection is the whole request's

    def __init__(
        self,
        whole: WholeRequest,
        request: Request,
        call: GenerationRequest,
        part: Part,
        watchdog: StallWatchdog,
        *,
        is_later: bool,
    ) -> None:
        options = replace(call.options, queue_events=False)
        record = request.record.of_generation()
        record.cost = part.cost
        self.part = part
        mine = Request(request.http, request.endpoint, record, request.trace, Attempt(), sink=self)
        mine.strip_keys, mine.body, mine.salt = request.strip_keys, part.body, request.salt
        mine.options = options
        mine.call = replace(
            call, cost=part.cost, prompt_tokens=part.prompt_tokens, joint=0,
            options=options, body_bytes=len(part.body),
        )  # fmt: skip
        self.request = mine
        if is_later:
            self._become_later_part()
        self._whole = whole
        self._watchdog = watchdog
        self.silence_limit_s: SilenceLimit | None = None
        self._source: EngineResponse | None = None
        self._held: list[bytes] = []
        self._reads = 0
        self.pool: Pool | None = None
        self.head: Head | None = None
        self.outcome = Outcome.ENGINE_ERROR
        self.started = self.paused = self._events = self._over = False

    async def run(self, route: Route, metrics: Metrics) -> None:
        """Runs the part to its end."""
        whole, record = self._whole, self.request.record
        # Not before: a task that is cancelled before its first step does nothing, and ends none.
        trace = self.request.trace
        self.request.trace = trace = None if trace is None else trace.shared(record)
        outcome: Outcome | Reason = Outcome.CANCELLED
        try:
            result = await route.handle(self.request)
            if self._is_late(result):
                self._become_later_part()
                self.request.begin_attempt()
                result = await route.handle(self.request)
            if isinstance(result, NotSent):
                outcome = result.refusal.reason
                whole.part_failed(self, result.refusal)
                return
            outcome = result.outcome
            if isinstance(outcome, Reason):
                failure = self.request.attempt.failure
                assert failure is not None
                whole.part_failed(self, failure)
            elif outcome is not OK:
                whole.part_failed(self, None)
        except Exception:
            outcome = Reason.INTERNAL_ERROR
            whole.stop()
            raise
        finally:
            self._over = True
            record.end(outcome)
            if trace is not None:
                trace.ended()
            metrics.generation_ended(record)

    def _is_late(self, result: Result) -> bool:
        """Whether it is the first part, and is refused for now although another one has begun: at
        another pool, or it lost its slots."""
        if not isinstance(result, NotSent) or result.reached_engine or not self._whole.has_begun:
            return False
        call = self.request.call
        assert call is not None
        return not call.is_later_part and result.refusal.status == 429

    def _become_later_part(self) -> None:
        """Makes it a later part: it takes no place in a queue, and its wait has no limit."""
        request = self.request
        assert request.call is not None
        options = replace(request.options, deadline_ms=None, max_wait_ms=None)
        request.options = options
        request.call = replace(request.call, options=options, is_later_part=True)

    @property
    def body(self) -> bytes:
        """What has been held back of the answer."""
        return b"".join(self._held)

    @property
    def is_waiting(self) -> bool:
        """Whether it has yet to be sent to an engine."""
        return self._source is None and not self._over

    @property
    def reads(self) -> int:
        return self._reads if self._source is None else self._source.reads

    # Sink of an engine's response

    def attach(self, source: EngineResponse, pool: Pool) -> None:
        self._source, self.pool = source, pool
        self.silence_limit_s = pool.silence_limit_s
        self._watchdog.add(self)
        if self.paused:
            source.pause()

    def detach(self) -> None:
        self.silence_limit_s = None
        self._watchdog.discard(self)
        if self._source is not None:
            self._reads = self._source.reads
            self._source = None

    def begin(self, head: Head) -> None:
        self.head = head
        self._held.clear()
        self._events = self._whole.stream and head.status == 200

    def write(self, data: bytes) -> None:
        if not self._events:
            self._held.append(data)
            return
        self.started = True
        self._held.append(data)
        if b"\n" not in data:
            return  # no event ends here
        *events, rest = self.body.replace(b"\r\n", b"\n").split(b"\n\n")
        self._held = [rest] if rest else []
        for event in events:
            self._whole.take(self, event + b"\n\n")

    def finish(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def cut_short(self, refusal: Refusal, *, at_event_boundary: bool) -> None:
        """`run` passes it on, as the outcome of the part."""

    # Active response, to the watchdog: its engine may be silent

    @property
    def progress(self) -> tuple[int, int]:
        return (self.reads, 0)

    def pause(self) -> None:
        self.paused = True
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        self.paused = False
        if self._source is not None:
            self._source.resume()

    def fail(self, refusal: Refusal) -> None:
        if self._source is not None:
            self._source.fail(refusal)

    def abort_client(self) -> None:
        """The whole request's writer does."""
