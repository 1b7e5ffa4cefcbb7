"""A response that begins while its request is queued, and what its client is shown until then."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orch_sidecar.admission.prediction.forecast import Place
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.options import NO_OPTIONS
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.record import Outcome
from orch_sidecar.pools.pool import Pool
from orch_sidecar.proxy import queue_events
from orch_sidecar.proxy.queue_events import Watchers
from orch_sidecar.proxy.queue_response import REPEAT_S, QueueResponse
from orch_sidecar.proxy.request import Request
from orch_sidecar.wire.http1 import Head, body_of, parse_head
from tests.orch_sidecar import apis
from tests.orch_sidecar.broadcasting import Transport, http_of
from tests.orch_sidecar.proxy.stages import request_of
from tests.orch_sidecar.records import record_of
from vllm_plugin.contracts.profile import MeasurementType

EVENTS = Head(200, b"OK", ((b"content-type", b"text/event-stream"),), True, True, None)
JSON = Head(400, b"Bad", ((b"content-type", b"application/json"),), True, False, 20)
REFUSED = Refusal(Reason.QUEUE_TIMEOUT, "too long")
POOL = cast(
    Pool,
    SimpleNamespace(
        response_fields=b"x-measurement-type: batched_online\r\n",
        response_fields_at_once=b"x-orch-queue-position: 0\r\n",
        admission=SimpleNamespace(draining=None),
        silence_limit_s=lambda: 600.0,
        profile=SimpleNamespace(measurement_type=MeasurementType.BATCHED_ONLINE),
        connections=SimpleNamespace(loop=SimpleNamespace(time=lambda: 100.0)),
    ),
)


class Client(Transport):
    """A client; `unread`: bytes that it has yet to read."""

    unread = 0

    def get_write_buffer_size(self) -> int:
        return self.unread


class Watching:
    """A response and its client."""

    def __init__(self, api: Endpoint = apis.CHAT, *, http10: bool = False) -> None:
        self.client = Client()
        self.record = record_of(endpoint=api, stream=True)
        self.record.queued = self.record.arrived
        self.record.queue_position = 3
        self.failed: list[Refusal] = []  # with which its source was failed
        self.response = QueueResponse(http_of(self.client, http10=http10), self.record)

    def queued(self, position: int, start_ms: int | None = None, now: float = 0.0) -> Watching:
        self.response.show_place(POOL, position, start_ms, now)
        return self

    def runs(self) -> Watching:
        """The engine has the request."""
        self.record.admitted = self.record.arrived + 7_900_000
        self.response.attach(cast(Any, SimpleNamespace(reads=0, fail=self.failed.append)), POOL)
        return self

    @property
    def head(self) -> Head:
        parsed = parse_head(self.client.data)
        assert parsed is not None
        return parsed[0]

    @property
    def body(self) -> bytes:
        parsed = parse_head(self.client.data)
        assert parsed is not None
        head, start = parsed
        return body_of(head, dechunk=True).feed(self.client.data[start:])


def test_first_line_goes_out_with_the_head() -> None:
    seen = Watching().queued(3, 1200)
    assert (seen.head.status, seen.head.chunked, seen.head.keep_alive) == (200, True, True)
    fields = dict(seen.head.fields)
    assert fields[b"x-orch-queue-position"] == b"3"
    assert fields[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert (fields[b"cache-control"], fields[b"x-accel-buffering"]) == (b"no-cache", b"no")
    assert seen.body == b": queued position=3 start_ms=1200\n\n"
    assert (seen.response.has_begun, seen.response.started) == (True, False)
    assert seen.record.first_byte is None


def test_line_is_written_when_the_position_falls_and_at_times() -> None:
    seen = Watching().queued(3, 900)
    seen.queued(3, 800, 0.5).queued(2, None, 0.6).queued(2, 100, 0.7).queued(2, 90, 0.6 + REPEAT_S)
    assert seen.body.split(b"\n\n") == [
        b": queued position=3 start_ms=900",
        b": queued position=2",
        b": queued position=2 start_ms=90",
        b"",
    ]


def test_position_that_is_shown_never_rises() -> None:
    seen = Watching().queued(2, 500)
    seen.queued(7, 4000, REPEAT_S)
    assert seen.body.endswith(b": queued position=2 start_ms=4000\n\n")


def test_client_that_does_not_read_gets_no_more_lines() -> None:
    seen = Watching().queued(3)
    seen.client.unread, before = 1, seen.client.data
    seen.queued(2, None, 1.0)
    assert seen.client.data == before
    seen.client.unread = 0
    assert seen.queued(2, None, 1.1).body.endswith(b": queued position=2\n\n")


def test_start_is_shown_once_and_the_engines_events_follow_in_chunks() -> None:
    seen = Watching().queued(0).runs()
    seen.response.show_slots(100.1)
    seen.response.begin(EVENTS)
    seen.response.write(b"data: 1\n\n")
    assert seen.record.first_byte is not None
    seen.response.show_slots(200.0)
    seen.response.show_place(POOL, 0, None, 300.0)
    seen.response.write(b"data: [DONE]\n\n")
    seen.response.finish(Outcome.OK)
    assert seen.body == (
        b": queued position=0\n\n: started waited_ms=7\n\ndata: 1\n\ndata: [DONE]\n\n"
    )
    assert seen.client.data.endswith(b"\r\n0\r\n\r\n")


def test_start_is_repeated_until_the_stream_begins() -> None:
    seen = Watching().queued(0).runs()
    for now in (100.1, 100.0 + REPEAT_S, 100.1 + REPEAT_S):
        seen.response.show_slots(now)
    assert seen.body.count(b": started waited_ms=7\n\n") == 2


def test_request_sent_back_is_shown_its_place_again() -> None:
    seen = Watching().queued(1).runs()
    seen.response.begin(Head(503, b"", (), True, False, 5))
    seen.queued(0, None, 100.2)
    seen.runs()
    seen.response.begin(EVENTS)
    seen.response.write(b"data: 1\n\n")
    assert seen.body.split(b"\n\n")[:-2] == [
        b": queued position=1",
        b": started waited_ms=7",
        b": queued position=0",
        b": started waited_ms=7",
    ]


@pytest.mark.parametrize("http10", [False, True])
def test_refusal_ends_the_response_with_an_event(http10: bool) -> None:
    seen = Watching(http10=http10).queued(3)
    assert seen.response.refuse(REFUSED)
    assert b'"ADMISSION_TIMEOUT"' in seen.body
    assert seen.body.endswith(b"data: [DONE]\n\n")
    assert seen.client.data.endswith(b"\r\n0\r\n\r\n") is not http10
    assert seen.response.keep_alive is not http10
    before = seen.client.data
    seen.queued(0, None, 100.0)
    assert seen.client.data == before, "nothing follows the end"


def test_refusal_before_anything_was_shown_is_left_to_a_status() -> None:
    seen = Watching()
    assert not seen.response.refuse(REFUSED)
    assert seen.client.data == b""


@pytest.mark.parametrize(
    ("api", "events"),
    [
        (apis.CHAT, b'data: {"error": {"message": "m", "code": 400}}\n\ndata: [DONE]\n\n'),
        (
            apis.MESSAGES,
            b'event: error\ndata: {"type": "error", "error": {"message": "m", "code": 400}}\n\n',
        ),
    ],
)
def test_error_of_the_engine_is_relayed_in_the_form_of_its_api(
    api: Endpoint, events: bytes
) -> None:
    seen = Watching(api).queued(0).runs()
    seen.response.begin(JSON)
    for piece in (b'{"error": {"mess', b'age": "m", "code": 400}}'):
        seen.response.write(piece)
    assert not seen.response.started, "nothing was sent: it may be retried"
    seen.response.finish(Outcome.CLIENT_ERROR)
    assert seen.body.endswith(events)
    assert seen.client.data.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        Head(200, b"OK", ((b"content-type", b"application/json"),), True, False, 2),
        Head(502, b"", (), True, False, 2),
        Head(200, b"OK", (*EVENTS.fields, (b"content-encoding", b"gzip")), True, True, None),
    ],
)
def test_answer_that_is_no_stream_of_events_is_an_error(head: Head) -> None:
    seen = Watching().queued(0).runs()
    seen.response.begin(head)
    seen.response.write(b"{}")
    seen.response.finish(Outcome.OK)
    [data, done] = seen.body.split(b"\n\n")[2:4]
    assert json.loads(data[6:])["error"]["code"] == "engine_failed"
    assert done == b"data: [DONE]"


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("at_event_boundary", [True, False])
def test_failure_between_two_events_is_one_and_within_one_a_reset(
    shown: bool, at_event_boundary: bool
) -> None:
    seen = (Watching().queued(0) if shown else Watching()).runs()
    seen.response.begin(EVENTS)
    seen.response.write(b"data: 1\n\n")
    seen.response.fail(REFUSED)
    assert seen.failed == [REFUSED], "its source knows where its events end"
    seen.response.cut_short(REFUSED, at_event_boundary=at_event_boundary)
    assert (b"ADMISSION_TIMEOUT" in seen.client.data) is at_event_boundary
    assert seen.client.data.endswith(b"\r\n0\r\n\r\n") is at_event_boundary
    assert seen.client.aborted is not at_event_boundary


def test_fault_of_the_sidecar_resets_what_has_begun() -> None:
    silent, seen = Watching(), Watching().queued(0)
    silent.response.interrupt()
    seen.response.interrupt()
    assert (silent.client.aborted, seen.client.aborted) == (False, True)


def waits(place: Place, **more: Any) -> Request:
    """A request that waits at this place of `POOL`, named a."""
    request = request_of(Client(), call=SimpleNamespace(options=NO_OPTIONS), **more)
    request.record.pool = "a"
    request.attempt.waiting = cast(Any, SimpleNamespace(place=lambda now: place))
    return request


async def test_answer_keeps_the_pool_and_type_with_which_it_has_begun() -> None:
    """Those of the request that waits for all that share a generation."""
    pools = {"a": POOL, "b": POOL}
    shared, request = waits(Place(1, None)), waits(Place(1, None))
    shared.record.pool, request.record.pool = "b", None
    watchers = Watchers(cast(Any, pools))
    watchers.watch(request, shared)
    await asyncio.sleep(0)
    assert request.record.pool == "b"
    for each in (request, shared):
        assert each.call is not None
        assert each.call.options.measurement_type is MeasurementType.BATCHED_ONLINE
    shared.record.pool = "a"
    watchers._show(request)
    assert request.record.pool == "b", "what it was told in its head"
    await watchers.close()


async def test_event_loop_runs_between_those_that_are_shown_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_events, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(queue_events, "_CLIENTS_PER_TURN", 2)
    watchers, turns, shown_in = Watchers(cast(Any, {"a": POOL})), 0, list[int]()
    for _ in range(5):
        request = waits(Place(1, None))
        watchers.watch(request, request)
    watchers._show = lambda request: shown_in.append(turns)  # type: ignore[method-assign]
    while len(shown_in) < 5:
        turns += 1
        await asyncio.sleep(0)
    first = shown_in[0]
    assert [turn - first for turn in shown_in[:5]] == [0, 0, 1, 1, 2]
    await watchers.close()
