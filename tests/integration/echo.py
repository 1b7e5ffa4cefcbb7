"""Answers of all APIs that repeat what was asked: an answer shows which request it is to."""

from __future__ import annotations

import asyncio
from typing import Any

from orch_sidecar.api.endpoints import ENDPOINTS
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import Client, Form, Response
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

Document = dict[str, Any]

TALK = [{"role": "user", "content": "hi"}]
# A small request of each API that takes slots, and the fields of one for several sequences.
ONE: dict[str, Document] = {
    "/v1/chat/completions": {"messages": TALK},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": TALK, "max_tokens": 4},
    "/v1/chat/completions/batch": {"messages": TALK},
    "/cohere/v2/chat": {"messages": TALK},
    "/v1/embeddings": {"input": "a"},
    "/v2/embed": {"texts": ["a"], "input_type": "search_query"},
    "/rerank": {"query": "q", "documents": ["a"]},
    "/v1/rerank": {"query": "q", "documents": ["a"]},
    "/v2/rerank": {"query": "q", "documents": ["a"]},
    "/score": {"queries": "q", "documents": "a"},
    "/v1/score": {"text_1": "q", "text_2": "a"},
    "/classify": {"input": "a"},
    "/pooling": {"input": "a"},
    "/generative_scoring": {"query": "q", "items": ["a"], "label_token_ids": [1, 2]},
    "/v1/systemone": {"questions": ["a"]},
    "/v1/decisions": {"questions": ["a"]},
    "/invocations": {"prompt": "a"},
    "/v1/audio/transcriptions": {"file": b"RIFF"},
    "/v1/audio/translations": {"file": b"RIFF"},
}
_FORMS = frozenset(path for path, each in ENDPOINTS.items() if each.form)
_WORDS = ["a", "bbb", "cc", "dddd", "e", "ff", "ggggg"]
_TALKS = [[{"role": "user", "content": word}] for word in _WORDS]
SEVERAL: dict[str, Document] = {
    "/v1/chat/completions": {"n": 7, "seed": 3},
    "/v1/completions": {"prompt": _WORDS},
    "/v1/chat/completions/batch": {"messages": _TALKS},
    "/v1/embeddings": {"input": _WORDS},
    "/v2/embed": {"texts": _WORDS},
    "/rerank": {"documents": _WORDS, "top_n": 4},
    "/v1/rerank": {"documents": _WORDS},
    "/v2/rerank": {"documents": _WORDS},
    "/score": {"documents": _WORDS},
    "/v1/score": {"text_1": _WORDS, "text_2": _WORDS[::-1]},
    "/classify": {"input": _WORDS},
    "/pooling": {"input": _WORDS},
    "/generative_scoring": {"items": _WORDS},
}
STREAMED = frozenset(
    {
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
        "/cohere/v2/chat", "/invocations", "/v1/audio/transcriptions", "/v1/audio/translations",
    }
)  # fmt: skip


def body_of(path: str, **more: Any) -> Document:
    body = {"model": "tiny"} | ONE[path] | more
    return Form(body) if path in _FORMS else body


def large_body_of(path: str, **more: Any) -> Document:
    return body_of(path) | SEVERAL[path] | more


class Echo:
    """A script of the engine. `held`: answers wait until they are released, in their order."""

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self.waiting: list[asyncio.Event] = []

    async def __call__(self, answer: Answer) -> None:
        if self.held:
            go = asyncio.Event()
            self.waiting.append(go)
            try:
                await go.wait()
            finally:
                if go in self.waiting:
                    self.waiting.remove(go)
        path, content = answer.request.path, answer.request.body
        if path in _FORMS:
            body = {"text": len(content), "stream": b'"stream"\r\n\r\ntrue' in content}
        else:
            body = answer.request.json()
        answer_to(answer, path, body)

    def release(self) -> None:
        self.waiting.pop(0).set()

    def release_all(self) -> None:
        """Those that come later, too."""
        self.held = False
        while self.waiting:
            self.release()


