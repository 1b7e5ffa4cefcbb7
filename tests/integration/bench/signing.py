"""A scripted engine that signs statements about what it decodes, as the plugin does."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.integration.bench.decoding import Decoding
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer
from vllm_plugin.api_server.statements_endpoint import encode, parse_request
from vllm_plugin.contracts.lease_protocol import timestamp
from vllm_plugin.contracts.statement import STATEMENTS_PATH
from vllm_plugin.evidence.chains import Evidence
from vllm_plugin.evidence.epoch_key import make_epoch_key


class Signing:
    """Answers `POST /v1/evidence/statements`, with a key that `operator_key` certifies, if given.

    `fails`: as many of the next requests get this status instead. `silent_after`: so many requests
    are answered, and none after them.
    """

    def __init__(
        self, engine: ScriptedEngine, decoding: Decoding, operator_key: Path | None = None
    ) -> None:
        self.fails: list[int] = []
        self.silent_after: int | None = None
        self.asked: list[dict[str, Any]] = []
        self._engine = engine
        epoch = engine.engine_state.facts.epoch
        self.evidence = Evidence(
            epoch,
            self._document,
            lambda: {"weights": {"sha256": "cd" * 32}, "plugin": {"sha256": "ab" * 32}},
            lambda: make_epoch_key(epoch, operator_key, time.time()),
        )
        decoding.finished = self._finished
        engine.pages[STATEMENTS_PATH] = self._answer
        state = engine.engine_state
        state.conditions = replace(state.conditions, loaded="0123456789abcdef")
        engine.report(features={"evidence": True}, conditions=asdict(state.conditions))

    def _answer(self, answer: Answer) -> None:
        self.asked.append(answer.request.json())
        if self.silent_after is not None and len(self.asked) > self.silent_after:
            return
        if self.fails:
            answer.json({"error": {"message": "not now", "code": 429}}, self.fails.pop())
            return
        wanted = parse_request(answer.request.body)
        made = self.evidence.statement(wanted, time.time(), time.monotonic())
        body = b"".join(encode(made, self.evidence))
        fields = [("content-type", "application/json"), ("content-length", str(len(body)))]
        answer.head(200, fields, chunked=False)
        answer.write(body)

    def _document(self, at_s: float) -> dict[str, Any]:
        observed = {"observed_at": timestamp(at_s), "age_ms": 0}
        return self._engine.engine_state.document(None, at_s) | observed

    def _finished(self, answer: Answer, arrived_s: float) -> None:
        body, now_s = answer.request.json(), time.time()
        finished = SimpleNamespace(
            request_id=f"cmpl-{self.evidence.finished.count}",
            finish_reason="length",
            e2e_latency=now_s - arrived_s,
            queued_time=0.0,
            prefill_time=0.001,
            decode_time=now_s - arrived_s - 0.001,
            num_prompt_tokens=len(body["prompt"]),
            num_generation_tokens=body["max_tokens"],
            num_cached_tokens=0,
        )
        self.evidence.finished.add([finished], now_s)
