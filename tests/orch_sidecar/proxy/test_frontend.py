"""The first stage: its refusals, and that each request is ended exactly once."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from orch_sidecar.api.cache_salt import CacheSalts
from orch_sidecar.api.endpoints import ENDPOINTS, Endpoint
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.tracing import Tracing
from orch_sidecar.proxy.frontend import Frontend
from orch_sidecar.proxy.in_flight import InFlight
from orch_sidecar.proxy.request import NotSent, Request, Result, Sent
from orch_sidecar.wire.client_connection import SENT, SENT_CLOSE
from orch_sidecar.wire.request_body import BodyReader
from tests.orch_sidecar.proxy.stages import NextStage, request_of

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"x"}],"n":2}'


class Served:
    """A frontend before a scripted next stage, and what it recorded."""

    def __init__(self, *results: Any, authorizer: Any = None) -> None:
        self.stage = NextStage(*results)
        self.records: list[RequestRecord] = []
        self.in_flight = InFlight()
        settings = SidecarSettings()
        self.bodies = BodyReader(settings)
        pools = MagicMock(ctx_max=None, coalescing=False)
        metrics = MagicMock(request_ended=self.records.append)
        self.frontend = Frontend(
            self.stage,
            self.stage,
            cast(Any, None),
            self.bodies,
            settings,
            pools,
            authorizer or Authorizer(None),
            self.in_flight,
            cast(Any, None),
            metrics,
            Tracing(),
            {"Server": "orch-sidecar"},
            CacheSalts(b"s" * 32),
        )

    async def post(self, body: bytes = BODY, endpoint: Endpoint | None = ENDPOINTS[CHAT]) -> Any:
        http = request_of(body=body).http
        return await self.frontend.handle(http, CHAT, endpoint)

    @property
    def record(self) -> RequestRecord:
        """Returns the record of the only request, which must have ended completely."""
        [record] = self.records
        assert record.ended
        assert self.frontend.active == 0
        assert len(self.in_flight) == 0
        assert self.bodies.reserved_bytes == 0
        return record


@pytest.mark.parametrize(("keep_alive", "response"), [(True, SENT), (False, SENT_CLOSE)])
async def test_request_that_was_answered_is_recorded_with_its_outcome(
    keep_alive: bool, response: object
) -> None:
    served = Served(Sent(keep_alive, Outcome.OK))
    assert await served.post() is response
    assert served.record.outcome is Outcome.OK
    [(request,)] = served.stage.calls
    assert (request.record.model, request.record.cost) == ("m", 2)
    assert request.body == BODY
    assert request.call is not None


async def test_refusal_of_a_later_stage_is_the_response() -> None:
    served = Served(NotSent(Refusal(Reason.QUEUE_FULL, "full", retry_after_ms=70)))
    response = await served.post()
    assert response.status == served.record.status == 429
    assert response.headers["Retry-After-Ms"] == "70"
    assert response.headers["X-Orch-Request-Id"] == served.record.id
    assert served.record.outcome is Reason.QUEUE_FULL


async def test_cancellation_takes_precedence_over_its_consequences() -> None:
    def cancelled(request: Request) -> Result:
        request.cancelled = Refusal(Reason.CANCELLED, "cancelled")
        return NotSent(Refusal(Reason.QUEUE_TIMEOUT, "late"))

    served = Served(cancelled)
    await served.post()
    assert served.record.outcome is Reason.CANCELLED


async def test_client_that_disconnects_is_recorded_as_cancelled() -> None:
    served = Served(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await served.post()
    assert served.record.outcome is Outcome.CANCELLED


async def test_error_of_a_stage_is_an_internal_error() -> None:
    served = Served(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await served.post()
    assert (served.record.outcome, served.record.status) == (Reason.INTERNAL_ERROR, 500)


@pytest.mark.parametrize(
    ("body", "endpoint", "reason"),
    [
        (b"{", ENDPOINTS[CHAT], Reason.INVALID_REQUEST),
        (BODY, None, Reason.NOT_FOUND),
        (BODY, ENDPOINTS["/v1/models"], Reason.METHOD_NOT_ALLOWED),
    ],
)
async def test_invalid_request_is_refused(
    body: bytes, endpoint: Endpoint | None, reason: Reason
) -> None:
    served = Served()
    response = await served.post(body, endpoint)
    assert served.record.outcome is reason
    assert response.status == served.record.status
    assert served.stage.calls == []


async def test_unknown_key_is_refused_before_the_body_is_read() -> None:
    authorizer = MagicMock(check=lambda *_: Refusal(Reason.UNAUTHORIZED, "unknown key"))
    served = Served(authorizer=authorizer)
    response = await served.post(b"{")
    assert (response.status, served.record.outcome) == (401, Reason.UNAUTHORIZED)


async def test_sequences_of_a_key_are_counted_until_the_request_has_ended() -> None:
    key = MagicMock(bulk=False)
    authorizer = MagicMock(check=lambda *_: key, closed=True, enter=MagicMock(return_value=None))
    served = Served(ZeroDivisionError(), authorizer=authorizer)
    with pytest.raises(ZeroDivisionError):
        await served.post()
    assert authorizer.enter.call_args.args[:2] == (key, 2)
    assert authorizer.leave.call_args.args[:2] == (key, 2)
    assert served.record.outcome is Reason.INTERNAL_ERROR
