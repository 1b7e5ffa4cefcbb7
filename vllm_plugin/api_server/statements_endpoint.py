"""Serves signed statements: `POST` of `statement.STATEMENTS_PATH`, with the engine's own API key.

A statement costs well under a millisecond; how many runs may begin is bounded, for all clients
together. Sidecars, which know the clients' keys, bound those of each. The end of a run that began
is always signed, once. An answer may have 100 000 lines, which are written as the client reads
them: answers that nobody reads must not fill the memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from vllm_plugin.api_server.lease_middleware import refusal
from vllm_plugin.contracts.statement import NONCE, RUN, STATEMENTS_PATH
from vllm_plugin.evidence.chains import Evidence, Forgotten, Statement, StatementRequest
from vllm_plugin.evidence.epoch_key import load_library

MAX_BODY_BYTES: Final = 1024
# A burst for several clients, and for long more than one of them may ask for at a sidecar.
BURST_REQUESTS: Final = 20
REQUESTS_PER_S: Final = 5.0
# A part takes a fraction of a millisecond of the event loop.
LINES_PER_PART: Final = 1000

logger = logging.getLogger("vllm.orch")


class RateLimit:
    """A token bucket. Times are seconds of one clock."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Takes one; returns whether there was one."""
        if self._at_s is not None:
            self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class InvalidRequest(ValueError):
    """A body that breaks a rule; the message names field, value and rule."""


class StatementsEndpoint:
    """Answers requests for statements."""

    def __init__(self, evidence: Evidence, now_s: Callable[[], float] = time.monotonic) -> None:
        self._evidence = evidence
        self._limit = RateLimit(BURST_REQUESTS, REQUESTS_PER_S)
        self._now_s = now_s

    def attach(self, app: Any) -> None:
        app.add_api_route(STATEMENTS_PATH, self.post, methods=["POST"])

    async def post(self, request: Request) -> Response:
        """Signs a statement of this moment."""
        try:
            wanted = parse_request(await _body(request))
        except InvalidRequest as error:
            return refusal(400, "invalid_request_error", str(error))
        if not self._evidence.end_run(wanted) and not self._limit.take(self._now_s()):
            text = (
                f"the engine signs {REQUESTS_PER_S:g} statements per second: try again in a second"
            )
            return refusal(429, "rate_limit_exceeded", text, retriable=True)
        try:
            await asyncio.to_thread(load_library)  # the event loop does not wait for the first time
            made = self._evidence.statement(wanted, time.time(), time.monotonic())
        except Forgotten as error:
            return refusal(409, "evidence_forgotten", str(error))
        except ImportError:
            logger.warning("orch: statements need the package cryptography", exc_info=True)
            text = "the engine cannot sign: the package cryptography is not installed"
            return refusal(501, "evidence_unavailable", text)
        return StreamingResponse(_sent(made, self._evidence), media_type="application/json")


def parse_request(body: bytes) -> StatementRequest:
    """Parses the body of a request. Raises InvalidRequest."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequest("the body must be JSON") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be an object with run, and optionally nonce and since")
    if unknown := sorted(set(document) - {"run", "nonce", "since"}):
        raise InvalidRequest(f"{unknown[0][:40]!r} is unknown: give run, nonce and since")
    run, nonce, since = document.get("run"), document.get("nonce"), document.get("since")
    if not isinstance(run, str) or RUN.fullmatch(run) is None:
        raise InvalidRequest(
            f"run must be 1 to 64 of letters, digits, '.', '_' and '-': {run!r:.80}"
        )
    if nonce is not None and (not isinstance(nonce, str) or NONCE.fullmatch(nonce) is None):
        raise InvalidRequest("nonce must be 32 to 128 lower-case hexadecimal digits")
    if since is not None and (type(since) is not int or since < 1):
        raise InvalidRequest("since must be the sequence number of a statement, from 1")
    return StatementRequest(run, nonce, since)


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise InvalidRequest(f"the body is too large: at most {MAX_BODY_BYTES} bytes")
    return body


def encode(made: Statement, evidence: Evidence) -> Iterator[bytes]:
    """Yields the body of an answer in parts."""
    content = {
        "statement": made.envelope,
        "public_key": evidence.public_key,
        "certificate": evidence.key.certificate,
    }
    yield json.dumps(content, separators=(",", ":")).removesuffix("}").encode()
    for name, lines in (("between", made.between), ("leaves", made.leaves)):
        if lines is None:
            yield f',"{name}":null'.encode()
            continue
        yield f',"{name}":['.encode()
        for first in range(0, len(lines), LINES_PER_PART):
            # Lines have no character to escape.
            joined = '","'.join(lines[first : first + LINES_PER_PART])
            yield f'{"," if first else ""}"{joined}"'.encode()
        yield b"]"
    yield b"}"


async def _sent(made: Statement, evidence: Evidence) -> AsyncIterator[bytes]:
    """Yields the parts as the client reads them, and lets others run between them."""
    for part in encode(made, evidence):
        yield part
        await asyncio.sleep(0)
