"""Reads request bodies within limits: size, time, encoding, and a budget of all bodies.

The bodies of all requests being read, queued or in flight share the budget: bytes are reserved
before they are read, from Content-Length or as they arrive, until the request has ended. Large
bodies are outlined as they arrive, one after the other, in slices between which the event loop
runs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

import aiohttp
from aiohttp import web

from orch_sidecar.api.body import InvalidBody
from orch_sidecar.api.body_outline import SLICE_BYTES, WHOLE_BYTES, Outline
from orch_sidecar.api.headers import CONTENT_ENCODING, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING
from orch_sidecar.api.refusal import Reason, Refusal, well_formed
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.wire.client_request import ClientRequest
from orch_sidecar.wire.unreadable import UNREADABLE, refusal_of

T = TypeVar("T")

# For how long all bodies together are outlined and joined in one turn of the event loop. Not one
# slice in a turn: a turn of a busy loop takes a millisecond, and a large body has many slices.
_TURN_AFTER_S: Final = 0.002
# By which a body shows its encoding.
_ENCODING_BYTES: Final = 4
# Slices of most bodies: one ends within a long text, and one after it.
_FEW_SLICES: Final = 2

JSON: Final = "application/json"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Holder(Protocol):
    """A request and the bytes of the budget that are reserved for its body."""

    http: ClientRequest
    reserved_bytes: int


class BodyReader:
    """Reads bodies within the budget. Lives on one event loop."""

    def __init__(self, settings: SidecarSettings) -> None:
        self.configure(settings)
        self.reserved_bytes = 0  # of all requests together
        self._outline_lock = asyncio.Lock()
        self._turn_ends_at: float | None = None  # None: nothing has been outlined in this turn
        self._loop = asyncio.get_running_loop()

    def configure(self, settings: SidecarSettings) -> None:
        """Applies these settings to new bodies."""
        self._max_bytes = settings.max_body_bytes
        self._budget_bytes = settings.body_budget_bytes
        self._timeout_s = settings.body_timeout_s

    def read_arrived(self, holder: Holder) -> bytes | Refusal | None:
        """Returns the body if it arrived together with the head, or why it is refused.

        None: it is incomplete; `read_rest` waits for it.
        """
        http = holder.http
        if not http.complete:
            return None
        if http.stream is None:
            body, http.body = http.body, b""
        else:
            body = http.stream.read_nowait()
        if len(body) > self._max_bytes:
            return self._too_large(f"{len(body)} bytes")
        size = len(body)
        if self.reserved_bytes + size > self._budget_bytes:
            return self.reserve(holder, size) or body
        self.reserved_bytes += size
        holder.reserved_bytes += size
        return body

    async def read_rest(self, holder: Holder, outline: Outline | None = None) -> bytes | Refusal:
        """Waits for the rest of a body. Returns the whole, or why it is refused.

        `outline`: reads what has arrived of a large body, while the rest of it does.
        """
        http, timeout_s = holder.http, self._timeout_s
        length = http.content_length
        if length is not None:
            if length > self._max_bytes:
                return self._too_large(f"{length} bytes")
            if (refusal := self.reserve(holder, length)) is not None:
                return refusal
        send_continue(http)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read_whole(holder, outline)
        except TimeoutError:
            text = f"the body did not arrive within {timeout_s:g} s"
            return Refusal(Reason.BODY_TIMEOUT, text)
        except InvalidBody as unreadable:
            return unreadable.refusal
        except UNREADABLE as error:
            return refusal_of(error)

    def release(self, holder: Holder) -> None:
        """Returns a request's bytes to the budget, when the request has ended."""
        self.reserved_bytes -= holder.reserved_bytes
        holder.reserved_bytes = 0

    async def read_large(
        self,
        body: bytes,
        read: Callable[[bytes, bool], T | None],
        outline: Outline | None = None,
    ) -> T | Refusal:
        """Returns what `read` makes of a large body, or of its outline (True). `outline`: of its
        beginning.

        It gets a body of WHOLE_BYTES that has more than one long text: that takes less time than to
        outline it. If it returns None, it gets the outline.
        """
        outline = Outline() if outline is None else outline
        try:
            begun = self._begin(body, outline)
            if not begun and len(body) <= WHOLE_BYTES:
                async with self._outline_lock:
                    await asyncio.sleep(0)
                    if (found := read(body, False)) is not None:
                        return found
            if not begun:
                await self._outline(body, outline)
        except InvalidBody as unreadable:
            return unreadable.refusal
        outlined = outline.result()
        if len(outlined) <= SLICE_BYTES:
            return _read_outline(outlined, read)
        async with self._outline_lock:
            await asyncio.sleep(0)
            return _read_outline(outlined, read)

    def _begin(self, part: bytes, outline: Outline, begin: int = 0) -> bool:
        """Has the outline read a few slices of a part that begins at `begin`: together they take as
        long as the body of another request. Returns whether nothing is left. Raises InvalidBody."""
        at = outline.read_bytes - begin
        for _ in range(_FEW_SLICES):
            if at < len(part):
                at = outline.feed(part, at)
        return at == len(part)

    async def _outline(self, part: bytes, outline: Outline, begin: int = 0) -> None:
        """Has the outline read the rest of a part that begins at `begin`. Raises InvalidBody.

        One body at a time: several together would delay the event loop.
        """
        async with self._outline_lock:
            while (at := outline.read_bytes - begin) < len(part):
                if self._is_turn_over():
                    await asyncio.sleep(0)
                else:
                    outline.feed(part, at)

    def _is_turn_over(self) -> bool:
        """Whether large bodies have taken their time of this turn of the event loop."""
        now = time.perf_counter()
        if self._turn_ends_at is None:
            self._turn_ends_at = now + _TURN_AFTER_S
            self._loop.call_soon(self._end_turn)
        return now >= self._turn_ends_at

    def _end_turn(self) -> None:
        self._turn_ends_at = None

    async def _read_whole(self, holder: Holder, outline: Outline | None) -> bytes | Refusal:
        """Reads the body, and does not retain it as `http.read` would.

        The parts are joined at the end: many buffers that grow side by side would be moved again
        and again.
        """
        content, most = holder.http.content, self._max_bytes
        parts: list[bytes] = []
        size = 0
        while part := await content.readany():
            parts.append(part)
            size += len(part)
            if size > most:
                return self._too_large("larger")
            beyond = size - holder.reserved_bytes
            if beyond > 0 and (refusal := self.reserve(holder, beyond)) is not None:
                return refusal
            if outline is not None and size > WHOLE_BYTES:
                if len(parts[0]) < _ENCODING_BYTES:
                    parts = [b"".join(parts)]
                for each in parts[-1:] if outline.read_bytes else parts:
                    begin = outline.read_bytes
                    if not self._begin(each, outline, begin):
                        await self._outline(each, outline, begin)
        while True:
            if size <= WHOLE_BYTES or not self._is_turn_over():
                return b"".join(parts)
            await asyncio.sleep(0)

    def reserve(self, holder: Holder, size: int) -> Refusal | None:
        """Reserves more bytes for a request, if the budget has them."""
        limit = self._budget_bytes
        if self.reserved_bytes + size > limit:
            text = (
                f"the bodies of other requests take {self.reserved_bytes} of {limit} bytes, and "
                f"this one needs {size}: send it again later"
            )
            return Refusal(Reason.BODY_BUDGET_FULL, text)
        self.reserved_bytes += size
        holder.reserved_bytes += size
        return None

    def _too_large(self, size: str) -> Refusal:
        limit = self._max_bytes
        return Refusal(Reason.BODY_TOO_LARGE, f"the body is {size}, the limit is {limit} bytes")


