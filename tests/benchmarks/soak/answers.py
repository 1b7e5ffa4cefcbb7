"""Writes the scripted engine's answers: one per order, in the format of each API, with its fault.

The bytes are vLLM's: compact JSON, one event per chunk; usage, `[DONE]` and the last chunk are
separate writes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from tests.benchmarks.soak.orders import Fault, Order
from tests.integration.answers import EVENT_STREAM
from tests.integration.wire import Answer

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
EMBEDDINGS: Final = "/v1/embeddings"

PROMPT_TOKENS: Final = 7
_EXTRA: Final = b"\r\nno answer"

BlockedBy = Callable[[], Awaitable[None]]  # returns at once, unless the engine hangs


def write_json(answer: Answer, document: dict[str, Any], status: int = 200) -> None:
    answer.head(status, _json_fields(body := compact(document)), chunked=False)
    answer.write(body)


def compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def error_document(path: str, order: Order, status: int, kind: str) -> dict[str, Any]:
    """An error of the engine's own, in the form of the API."""
    error = {"message": f"scripted {order.key}", "type": kind, "param": None, "code": status}
    return {"type": "error", "error": error} if path == MESSAGES else {"error": error}


def has_usage(path: str, body: dict[str, Any]) -> bool:
    """Whether a whole answer says how many tokens were generated."""
    always = not body.get("stream") or path in (RESPONSES, MESSAGES)
    return always or bool((body.get("stream_options") or {}).get("include_usage"))


async def write(answer: Answer, order: Order, choices: int, hold: BlockedBy) -> None:
    """Writes the whole answer, or as much of it as its fault lets through."""
    path, body = answer.request.path, answer.request.json()
    own = answer.request.header("x-request-id") or ""
    if body.get("stream"):
        await _stream(answer, order, Events(path, order, choices, own, body), hold)
    else:
        await _document(answer, order, _whole(path, order, choices, own), hold)


