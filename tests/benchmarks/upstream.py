"""An upstream with known timing, to verify the figures of a load generator.

The first token of each answer is due a fixed time after its request, and each further token a fixed
time after the previous one. The actual times of requests and tokens are recorded, so that a
client's figures are compared with what happened. The upstream runs in a separate process, so that
a slow client delays only itself.

    with Upstream(Script(first_token_s=0.05, token_s=0.01, tokens=20)) as upstream:
        ...             # a load on upstream.url
        seen = upstream.seen()

`python -m tests.benchmarks.upstream --port 8000` serves until it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from orch_sidecar.tools.local.stack import Child, free_port, get_json

MODEL: Final = "scripted"
_LISTENS_WITHIN_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Script:
    """When tokens are due: seconds after the request came, seconds after the token before.

    `tokens` is how many, unless a request says `max_tokens`.
    """

    first_token_s: float = 0.050
    token_s: float = 0.010
    tokens: int = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the upstream saw it, in seconds of CLOCK_MONOTONIC (one for all processes
    of a machine). `written_s`: when each token was given to the socket; `id`: of its answer."""

    id: str
    arrived_s: float
    written_s: tuple[float, ...]
    due_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        return self.written_s[0] - self.arrived_s

    @property
    def tpot_s(self) -> float:
        return (self.written_s[-1] - self.written_s[0]) / (len(self.written_s) - 1)

    @property
    def latest_s(self) -> float:
        """By how much its latest token was late."""
        return max(w - d for w, d in zip(self.written_s, self.due_s, strict=True))


@dataclass(frozen=True, slots=True)
class Observed:
    """`wall_ahead_s`: what to add to a monotonic time for the wall clock's."""

    requests: tuple[Seen, ...]
    wall_ahead_s: float


class Upstream:
    """The server, as a process. Use as a context manager."""

    def __init__(self, script: Script, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "tests.benchmarks.upstream"]
        for name, value in {"port": self.port, **asdict(script)}.items():
            self._command += [f"--{name.replace('_', '-')}", str(value)]
        self._log = log
        self._child: Child | None = None

    def __enter__(self) -> Upstream:
        self._child = Child("upstream", self._command, os.environ, self._log)
        until = time.monotonic() + _LISTENS_WITHIN_S
        while True:
            try:
                get_json(f"{self.url}/v1/models")
                return self
            except OSError:
                if self._child.exit_code is not None or time.monotonic() > until:
                    self._child.stop(5.0)
                    raise
                time.sleep(0.05)

    def __exit__(self, *exc: object) -> None:
        if self._child is not None:
            self._child.stop(5.0)

    def seen(self) -> Observed:
        """What has been answered in full since the last `forget`, by arrival."""
        _, document = get_json(f"{self.url}/seen", 30.0)
        requests = [
            Seen(each["id"], each["arrived_s"], tuple(each["written_s"]), tuple(each["due_s"]))
            for each in document["requests"]
        ]
        requests.sort(key=lambda each: each.arrived_s)
        return Observed(tuple(requests), document["wall_ahead_s"])

    def forget(self) -> None:
        request = urllib.request.Request(f"{self.url}/seen", method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()


@dataclass(slots=True)
class _Server:
    script: Script
    requests: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/v1/completions", self.generate)
        app.router.add_post("/v1/chat/completions", self.generate)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/seen", self.seen)
        app.router.add_delete("/seen", self.forget)
        return app

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "root": MODEL}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def seen(self, request: web.Request) -> web.Response:
        ahead = time.time() - time.monotonic()
        return web.json_response({"requests": self.requests, "wall_ahead_s": ahead})

    async def forget(self, request: web.Request) -> web.Response:
        self.requests.clear()
        return web.Response()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        arrived_s = time.monotonic()
        body = await request.json()
        chat = request.path.endswith("/chat/completions")
        tokens = body.get("max_tokens") or body.get("max_completion_tokens") or self.script.tokens
        self.count += 1
        head = {
            "id": f"cmpl-{self.count}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": body.get("model", MODEL),
        }
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        first_due_s = arrived_s + self.script.first_token_s
        due_s = [first_due_s + index * self.script.token_s for index in range(tokens)]
        written_s = []
        for index, due in enumerate(due_s):
            await asyncio.sleep(due - time.monotonic())
            end = "length" if index == tokens - 1 else None
            piece = {"delta": {"content": " a"}} if chat else {"text": " a"}
            choice = {"index": 0, "finish_reason": end, **piece}
            event = _event(head | {"choices": [choice]})
            written_s.append(time.monotonic())
            await response.write(event)
        prompt = json.dumps(body.get("prompt") or body.get("messages")).count(" ") + 1
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
        }
        await response.write(_event(head | {"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        await response.write_eof()
        self.requests.append(
            {"id": head["id"], "arrived_s": arrived_s, "written_s": written_s, "due_s": due_s}
        )
        return response


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def main(words: Sequence[str] | None = None) -> None:
    plain = Script()
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m tests.benchmarks.upstream"
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--first-token-s", type=float, default=plain.first_token_s)
    parser.add_argument("--token-s", type=float, default=plain.token_s)
    parser.add_argument("--tokens", type=int, default=plain.tokens)
    given = parser.parse_args(words)
    script = Script(given.first_token_s, given.token_s, given.tokens)
    web.run_app(_Server(script).app(), host="127.0.0.1", port=given.port, print=None)


if __name__ == "__main__":
    main()
