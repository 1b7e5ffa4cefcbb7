"""A scripted engine that works: answers of some seconds, and the counts of its steps."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from tests.integration.answers import EVENT_STREAM
from tests.integration.scripted_engine import STEP_TIME, ScriptedEngine
from tests.integration.wire import Answer

STEP_S = 0.05


async def words(answer: Answer) -> None:
    """A stream of some seconds."""
    answer.head(200, EVENT_STREAM)
    for _ in range(random.randint(10, 60)):
        answer.event({"choices": [{"index": 0, "delta": {"content": "word "}}]})
        await asyncio.sleep(STEP_S)
    answer.event("[DONE]")
    answer.end()


async def step(engine: ScriptedEngine) -> None:
    """Counts the engine's steps, as its plugin would."""
    steps: Counter[int] = Counter()
    last: list[int] = []
    while True:
        for _ in range(20):
            await asyncio.sleep(STEP_S)
            if batch := engine.present:
                steps[batch] += 1
                last = [*last[-119:], batch]
        counted = {str(batch): [count, count * 0.012] for batch, count in steps.items()}
        tokens = sum(batch * count for batch, count in steps.items())
        engine.report(
            steps_by_batch=counted, last_batches=last, generated_tokens_total=tokens,
            step_time=STEP_TIME,
        )  # fmt: skip
