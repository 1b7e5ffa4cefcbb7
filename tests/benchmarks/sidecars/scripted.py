"""A scripted engine as a program: `python -m tests.benchmarks.sidecars.scripted --port N`.

A sequence takes STEP_S per token. Its state document counts the prompts that were answered more
than once.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from typing import Final

import uvloop

from tests.benchmarks.policy.work import MODEL
from tests.integration.answers import EVENT_STREAM
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

STEP_S: Final = 0.005


class CountingEngine(ScriptedEngine):
    """Streams as many tokens as it is asked for."""

    def __init__(self, slots: int, port: int) -> None:
        super().__init__(slots, models=(MODEL,), port=port)
        self.answer = self._generate_tokens
        self.pages["/v1/capabilities"] = self._capabilities
        self._answered = Counter[str]()

    async def serve(self, answer: Answer) -> None:
        self.received.clear()
        self.revoked.clear()
        await super().serve(answer)

    async def _generate_tokens(self, answer: Answer) -> None:
        body = answer.request.json()
        chunk = {
            "id": f"cmpl-{self.engine_state.leases.entered}-{answer.request.connection}",
            "object": "text_completion",
            "model": MODEL,
            "choices": [{"index": 0, "text": " word", "finish_reason": None}],
        }
        answer.head(200, EVENT_STREAM)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(STEP_S)
            answer.event(chunk)
        answer.event("[DONE]")
        answer.end()
        self._answered[body["prompt"]] += 1

    def _capabilities(self, answer: Answer) -> None:
        entry = self.engine_state.document(None) | {
            "peak": self.peak,
            "running": self.present,
            "answered_twice": sum(1 for count in self._answered.values() if count > 1),
        }
        answer.json({"engines": [entry]})


async def _run(slots: int, port: int) -> None:
    await CountingEngine(slots, port).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    uvloop.run(_run(given.slots, given.port))


if __name__ == "__main__":
    main()
