"""Requests of clients, parsed from the bytes of one connection.

llhttp parses, by httptools: aiohttp's parser, which is llhttp, too, makes more of each request than
most of them need. A parsed URL, headers in a multidict, and a stream for the body are made here
when they are asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, cast

import httptools
from aiohttp import EMPTY_PAYLOAD, HttpVersion, HttpVersion10, HttpVersion11, StreamReader, web
from aiohttp.http import RawRequestMessage, StreamWriter
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.headers import CONTENT_LENGTH, HOST, TRANSFER_ENCODING, raw, text_of
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.wire.forwarding import Fields, HeaderNames, header_names
from orch_sidecar.wire.unreadable import CONNECT, not_http, refusal_of, url_of

# Requests of one connection that are parsed while one is served; those of one slice may be more.
MOST_AHEAD: Final = 64
SLICE_BYTES: Final = 16_384
_MOST_FIELDS: Final = 128
# Of the bytes that one line of a head may have, for a head.
_MOST_LINES: Final = 4
# Of a body that nobody reads yet, twice so many arrive.
_BODY_BYTES: Final = 262_144
_NO_LENGTH: Final = 2**63
_JSON: Final = b"application/json"
_METHODS: Final = {each.encode(): each for each in ("GET", "HEAD", "POST", "PUT", "DELETE")}
_TARGETS: Final = {path.encode(): path for path in ENDPOINTS}
_FRAMING: Final = frozenset(map(raw, (CONTENT_LENGTH, TRANSFER_ENCODING)))
_HEAD_END: Final = b"\r\n\r\n"
_CLOSED: Final = httptools.HttpRequestParser(object())


class ClientRequest:
    """A request of a client: its head, its body, and the `ClientConnection` on which it came.

    `target`: as it was sent, with its query. `raw_headers`: its header fields, as they were sent.
    `names`: what their names decide. `http11`: its version is 1.1. `keep_alive`: another request
    may follow on the connection. `malformed`: why it cannot be served, whatever it asks for.
    `complete`: its body has arrived. `asks_to_close`: the client expects that the connection ends
    with the response. `is_json`: it says that its body is, as most clients do. `host`,
    `credential`: this field, and the one with the client's key, as they were sent; or None.
    """

    __slots__ = (
        "_for_aiohttp",
        "_headers",
        "_url",
        "asks_to_close",
        "body",
        "complete",
        "credential",
        "host",
        "http11",
        "is_json",
        "keep_alive",
        "malformed",
        "method",
        "names",
        "protocol",
        "raw_headers",
        "stream",
        "target",
    )

    def __init__(
        self,
        protocol: Any,
        method: str,
        target: str,
        fields: Fields,
        names: HeaderNames,
        http11: bool,
        keep_alive: bool,
    ) -> None:
        self.protocol = protocol
        self.method = method
        self.target = target
        self.raw_headers = fields
        self.names = names
        self.http11 = http11
        self.keep_alive = keep_alive
        self.asks_to_close = not keep_alive
        self.malformed: Refusal | None = None
        self.complete = False
        self.body = b""  # if it came with its head, and nobody has taken it
        at = names.host
        self.host: bytes | None = fields[at][1] if at >= 0 else None
        at = names.content_type
        self.is_json = at >= 0 and fields[at][1] == _JSON
        at = names.credential
        self.credential: bytes | None = fields[at][1] if at >= 0 else None
        self.stream: StreamReader | None = None  # of any other body, once it is read
        self._headers: CIMultiDictProxy[str] | None = None
        self._url: URL | None = None
        self._for_aiohttp: web.BaseRequest | None = None

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        headers = self._headers
        if headers is None:
            made = CIMultiDict(
                [(name.decode("ascii"), text_of(value)) for name, value in self.raw_headers]
            )
            headers = self._headers = CIMultiDictProxy(made)
        return headers

    @property
    def rel_url(self) -> URL:
        """The target, parsed; without the host that it may name. Raises ValueError."""
        url = self._url
        if url is None:
            url = self._url = url_of(self.method, self.target)
        return url

    @property
    def content(self) -> StreamReader:
        """The body, to be read in pieces."""
        content = self.stream
        if content is None:
            body, self.body = self.body, b""
            if self.complete and not body:
                content = EMPTY_PAYLOAD
            else:
                loop = asyncio.get_running_loop()
                content = StreamReader(self.protocol, _BODY_BYTES, loop=loop)
                content.feed_data(body)
                if self.complete:
                    content.feed_eof()
            self.stream = content
        return content

    @property
    def arrived_bytes(self) -> int:
        return len(self.body) if self.stream is None else self.stream.total_bytes

    def go_on(self, part: bytes) -> None:
        """Adds a part to a body that is not complete, and goes on in a stream."""
        if self.stream is None:
            length = self.content_length or 0
            if length >= _NO_LENGTH:
                text = f"{CONTENT_LENGTH} is {length}, which no body can have"
                self.malformed = self.malformed or Refusal(Reason.INVALID_REQUEST, text)
                self.keep_alive = False
        self.content.feed_data(part)

    def fail(self, error: BaseException) -> None:
        """Raises the error where the body is read. No other request can follow it."""
        self.keep_alive = False
        self.content.set_exception(error)

    def examine(self, fault: str | None) -> None:
        """Finds out whether it is a request. `fault`: why not, if that is known."""
        fault = fault or self.names.fault
        if fault is None and self.http11 and self.names.host < 0:
            fault = f"{HOST} is missing"
        try:
            self.rel_url  # noqa: B018
        except ValueError:
            fault, self.target = fault or "its target is not a URL", "/"
        if fault is not None:
            self.malformed, self.keep_alive = not_http(fault), False

    @property
    def transport(self) -> asyncio.Transport | None:
        """None: the client is gone."""
        transport: asyncio.Transport | None = self.protocol.transport
        return transport

    @property
    def remote(self) -> str | None:
        """The client's address."""
        return self.for_aiohttp().remote

    @property
    def version(self) -> HttpVersion:
        return HttpVersion11 if self.http11 else HttpVersion10

    @property
    def content_length(self) -> int | None:
        at = self.names.content_length
        return int(self.raw_headers[at][1]) if at >= 0 else None

    def for_aiohttp(self) -> web.BaseRequest:
        """Returns the same request as aiohttp has it."""
        made = self._for_aiohttp
        if made is None:
            loop = asyncio.get_running_loop()
            message = cast(Any, RawRequestMessage)(  # of C: no tuple, as compiled code would expect
                self.method,
                self.target,
                self.version,
                self.headers,
                tuple(self.raw_headers),
                not self.keep_alive,
                None,  # bodies stay as they are
                False,
                self.names.chunked,
                self.rel_url,
            )
            task: Any = None  # a cancelled one keeps its traceback, which keeps the request
            writer = StreamWriter(self.protocol, loop)
            made = web.BaseRequest(message, self.content, self.protocol, writer, task, loop)
            self._for_aiohttp = made
        return made


