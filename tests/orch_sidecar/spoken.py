"""What vLLM answers to a request, with its token counts or with an error: one of each API."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.usage import Counts
from tests.orch_sidecar import apis

DONE = b"data: [DONE]\n\n"
# As a model may write it, or a client have it echoed: none of it is what it looks like.
MISLEADING = (
    'he said "usage":{"prompt_tokens":111,"completion_tokens":222}\n\nevent: error\n'
    'data: {"error": {"code": 500}}\n\ndata: [DONE]\n\n\\"usage\\":'
)


_NOTHING: Counts = (None, None, None, None)


@dataclass(frozen=True)
class Spoken:
    """The body of an answer, and what is to be read of it. `counts`: as `usage.read` has them."""

    what: str
    api: Endpoint
    body: bytes = field(repr=False)
    counts: Counts = _NOTHING
    failed: bool = False

    @property
    def name(self) -> str:
        return f"{self.api.path} {self.what}"

    @property
    def stream(self) -> bool:
        return not self.body.startswith(b"{")


def sse(document: Any, name: str | None = None) -> bytes:
    """An event. Without a name it is one of completions and chats."""
    data = b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
    return data if name is None else f"event: {name}\n".encode() + data


def named(document: Any) -> bytes:
    return sse(document, document["type"])


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """As vLLM counts for completions and chats."""
    details = {"cached_tokens": 4, "multimodal_tokens": {"image": 3}}
    return {
        "prompt_tokens": prompt, "total_tokens": prompt + completion,
        "completion_tokens": completion, "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": 1},
    }  # fmt: skip


def _choices(api: Endpoint, text: str, n: int) -> list[dict[str, Any]]:
    choice = {"delta": {"content": text}} if api is apis.CHAT else {"text": text}
    return [{"index": i, **choice, "finish_reason": None} for i in range(n)]


def openai_stream(
    api: Endpoint,
    *,
    n: int = 1,
    text: str = "one ",
    with_usage: bool = True,
    continuous: bool = False,
) -> bytes:
    """Returns a stream of three tokens. `with_usage`: at the end, `continuous`: in each event."""
    events = []
    for tokens in (1, 2, 3):
        event: dict[str, Any] = {"id": "cmpl-1", "choices": _choices(api, text, n)}
        events.append(event | ({"usage": usage(5, tokens)} if continuous else {}))
    if with_usage:
        events.append({"id": "cmpl-1", "choices": [], "usage": usage(5, 3 * n)})
    return b"".join(map(sse, events)) + DONE


def openai_answer(api: Endpoint, *, n: int = 1, after: str = "") -> bytes:
    """Not streamed. `after`: text that follows the counts, as `prompt_text` does."""
    choice = {"message": {"content": MISLEADING}} if api is apis.CHAT else {"text": MISLEADING}
    document = {"id": "cmpl-1", "choices": [choice] * n, "usage": usage(5, 3 * n)}
    return json.dumps(document | {"prompt_text": after, "kv_transfer_params": None}).encode()


def message_stream(*, at_end: bool, length: int = 3) -> bytes:
    """As vLLM sends it: all counts again in the last event (`at_end`), or as Anthropic does."""
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}
    first = {"input_tokens": 5} if at_end else {"input_tokens": 1, **cached}
    message = {"id": "msg_1", "usage": {**first, "output_tokens": 0}}
    counts = {"output_tokens": 3} | ({"input_tokens": 1, **cached} if at_end else {})
    delta = {"type": "text_delta", "text": MISLEADING}
    events: list[Any] = [{"type": "message_start", "message": message}]
    events += [{"type": "content_block_delta", "index": 0, "delta": delta}] * length
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counts}]
    return b"".join(map(named, [*events, {"type": "message_stop"}]))


def response(text: str, user: str = "", counts: Any = None) -> dict[str, Any]:
    """A response of /v1/responses; its client's JSON is echoed in it."""
    schema = {"properties": {"usage": {"input_tokens": 1, "output_tokens": 2}, 'x"usage': {}}}
    return {
        "id": "resp_1", "output": [{"content": [{"type": "output_text", "text": text}]}],
        "tools": [{"type": "function", "parameters": schema}], "usage": counts, "user": user,
    }  # fmt: skip


RESPONSE_USAGE = {
    "input_tokens": 5, "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 8,
}  # fmt: skip


def response_stream(text: str = MISLEADING, user: str = "") -> bytes:
    deltas = [{"type": "response.output_text.delta", "delta": text}] * 3
    completed = response(text, user, RESPONSE_USAGE)
    return b"".join(
        named(event)
        for event in (
            {"type": "response.created", "response": response("", user)},
            *deltas,
            {"type": "response.completed", "response": completed},
        )
    )


_KNOWN = (5, 3, 4, 1)
_OF_TWO = (5, 6, 4, 1)
_MESSAGE = (5, 3, 4, None)
_LONG = "y" * 9000
_ERROR = {"error": {"message": MISLEADING, "code": 500}}
_STREAMED = sse({"id": "cmpl-1", "choices": [{"text": MISLEADING}]})

_FAILURES = [{"type": kind, "message": _LONG} for kind in ("error", "response.failed")]

SPOKEN = [
    *(
        spoken
        for api in (apis.CHAT, apis.COMPLETIONS)
        for spoken in (
            Spoken("stream", api, openai_stream(api, text=MISLEADING), _KNOWN),
            Spoken("n=2", api, openai_stream(api, n=2), _OF_TWO),
            Spoken("continuous", api, openai_stream(api, continuous=True), _KNOWN),
            Spoken("without usage", api, openai_stream(api, with_usage=False)),
            Spoken("answer", api, openai_answer(api), _KNOWN),
            Spoken("answer n=2", api, openai_answer(api, n=2), _OF_TWO),
            Spoken("long tail", api, openai_answer(api, after=_LONG), _KNOWN),
            Spoken("error", api, _STREAMED + sse(_ERROR) + DONE, failed=True),
        )
    ),
    Spoken("stream", apis.MESSAGES, message_stream(at_end=True), _MESSAGE),
    Spoken("as Anthropic", apis.MESSAGES, message_stream(at_end=False), _MESSAGE),
    Spoken("long", apis.MESSAGES, message_stream(at_end=False, length=60), _MESSAGE),
    Spoken(
        "answer",
        apis.MESSAGES,
        b'{"usage": {"input_tokens": 5, "output_tokens": 3}}',
        (5, 3, None, None),
    ),
    Spoken(
        "error",
        apis.MESSAGES,
        named({"type": "message_start", "message": {}})
        + named({"type": "error", "error": {"type": "internal_error", "message": _LONG}}),
        failed=True,
    ),
    Spoken("stream", apis.RESPONSES, response_stream(), _KNOWN),
    Spoken("long", apis.RESPONSES, response_stream(_LONG, _LONG), _KNOWN),
    Spoken(
        "answer",
        apis.RESPONSES,
        json.dumps(response(MISLEADING, "me", RESPONSE_USAGE)).encode(),
        _KNOWN,
    ),
    *(
        Spoken(
            failure["type"],
            apis.RESPONSES,
            named({"type": "response.created"}) + named(failure),
            failed=True,
        )
        for failure in _FAILURES
    ),
]
