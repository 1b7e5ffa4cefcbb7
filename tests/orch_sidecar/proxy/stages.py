"""Fixtures for the stages of the pipeline: a request, a pool, a next stage."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.observability.tracing import Tracing
from orch_sidecar.proxy.request import Attempt, Request, Result
from orch_sidecar.wire.engine_connection import EngineConnection
from tests.orch_sidecar.admission.examples import interactive
from tests.orch_sidecar.admission.gates import gate_of
from tests.orch_sidecar.broadcasting import Transport, http_of
from tests.orch_sidecar.records import record_of, with_values
from tests.orch_sidecar.relayed import Client

ENDPOINT = ENDPOINTS["/v1/chat/completions"]


def request_of(client: Transport | None = None, body: bytes = b"{}", **more: Any) -> Request:
    """A chat request of this client."""
    http = http_of(client or Client(), ("Content-Type", "application/json"), body=body)
    record = record_of()
    record.service_class = interactive().service_class
    request = Request(http, ENDPOINT, record, Tracing().begin(record, {}), Attempt())
    return with_values(request, {"body": body} | more)


class Connections:
    """Connections to an engine whose transports are bytes; `refuses`: none can be opened."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.kept: list[EngineConnection] = []
        self.opened: list[EngineConnection] = []
        self.refuses: OSError | None = None

    def take(self) -> EngineConnection | None:
        return None

    async def acquire(self) -> EngineConnection:
        if self.refuses is not None:
            raise self.refuses
        connection = EngineConnection()
        connection.connection_made(Transport())
        self.opened.append(connection)
        return connection

    def give_back(self, connection: EngineConnection) -> None:
        connection.receiver = None
        self.kept.append(connection)


def pool_of(slots: int = 1, **more: Any) -> Any:
    """A pool whose engine has reported so many slots; keyword arguments replace attributes."""
    gate = gate_of(slots)
    return SimpleNamespace(
        **{
            "name": "a",
            "group": "a",
            "tier": False,
            "keeps_queue": False,
            "gate": gate,
            "admission": gate.controller,
            "connections": Connections(),
            "rejection": None,
            "response_fields": b"x-measurement-type: batched_online\r\n",
            "response_fields_at_once": b"x-orch-queue-position: 0\r\n",
            "address": b"host: engine\r\n",
            "authorization": None,
            "labels": {},
            "prompt_size": SimpleNamespace(learn=lambda *_: None),
            "silence_limit_s": lambda: 600.0,
            "class_fields": defaultdict(bytes),
            "class_labels": defaultdict(dict),
            "admission_request": lambda *_: interactive(),
            "unreachable": lambda error: Refusal(Reason.ENGINE_DOWN, str(error)),
        }
        | more
    )


Step = Callable[..., Any]


class NextStage:
    """A next stage that returns these results in turn; an exception is raised."""

    def __init__(self, *results: Result | BaseException | Step) -> None:
        self.results = list(results)
        self.calls: list[tuple[Any, ...]] = []

    async def handle(self, request: Request, *more: Any) -> Result:
        self.calls.append((request, *more))
        result = self.results.pop(0)
        if callable(result):
            result = result(request, *more)
            if asyncio.iscoroutine(result):
                result = await result
        if isinstance(result, BaseException):
            raise result
        return cast(Result, result)


def asked(cost: int = 1, **more: Any) -> AdmissionRequest:
    return interactive(cost, **more)
