"""The pipeline is built in one place, and the sidecar's own endpoints never enter it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import pytest
from yarl import URL

from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.app import pipeline
from orch_sidecar.app.pipeline import OwnEndpoints
from orch_sidecar.auth.browsers import AllowedOrigins
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.proxy.admit import Admit
from orch_sidecar.proxy.forward import Forward
from orch_sidecar.proxy.route import Route
from orch_sidecar.wire.client_request import ClientRequest

CHAT = "/v1/chat/completions"


def request(path: str) -> ClientRequest:
    http = SimpleNamespace(target=path, rel_url=URL(path), headers={}, method="GET", malformed=None)
    http.for_aiohttp = lambda: http
    return cast(ClientRequest, http)


class Entry:
    """The entry of the pipeline, with a control and a frontend that record their calls."""

    def __init__(self, own: object = None, key: object = None) -> None:
        answer = AsyncMock(return_value=own)
        self.control = SimpleNamespace(answer=answer, administer=answer)
        self.frontend = SimpleNamespace(handle=AsyncMock(return_value="frontend"))
        self.authorizer = SimpleNamespace(check=MagicMock(return_value=key))
        self.entry = OwnEndpoints(
            cast(Any, self.control),
            cast(Any, self.frontend),
            cast(Any, self.authorizer),
            AllowedOrigins(()),
            {},
        )

    async def handle(self, path: str) -> object:
        return await self.entry.handle(request(path))


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/v1/capabilities"])
async def test_own_endpoints_do_not_enter_the_pipeline(path: str) -> None:
    entry = Entry(own="own")
    assert await entry.handle(path) == "own"
    entry.frontend.handle.assert_not_awaited()


async def test_generation_request_skips_the_control() -> None:
    entry = Entry(own="own")
    assert await entry.handle(CHAT) == "frontend"
    entry.control.answer.assert_not_awaited()
    assert entry.frontend.handle.await_args.args[1:] == (CHAT, ENDPOINTS[CHAT])


@pytest.mark.parametrize("path", ["/unknown", "/v1/models"])
async def test_paths_that_the_control_does_not_answer_enter_the_pipeline(path: str) -> None:
    entry = Entry()
    assert await entry.handle(path) == "frontend"
    assert entry.frontend.handle.await_args.args[1:] == (path, ENDPOINTS.get(path))


async def test_page_with_an_invalid_key_is_refused_by_the_frontend() -> None:
    entry = Entry(own="own", key=Refusal(Reason.UNAUTHORIZED, "no key"))
    assert await entry.handle("/metrics") == "frontend"
    entry.control.answer.assert_not_awaited()


async def test_what_operators_ask_of_the_engine_needs_no_key() -> None:
    entry = Entry(key=Refusal(Reason.UNAUTHORIZED, "no key"))
    http: Any = request("/metrics/engine")
    assert cast(object, await entry.entry.administer(http)) == "frontend"
    *asked, key_of = entry.frontend.handle.await_args.args[1:]
    assert asked == ["/metrics/engine", ENDPOINTS["/metrics/engine"]]
    assert key_of("/metrics/engine", {}) is None


async def test_stages_are_in_the_documented_order() -> None:
    parts = {name: cast(Any, MagicMock()) for name in (
        "pools", "watchdog", "metrics", "tracing", "control", "authorizer", "in_flight",
        "parent_leases", "salts",
    )}  # fmt: skip
    built = pipeline.build(SidecarSettings(), **parts, common_headers={})
    assert built.entry._frontend is built.frontend
    assert built.frontend._coalesce is built.coalesce
    route = built.coalesce._route
    assert isinstance(route, Route)
    assert route is built.frontend._route
    assert isinstance(route._admit, Admit)
    assert isinstance(route._admit._forward, Forward)
    assert route._admit._forward is route._forward