def holding(engine: ScriptedEngine) -> Echo:
    """Makes the engine hold what it is asked."""
    engine.answer = echo = Echo(held=True)
    return echo


async def directly(engine: ScriptedEngine, path: str, body: Document) -> Response:
    """The answer of the engine itself."""
    client = await Client.connect(engine.port)
    response = await client.request("POST", path, body)
    await client.close()
    return response


def answer_to(answer: Answer, path: str, body: Document) -> None:
    if path in ("/v1/chat/completions", "/v1/completions"):
        _choices(answer, path, body)
    elif path in _FORMS and not body["stream"]:
        answer.json(body)
    elif body.get("stream"):
        answer.head(200, EVENT_STREAM)
        answer.event({"type": "content-delta", "delta": body})
        answer.end()
    else:
        answer.json(_pooled(path, body))


def _choices(answer: Answer, path: str, body: Document) -> None:
    n, seed = body.get("n") or 1, body.get("seed") or 0
    chat = path.startswith("/v1/chat")
    prompts = body.get("prompt", "chat")
    prompts = [prompts] if isinstance(prompts, str) else prompts
    texts = [f"{prompt} {seed + choice}" for prompt in prompts for choice in range(n)]
    usage = {
        "prompt_tokens": sum(map(len, prompts)), "completion_tokens": len(texts),
        "total_tokens": sum(map(len, prompts)) + len(texts),
    }  # fmt: skip
    common: Document = {"id": answer.request.header("x-request-id"), "created": 1, "model": "tiny"}
    if not body.get("stream"):
        choices = [
            {"index": at, "finish_reason": "stop"}
            | ({"message": {"content": text}} if chat else {"text": text})
            for at, text in enumerate(texts)
        ]
        answer.json(common | {"choices": choices, "usage": usage})
        return
    answer.head(200, EVENT_STREAM)
    for at, text in enumerate(texts):
        for word in text:
            choice = {"delta": {"content": word}} if chat else {"text": word}
            answer.event(common | {"choices": [{"index": at, "finish_reason": None} | choice]})
    if (body.get("stream_options") or {}).get("include_usage"):
        answer.event(common | {"choices": [], "usage": usage})
    answer.event("[DONE]")
    answer.end()


def _pooled(path: str, body: Document) -> Document:
    if path.endswith("/batch"):
        talks = body["messages"]
        talks = talks if isinstance(talks[0], list) else [talks]
        texts = [talk[0]["content"] for talk in talks]
        return {"choices": [{"index": at, "text": text} for at, text in enumerate(texts)]}
    if path == "/v2/embed":
        floats = [[float(len(text))] for text in body["texts"]]
        counted = {"billed_units": {"input_tokens": len(floats)}}
        return {"embeddings": {"float": floats}, "texts": body["texts"], "meta": counted}
    if path.endswith("rerank"):
        ranked = [
            {"index": at, "relevance_score": len(text), "document": {"text": text}}
            for at, text in sorted(enumerate(body["documents"]), key=lambda each: -len(each[1]))
        ]
        top = body.get("top_n") or len(ranked)
        return {"results": ranked[:top], "usage": {"total_tokens": len(ranked)}}
    first, second = _inputs(body)
    data = [
        {"index": at, "embedding": [len(one) * 10 + len(other)]}
        for at, (one, other) in enumerate(zip(first, second, strict=True))
    ]
    return {"data": data, "usage": {"prompt_tokens": len(data), "total_tokens": len(data)}}


def _inputs(body: Document) -> tuple[list[str], list[str]]:
    one = next((body[each] for each in ("queries", "text_1", "query") if each in body), "")
    names = ("documents", "text_2", "items", "input", "questions", "prompt")
    other = next((body[each] for each in names if each in body), "")
    first, second = ([each] if isinstance(each, str) else each for each in (one, other))
    return first * len(second) if len(first) == 1 else first, second
