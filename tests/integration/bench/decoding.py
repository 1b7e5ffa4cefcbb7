"""An engine that decodes in steps: every sequence in it gets a token of each, as vLLM's do.

It reports its counts as the plugin does, so that a sidecar's `/v1/capabilities` shows its work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.integration.answers import EVENT_STREAM
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer
from vllm_plugin.state.engine_speed import SchedulerReport

_REPORTED = ("requests_total", "steps_by_batch", "generated_tokens_total", "prefill")


@dataclass(slots=True)
class _Sequence:
    answer: Answer
    left: int
    over: asyncio.Event
    arrived_s: float = field(default_factory=time.time)


class Decoding:
    """The script. `step_s`: how long a step takes, whatever the batch. `most`: as many sequences
    are in it at most. `usage`: whether answers tell how many tokens they had."""

    def __init__(self, engine: ScriptedEngine, *, step_s: float = 0.004) -> None:
        self.step_s = step_s
        self.most = engine.slots
        self.usage = True
        self.finished: Callable[[Answer, float], None] = lambda answer, arrived_s: None
        self._engine = engine
        self._running: list[_Sequence] = []
        self._stepping = False
        engine.answer = self
        self.report()

    def report(self) -> None:
        """The counts as of now, as the next heartbeat would tell them."""
        counts = self._engine.engine_state.heartbeat_fields()
        self._engine.report(**{name: counts[name] for name in _REPORTED})

    async def __call__(self, answer: Answer) -> None:
        body = answer.request.json()
        sequence = _Sequence(answer, body["max_tokens"], asyncio.Event())
        answer.head(200, EVENT_STREAM)
        self._running.append(sequence)
        self._read(len(body["prompt"]))
        if not self._stepping:
            self._stepping = True
            self._engine.run(self._step())
        try:
            await sequence.over.wait()
        finally:
            if sequence in self._running:
                self._running.remove(sequence)
        if self.usage:
            tokens = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
            answer.event({"choices": [], "usage": tokens})
        answer.event("[DONE]")
        answer.end()

    def _read(self, prompt_tokens: int) -> None:
        """A step of no length that reads a prompt, and generates nothing yet."""
        at_s, running = asyncio.get_running_loop().time(), len(self._running)
        self._engine.engine_state.record(
            SchedulerReport(at_s, running, 0, 0.0, 0, 1, prompt_tokens=prompt_tokens)
        )

    async def _step(self) -> None:
        engine_state, loop = self._engine.engine_state, asyncio.get_running_loop()
        while self._running:
            await asyncio.sleep(self.step_s)
            batch = self._running[: self.most]
            if batch:
                left = sum(sequence.left > 1 for sequence in batch)
                engine_state.record(
                    SchedulerReport(
                        loop.time(), left, 0, 0.0, 0, len(batch),
                        decode_only=True, elapsed_s=self.step_s, generated=len(batch),
                    )
                )  # fmt: skip
            for sequence in batch:
                self._generate(sequence)
        self._stepping = False
        if engine_state is self._engine.engine_state:
            self.report()

    def _generate(self, sequence: _Sequence) -> None:
        sequence.left -= 1
        end = None if sequence.left else "length"
        sequence.answer.event({"choices": [{"index": 0, "text": " a", "finish_reason": end}]})
        if not sequence.left:
            self._running.remove(sequence)
            self.finished(sequence.answer, sequence.arrived_s)
            sequence.over.set()
