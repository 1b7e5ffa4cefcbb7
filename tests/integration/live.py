"""Readers of the live document."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from tests.integration.running import Running
from tests.patience import HANG_S


class LiveReader:
    """One stream of `GET /v1/live`. `document`: as a reader keeps it; `events`: their names."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.document: dict[str, Any] = {}
        self.events: list[str] = []
        self._rest = b""

    async def next(self, within_s: float = HANG_S) -> dict[str, Any]:
        """Applies the next event; returns the document."""
        async with asyncio.timeout(within_s):
            while True:
                block, found, rest = self._rest.partition(b"\n\n")
                if found:
                    self._rest = rest
                    if self._apply(block):
                        return self.document
                    continue
                data = await self._response.content.readany()
                if not data:
                    raise ConnectionError("the stream has ended")
                self._rest += data

    async def until(self, condition: Any, within_s: float = HANG_S) -> dict[str, Any]:
        """Reads until the document fulfils a condition."""
        async with asyncio.timeout(within_s):
            while not (self.document and condition(self.document)):
                await self.next(within_s)
        return self.document

    def _apply(self, block: bytes) -> bool:
        if block.startswith(b":"):
            return False
        name, data = block.split(b"\n")
        self.events.append(name.removeprefix(b"event: ").decode())
        event = json.loads(data.removeprefix(b"data: "))
        rows = {row["number"]: row for row in event.pop("requests", ())}
        if self.events[-1] == "snapshot":
            self.document = event | {"requests": rows}
        else:
            self.document |= event
            self.document["requests"] |= rows
        return True


class Readers:
    """Opens streams, and closes them at the end of a test."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession()
        self._responses: list[aiohttp.ClientResponse] = []

    async def open(
        self, running: Running, *, operator: bool = False, headers: dict[str, str] | None = None
    ) -> LiveReader:
        response = await self.get(running, "/v1/live", operator=operator, headers=headers)
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return LiveReader(response)

    async def get(
        self,
        running: Running,
        path: str,
        *,
        operator: bool = False,
        headers: dict[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        port = running.sidecar.admin_port if operator else running.port
        response = await self._session.get(
            f"http://127.0.0.1:{port}{path}", headers=headers, allow_redirects=False
        )
        self._responses.append(response)
        return response

    async def close(self) -> None:
        for response in self._responses:
            response.close()
        await self._session.close()
