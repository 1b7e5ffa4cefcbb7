"""A client of ASGI applications that receives each message as it is sent, also of streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

from tests.patience import HANG_S


class Call:
    """A request to an application, whose response messages are read one by one."""

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        client: tuple[str, int] | None = ("127.0.0.1", 1),
        root_path: str = "",
    ) -> None:
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            # as of uvicorn: Starlette then waits for the disconnect
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": root_path,
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": client,
            "server": ("127.0.0.1", 2),
        }
        self._messages: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._sent = False
        self._body = body
        self.task = asyncio.ensure_future(app(scope, self._receive, self._messages.put))

    async def _receive(self) -> MutableMapping[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def disconnect(self) -> None:
        self._gone.set()

    async def message(self) -> MutableMapping[str, Any]:
        return await asyncio.wait_for(self._messages.get(), HANG_S)

    async def status(self) -> int:
        message = await self.message()
        assert message["type"] == "http.response.start"
        status: int = message["status"]
        return status

    async def chunk(self) -> bytes:
        """Returns the next chunk of the body, b"" at its end."""
        while (message := await self.message()).get("more_body") and not message["body"]:
            pass
        body: bytes = message["body"]
        return body

    async def json(self) -> Any:
        return json.loads(await self.chunk())

    async def event(self) -> tuple[str, dict[str, Any]] | None:
        """Returns the next server-sent event as (name, data), None at the end."""
        text = (await self.chunk()).decode()
        if not text:
            return None
        name, data, *rest = text.split("\n")
        assert rest == ["", ""]
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def event_named(self, expected: str) -> dict[str, Any]:
        """Returns the data of the next event of this name."""
        while (event := await self.event()) is not None:
            if event[0] == expected:
                return event[1]
        raise AssertionError(f"the stream ended without {expected!r}")
