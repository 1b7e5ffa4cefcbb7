"""Runs requests for several sequences in parts if they do not fit at once: as many parts as get
slots, in order, and cancelled as one.

All parts ask for slots when the request arrives, the first one before the others. If it is refused
the request is; the others wait for their turns. An answer that is no stream is sent when it is
complete, so until then any failure has an answer of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec

from orch_sidecar.api.body import InvalidBody
from orch_sidecar.api.endpoints import Division
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.record import OK, Outcome
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.client_writer import ClientWriter
from orch_sidecar.proxy.request import NotSent, Request, Result, Sent
from orch_sidecar.proxy.route import Route
from orch_sidecar.splitting.division import (
    DONE,
    MAX_PARTS,
    MergedEvents,
    Part,
    Unmergeable,
    divide,
    merge,
)
from orch_sidecar.splitting.running_part import RunningPart
from orch_sidecar.wire.client_connections import StallWatchdog
from orch_sidecar.wire.request_body import BodyReader

# Of one API key, or of all clients without one: parts take no places in the queues, so that these
# do not bound them.
MAX_PARTS_OF_CLIENT: Final = 4 * MAX_PARTS
# A part of a request takes one of so many parts of the slots, at most: others get theirs between
# the parts, and those of a part come back when the longest of its sequences ends.
PARTS_OF_SLOTS: Final = 8
_PARTS_PER_TURN: Final = 32  # so many parts are begun before others have their turn
_TOP_N: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TOO_MANY: Final = Refusal(
    Reason.QUEUE_FULL,
    f"{MAX_PARTS_OF_CLIENT} parts of requests of this API key run or wait here, and that is the "
    "most: retry later",
    retry_after_ms=1000,
)


class Split:
    """Divides requests, and passes the others on."""

    def __init__(
        self,
        route: Route,
        pools: PoolRegistry,
        bodies: BodyReader,
        watchdog: StallWatchdog,
        metrics: Metrics,
    ) -> None:
        """`bodies`: what parts repeat of a request's body is reserved of their budget."""
        self._route = route
        self._pools = pools
        self._bodies = bodies
        self._watchdog = watchdog
        self._metrics = metrics
        self._parts: Counter[str | None] = Counter()  # that run or wait, by the name of the key

    def handle(self, request: Request) -> Coroutine[Any, Any, Result]:
        """Serves a request for several sequences."""
        call, division = request.call, request.endpoint.division
        assert call is not None
        if division is None or request.parent_lease is not None or call.options.do_not_queue:
            return self._route.handle(request)
        found = self._division(call)
        if found is None or found[0] >= call.cost:
            return self._route.handle(request)
        size, options = found
        try:
            parts = divide(request.body, division, call, size)
        except InvalidBody as invalid:
            return _refused(NotSent(invalid.refusal))
        if parts is None:
            return self._route.handle(request)
        call = replace(call, options=options)
        return self._run(request, parts, DividedRequest(request, call, division, self._watchdog))

    def _division(self, call: GenerationRequest) -> tuple[int, RequestOptions] | None:
        """Returns the sequences of a part, and the options of all, of a request that is to run in
        parts: they go to pools of one measurement type, that of the pool that would be best for
        them. None: it is not, because it can start as a whole, or because no profile says so."""
        options, pools = call.options, self._pools.capable(call)
        dividing = [pool for pool in pools if pool.admission.rules.split]
        cost = call.cost
        if not dividing or any(pool.fits(call.service_class, cost) for pool in pools):
            return None

        def goodness(pool: Pool) -> tuple[bool, bool, int]:
            named = options.pool in (pool.name, pool.group)
            return pool.unavailable is None, named, pool.ledger.slots_total

        best = max(dividing, key=goodness)
        measurement_type = best.profile.measurement_type
        if any(pool.profile.measurement_type is not measurement_type for pool in pools):
            options = replace(options, measurement_type=measurement_type, labelled=True)
        return max(1, best.ledger.slots_total // PARTS_OF_SLOTS), options

    async def _run(
        self, request: Request, parts: Iterator[Part], divided: DividedRequest
    ) -> Result:
        owner = None if request.key is None else request.key.name
        number = 0
        try:
            for number, part in enumerate(parts, 1):
                self._parts[owner] += 1
                refusal = self._bodies.reserve(request, len(part.body)) or request.cancelled
                if self._parts[owner] > MAX_PARTS_OF_CLIENT:
                    refusal = _TOO_MANY
                if refusal is not None:
                    return NotSent(refusal)
                divided.add(part)
                if not number % _PARTS_PER_TURN:
                    await asyncio.sleep(0)
            return await divided.run(self._route, self._metrics)
        finally:
            self._parts[owner] -= number
            if not self._parts[owner]:
                del self._parts[owner]


class DividedRequest:
    """A request and its parts: to its client's writer it is the source of the response."""

    def __init__(
        self,
        request: Request,
        call: GenerationRequest,
        division: Division,
        watchdog: StallWatchdog,
    ) -> None:
        """It has no parts yet. `call`: of the whole, with the options that all parts have."""
        self._request = request
        self._call = call
        self._division = division
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self._running: list[RunningPart] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._events = MergedEvents()
        self._writer: ClientWriter | None = None
        self._looks = 0
        self.failure: Refusal | None = None
        self.answered: RunningPart | None = None  # an engine answered this one with an error
        self.stream = request.record.stream

    def add(self, part: Part) -> None:
        """Adds a part, the next one in their order."""
        is_later, watchdog = bool(self._running), self._watchdog
        running = RunningPart(self, self._request, self._call, part, watchdog, is_later=is_later)
        self._running.append(running)

    async def run(self, route: Route, metrics: Metrics) -> Result:
        """Runs all parts, and answers the client."""
        request, record = self._request, self._request.record
        attempt, first = request.attempt, self._running[0].request
        attempt.waiting, attempt.generation = self, first  # where a cancellation finds it
        record.shared = True  # its parts are counted as generations
        record.parts = len(self._running)
        try:
            for number, part in enumerate(self._running, 1):
                self._tasks.append(self._loop.create_task(part.run(route, metrics)))
                if not number % _PARTS_PER_TURN:
                    await asyncio.sleep(0)
                    if self.failure is not None or self.answered is not None:
                        break
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for task in self._tasks:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            return self._answer()
        finally:
            self.stop()
            attempt.waiting = None
            self._record_totals()
            if self._writer is not None:
                self._writer.detach()

    # What the parts tell

    @property
    def has_begun(self) -> bool:
        """Whether an engine was sent a part."""
        return any(each.pool is not None for each in self._running)

    def take(self, part: RunningPart, event: bytes) -> None:
        """Passes an event of a part's stream on."""
        if self._writer is None and self._request.http.transport is None:
            self.stop()  # the client is gone
            return
        try:
            out = self._events.of(part.part, event)
        except Unmergeable as error:
            self.fail(_unmergeable(error))
            return
        if out and self.failure is None:
            (self._writer or self._begin(part)).write(out)

    def part_failed(self, part: RunningPart, refusal: Refusal | None) -> None:
        """A part has failed, and so the request. `refusal`: None if the engine answered it."""
        if self.failure is None and self.answered is None:
            if refusal is None:
                self.answered = part
            else:
                self.failure = refusal
            self.stop()

    # Source of the client's response

    @property
    def reads(self) -> int:
        """How often engines have sent something. While a part waits for slots, that is progress."""
        if any(each.is_waiting for each in self._running):
            self._looks += 1
        return sum(each.reads for each in self._running) + self._looks

    def pause(self) -> None:
        for each in self._running:
            each.pause()

    def resume(self) -> None:
        for each in self._running:
            each.resume()

    def stop(self) -> None:
        """Ends all parts except the one that calls it."""
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def fail(self, refusal: Refusal) -> None:
        """Ends the request and all of its parts."""
        if self.failure is None:
            self.failure = refusal
            self.stop()

    def refuse(self, refusal: Refusal) -> bool:
        """Ends the request while its parts wait."""
        self.fail(refusal)
        return True

    def place(self, now: float) -> None:
        """Its parts have places."""

    # Parts

    def _answer(self) -> Result:
        """Answers the client, once all parts have ended."""
        writer, request = self._writer, self._request
        if request.http.transport is None:
            raise asyncio.CancelledError  # the client is gone: aiohttp is about to cancel this task
        failure, answered = self.failure or request.cancelled, self.answered
        if writer is not None and writer.started:
            return self._end_stream(writer)
        if failure is not None:
            return NotSent(failure)
        if answered is not None:
            assert answered.head is not None
            return self._send(answered, answered.body, answered.outcome)
        if self.stream:
            return self._end_stream(self._begin(self._running[0]))
        answers = [(each.part, each.body) for each in self._running]
        try:
            body = merge(self._division, answers, _top_n(request.body))
        except Unmergeable as error:
            return NotSent(_unmergeable(error))
        return self._send(self._running[0], body, OK)

    def _send(self, part: RunningPart, body: bytes, outcome: Outcome) -> Result:
        """Sends an answer that is no stream."""
        writer = self._begin(part, len(body))
        writer.finish(outcome, body)
        return Sent(writer.keep_alive, outcome)

    def _end_stream(self, writer: ClientWriter) -> Result:
        """Ends the stream: properly, or by an error."""
        failure, answered = self.failure or self._request.cancelled, self.answered
        if failure is not None:
            writer.cut_short(failure, at_event_boundary=True)
            return Sent(writer.keep_alive, failure.reason)
        if answered is None:
            outcome, last = OK, self._events.last()
        else:
            outcome = answered.outcome
            event = self._request.endpoint.error_format.relayed(answered.body)
            last = event or DONE  # without one the stream has the error already
        writer.finish(outcome, last)
        return Sent(writer.keep_alive, outcome)

    def _begin(self, part: RunningPart, length: int | None = None) -> ClientWriter:
        """Begins the response with the head of a part's answer; `length`: None for a stream."""
        request, pool, head = self._request, part.pool, part.head
        assert pool is not None
        assert head is not None
        self._record_totals()
        writer = self._writer = ClientWriter(request.http, request.record)
        writer.attach(self, pool)
        writer.begin_unframed(head, length)
        return writer

    def _record_totals(self) -> None:
        """Records what is known of the request from its parts."""
        record, first = self._request.record, self._running[0].request.record
        record.admitted = record.admitted or first.admitted
        record.copy_generation(first)
        records = [each.request.record for each in self._running]
        reading = [each.request.record for each in self._running if not each.part.repeats_prompt]
        record.input_tokens = _total([each.input_tokens for each in reading])
        record.cached_tokens = _total([each.cached_tokens for each in reading])
        record.output_tokens = _total([each.output_tokens for each in records])
        record.reasoning_tokens = _total([each.reasoning_tokens for each in records])
        generated = [each.generated_tokens or 0 for each in records]
        record.generated_tokens = sum(generated) or record.output_tokens


def _top_n(body: bytes) -> int:
    try:
        return int(bytes(_TOP_N.decode(body).get("top_n", b"0")))
    except (msgspec.MsgspecError, ValueError):
        return 0


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _unmergeable(error: Unmergeable) -> Refusal:
    text = f"the answers of the engine to parts of the request do not fit together: {error}"
    return Refusal(Reason.ENGINE_FAILED, text)


async def _refused(result: NotSent) -> Result:
    return result