class RequestParser:
    """Parses what one client sends.

    `ready`: requests that nobody serves yet, in their order; the body of the last one may still be
    arriving. `ended`: nothing that comes now is a request.
    """

    def __init__(self, protocol: Any, max_line_bytes: int) -> None:
        """`protocol`: the `ClientConnection`. `max_line_bytes`: of a field or the request line."""
        self.ready: deque[ClientRequest] = deque()
        self.ended = False
        self._protocol = protocol
        self._max_line_bytes = max_line_bytes
        # Of an incomplete head, or of a body's chunks and trailers since its last data.
        self._head_bytes = 0
        self._arriving: ClientRequest | None = None  # its body is
        self._upgrading: ClientRequest | None = None
        self._held = b""  # behind MOST_AHEAD requests
        # What llhttp finds, until it is complete.
        self._target: list[bytes] = []
        self._fields: list[tuple[bytes, bytes]] = []
        self._names: list[bytes] = []
        self._body: list[bytes] = []
        self.on_url, self.on_body = self._target.append, self._body.append
        self._llhttp = httptools.HttpRequestParser(self)

    @property
    def is_full(self) -> bool:
        """Whether no more should be read until some of them are served."""
        return bool(self._held) or len(self.ready) > MOST_AHEAD

    def parse(self, data: bytes | memoryview, more: bool = False) -> None:
        """Parses what has arrived: of heads at most SLICE_BYTES. `more`: the next is at hand."""
        if self.ended:
            return
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            self._fail(str(error))
        else:
            if not more and (self._arriving is not None or self._target):
                self._wait_for_rest(len(data))

    def parse_slices(self, data: bytes) -> None:
        """Parses what has arrived, or holds a part of it."""
        rest, at = memoryview(data), 0
        while at < len(data) and not self.ended:
            size, head = max(SLICE_BYTES, self._missing_bytes()), -1
            if self._arriving is None:
                if self.is_full:
                    self._held = data[at:]
                    return
                # A body in one piece need not be put together.
                if (head := data.find(_HEAD_END, at, at + size)) >= 0:
                    size = head + len(_HEAD_END) - at
            self.parse(rest[at : at + size], head >= 0 and at + size < len(data))
            at += size

    def go_on(self) -> None:
        """Parses what was held."""
        held, self._held = self._held, b""
        self.parse_slices(held)

    def close(self) -> None:
        """Parses nothing more, and ends the cycles of references."""
        self.ended, self._llhttp, self._protocol = True, _CLOSED, None
        self._arriving = self._upgrading = None
        self.ready.clear()

    def _missing_bytes(self) -> int:
        """Of the body that is arriving, if its head says how long it is."""
        arriving = self._arriving
        if arriving is None or arriving.names.chunked:
            return 0
        return (arriving.content_length or 0) - arriving.arrived_bytes

    def _wait_for_rest(self, parsed_bytes: int) -> None:
        """Keeps what has arrived of a request."""
        data = b"".join(self._body)
        self._body.clear()
        if self._arriving is not None:
            self._arriving.go_on(data)
        self._head_bytes = 0 if data else self._head_bytes + parsed_bytes
        # A slice may hold another request before a head. Parts of a trailer are kept, too.
        if self._head_bytes - SLICE_BYTES > (most := _MOST_LINES * self._max_line_bytes):
            what = "its head has" if self._arriving is None else "its chunks or trailers have"
            self._fail(f"{what} more than {most} bytes")

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """Parses the body of a request that asks for another protocol, which is not served: llhttp
        leaves the body to that."""
        request, self._upgrading = self._upgrading, None
        assert request is not None
        framing = [field for field in request.raw_headers if field[0].lower() in _FRAMING]
        if request.method == CONNECT or not framing:
            request.complete = True
            self.ended = True
            return
        self._llhttp, self._arriving = httptools.HttpRequestParser(self), request
        self.parse(
            b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % each for each in framing)
        )
        self.parse_slices(rest)

    def _fail(self, text: str) -> None:
        """Fails the body that is arriving, or refuses what is not a request."""
        self.ended = True
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            error = web.RequestPayloadError(text)
            arriving.fail(error)
            if self.ready and arriving is self.ready[-1]:  # nobody has begun to serve it
                arriving.malformed = arriving.malformed or refusal_of(error)
            return
        refused = ClientRequest(self._protocol, "UNKNOWN", "/", [], header_names(b""), False, False)
        refused.malformed, refused.complete, refused.asks_to_close = not_http(text), True, False
        self.ready.append(refused)

    # What llhttp calls, besides `on_url` and `on_body`.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arriving is None:
            self._fields.append((name, value))  # otherwise a trailer, which is dropped
            self._names.append(name)

    def on_headers_complete(self) -> None:
        target = b"".join(self._target)
        self._target.clear()
        if self._arriving is not None:
            return  # see `_parse_without_upgrade`
        llhttp, fields, self._fields = self._llhttp, self._fields, []
        self._body.clear()
        too_long = None
        if self._head_bytes or self._max_line_bytes < SLICE_BYTES or len(fields) > _MOST_FIELDS:
            too_long, self._head_bytes = self._too_long(target, fields), 0
        names, keep_alive = header_names(b"\n".join(self._names)), llhttp.should_keep_alive()
        self._names.clear()
        method, known = _METHODS.get(sent := llhttp.get_method()), _TARGETS.get(target)
        request = ClientRequest(
            self._protocol,
            method or sent.decode("ascii"),
            known or target.decode("utf-8", "surrogateescape"),
            fields,
            names,
            # Of other versions a connection is kept only if `Connection` says so.
            (keep_alive and not names.has_connection) or llhttp.get_http_version() == "1.1",
            keep_alive,
        )
        self.ready.append(request)
        self._arriving = request
        if too_long or names.unusual or known is None or method is None:
            request.examine(too_long)
            if llhttp.should_upgrade():
                request.keep_alive, self._upgrading, self._arriving = False, request, None

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self._arriving is not None:
            arriving, parts, self._arriving = self._arriving, self._body, None
            rest = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            arriving.complete = True
            if arriving.stream is None:
                arriving.body = rest
            else:
                arriving.stream.feed_data(rest)
                arriving.stream.feed_eof()

    def _too_long(self, target: bytes, fields: list[tuple[bytes, bytes]]) -> str | None:
        """Returns what of a head is too long."""
        if len(fields) > _MOST_FIELDS:
            fields.clear()
            self._names.clear()
            return f"its head has more than {_MOST_FIELDS} fields"
        lines = [len(target), *(len(name) + len(value) for name, value in fields)]
        most = self._max_line_bytes
        if max(lines) > most:
            return f"a line of its head has more than {most} bytes"
        most *= _MOST_LINES
        return f"its head has more than {most} bytes" if sum(lines) > most else None