def _read_outline(outlined: bytes, read: Callable[[bytes, bool], T | None]) -> T:
    found = read(outlined, True)
    assert found is not None, "an outline can be read"
    return found


def send_continue(http: ClientRequest | web.BaseRequest) -> None:
    """Tells a client that waits for it to send its body (100 Continue)."""
    if http.headers.get(EXPECT, "").lower() == "100-continue":
        transport = http.transport
        if transport is not None and http.version >= aiohttp.HttpVersion11:
            transport.write(_CONTINUE)


def headers_refusal(headers: Mapping[str, str], *, json: bool) -> Refusal | None:
    """Returns why a body with these headers is refused; None: it is not. `json`: it has to have
    that type, which vLLM would check in the same way once the request has its slots."""
    encoding = headers.get(CONTENT_ENCODING, "identity")
    framing = headers.get(TRANSFER_ENCODING, "chunked")
    if framing.lower() != "chunked":
        encoding = framing  # `gzip, chunked`: what the chunks hold is compressed
    if encoding.lower() != "identity":
        text = f"encoding {encoding[:40]!r} is not accepted; send the body as it is"
        return Refusal(Reason.UNSUPPORTED_ENCODING, text)
    given = headers.get(CONTENT_TYPE)
    if not json or (given or "").lower().split(";", 1)[0] == JSON:
        return None
    found = "it is missing" if given is None else f"not {given[:100]!r}"
    return Refusal(Reason.INVALID_REQUEST, f"{CONTENT_TYPE} must be {JSON}, {found}")


def model_of(body: bytes) -> str:
    """Returns the model that a body, or its outline, names; empty if there is none.

    For requests that are not admitted: the engine reports what is wrong with their bodies.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    model = document.get("model") if isinstance(document, dict) else None
    return well_formed(model) if isinstance(model, str) else ""