async def _document(answer: Answer, order: Order, body: bytes, hold: BlockedBy) -> None:
    await _pause(order.pace_ms * order.tokens, hold)
    if order.fault is Fault.DRIBBLE:
        answer.head(200, _json_fields(body), chunked=False)
        for at in range(0, len(body), 97):
            await asyncio.sleep(0)
            answer.write(body[at : at + 97])  # no turn of the loop follows the last byte
        return
    if order.fault in (Fault.NONE, Fault.EXTRA, Fault.GONE_ONCE):
        answer.head(200, _json_fields(body), chunked=False)
        answer.write(body + (_EXTRA if order.fault is Fault.EXTRA else b""))
        return
    answer.head(200, _json_fields(body), chunked=False)
    answer.write(body[: len(body) // 2])
    await asyncio.sleep(0.002)
    await break_off(answer, order.fault)


async def _stream(answer: Answer, order: Order, events: Events, hold: BlockedBy) -> None:
    fault = order.fault
    answer.head(200, EVENT_STREAM)
    for event in events.opening():
        answer.chunk(event)
    broken = fault not in (Fault.NONE, Fault.DRIBBLE, Fault.EXTRA, Fault.GONE_ONCE)
    for number in range(min(order.after, order.tokens) if broken else order.tokens):
        if number:
            await _pause(order.pace_ms, hold)
        for event in events.token(number):
            if fault is Fault.DRIBBLE:
                await _dribble(answer, event)
            else:
                answer.chunk(event)
    if fault is Fault.ERROR_EVENT:
        for event in events.error():
            answer.chunk(event)
            await _apart(order)
        answer.end()
        return
    if broken:
        if fault is Fault.CUT_WITHIN:
            event = next(iter(events.token(0)))
            answer.write(b"%x\r\n%b" % (len(event), event[: len(event) // 2]))
        elif fault is Fault.BAD_CHUNK:
            answer.write(b"zz\r\n")
        await asyncio.sleep(0.002)
        await break_off(answer, fault)
        return
    for event in events.closing():
        answer.chunk(event)
        await _apart(order)
    # In one write: else they might be taken for the answer of another request.
    answer.write(b"0\r\n\r\n" + (_EXTRA if fault is Fault.EXTRA else b""))


async def break_off(answer: Answer, fault: Fault) -> None:
    """Ends the connection, or never anything."""
    if fault in (Fault.HANG, Fault.HANG_FIRST):
        await asyncio.Event().wait()  # until the sidecar closes the connection
    elif fault in (Fault.RESET, Fault.RESET_FIRST):
        answer.reset()
    elif fault is Fault.BAD_HEAD:
        answer.write(b"HTTP/1.1 two hundred\r\n\r\n")
        answer.close()
    else:
        answer.close()


async def _pause(pace_ms: float, hold: BlockedBy) -> None:
    if pace_ms:
        await asyncio.sleep(pace_ms / 1000)
    await hold()


async def _apart(order: Order) -> None:
    if order.apart:
        await asyncio.sleep(0.001)


async def _dribble(answer: Answer, event: bytes) -> None:
    framed = b"%x\r\n%b\r\n" % (len(event), event)
    for at in range(0, len(framed), 29):
        answer.write(framed[at : at + 29])
        await asyncio.sleep(0)


def _json_fields(body: bytes) -> list[tuple[str, str]]:
    return [("content-type", "application/json"), ("content-length", str(len(body)))]


def usage_of(order: Order, choices: int) -> dict[str, int]:
    generated = order.tokens * choices
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + generated,
        "completion_tokens": generated,
    }


def _named_usage(order: Order) -> dict[str, int]:
    return {"input_tokens": PROMPT_TOKENS, "output_tokens": order.tokens}


def _whole(path: str, order: Order, choices: int, own: str) -> bytes:
    document: dict[str, Any]
    parts: list[dict[str, Any]]
    if path == CHAT:
        parts = [
            {"message": {"role": "assistant", "content": order.text(i)}} for i in range(choices)
        ]
        document = {"id": f"chatcmpl-{own}", "object": "chat.completion"}
    elif path == COMPLETIONS:
        parts = [{"text": order.text(i)} for i in range(choices)]
        document = {"id": f"cmpl-{own}", "object": "text_completion"}
    elif path == EMBEDDINGS:  # whose vectors are the words of the order
        data = [{"index": i, "embedding": order.text(i)} for i in range(choices)]
        document = {"id": f"embd-{own}", "object": "list", "model": "tiny", "data": data}
        return compact(document | {"usage": usage_of(order, choices)})
    elif path == RESPONSES:
        return compact(_response(order, own))
    else:
        return compact(_message(order, own))
    listed = [{"index": i, **part, "finish_reason": "stop"} for i, part in enumerate(parts)]
    document |= {"created": 1, "model": "tiny", "choices": listed}
    return compact(document | {"usage": usage_of(order, choices)})


def _response(order: Order, own: str) -> dict[str, Any]:
    item = {
        "id": f"msg_{own}", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": order.text(0), "annotations": []}],
    }  # fmt: skip
    return {
        "id": f"resp_{own}", "object": "response", "created_at": 1, "model": "tiny",
        "status": "completed", "output": [item], "usage": _named_usage(order),
    }  # fmt: skip


def _message(order: Order, own: str) -> dict[str, Any]:
    return {
        "id": f"msg_{own}", "type": "message", "role": "assistant", "model": "tiny",
        "content": [{"type": "text", "text": order.text(0)}], "stop_reason": "end_turn",
        "usage": _named_usage(order),
    }  # fmt: skip


class Events:
    """The server-sent events of one streamed answer."""

    def __init__(
        self, path: str, order: Order, choices: int, own: str, body: dict[str, Any]
    ) -> None:
        self._path = path
        self._order = order
        self._choices = choices
        self._own = own
        self._usage = (body.get("stream_options") or {}).get("include_usage", False)

    def opening(self) -> Iterator[bytes]:
        if self._path == RESPONSES:
            created = {"id": f"resp_{self._own}", "object": "response", "status": "in_progress"}
            yield self._named("response.created", response=created)
        elif self._path == MESSAGES:
            message = _message(self._order, self._own) | {"content": [], "stop_reason": None}
            yield self._named("message_start", message=message)

    def token(self, number: int) -> Iterator[bytes]:
        word = self._order.token
        if self._path == RESPONSES:
            yield self._named("response.output_text.delta", delta=word(0, number))
        elif self._path == MESSAGES:
            delta = {"type": "text_delta", "text": word(0, number)}
            yield self._named("content_block_delta", index=0, delta=delta)
        else:
            for choice in range(self._choices):
                yield self._chunk(choice, word(choice, number), None)

    def closing(self) -> Iterator[bytes]:
        order = self._order
        if self._path == RESPONSES:
            yield self._named("response.completed", response=_response(order, self._own))
        elif self._path == MESSAGES:
            end, usage = {"stop_reason": "end_turn"}, {"output_tokens": order.tokens}
            yield self._named("message_delta", delta=end, usage=usage)
            yield self._named("message_stop")
        else:
            for choice in range(self._choices):
                yield self._chunk(choice, "", "stop")
            if self._usage:
                final = {"choices": [], "usage": usage_of(order, self._choices)}
                yield _data(self._common() | final)
            yield b"data: [DONE]\n\n"

    def error(self) -> Iterator[bytes]:
        error = {"message": f"scripted {self._order.key}", "type": "InternalServerError"}
        if self._path in (CHAT, COMPLETIONS):
            yield _data({"error": error | {"param": None, "code": 500}})
            yield b"data: [DONE]\n\n"
        elif self._path == RESPONSES:
            yield self._named("error", message=error["message"], code="server_error")
        else:
            yield self._named("error", error=error)

    def _common(self) -> dict[str, Any]:
        if self._path == CHAT:
            head = {"id": f"chatcmpl-{self._own}", "object": "chat.completion.chunk"}
        else:
            head = {"id": f"cmpl-{self._own}", "object": "text_completion"}
        return {**head, "created": 1, "model": "tiny"}

    def _chunk(self, choice: int, word: str, end: str | None) -> bytes:
        part = {"delta": {"content": word}} if self._path == CHAT else {"text": word}
        return _data(
            self._common() | {"choices": [{"index": choice, **part, "finish_reason": end}]}
        )

    def _named(self, name: str, **fields: Any) -> bytes:
        return b"event: %b\n" % name.encode() + _data({"type": name, **fields})


def _data(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % compact(document)
