"""An engine that signs what it does, with literal clocks, and the row of a run of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.measured import Model, engine_between, engine_of
from orch_sidecar.tools.facts.labels.measured import row_of as measured_row
from orch_sidecar.tools.facts.labels.observation import Batches, Run, States
from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot
from orch_sidecar.tools.facts.signing.files import (
    Signed,
    TrustedKeys,
    digest,
    entry_of,
    evidence_of,
    parse_trusted,
)
from orch_sidecar.tools.facts.signing.verdict import Verified, Verifier
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row, format_notes, parse_notes
from tests.vllm_plugin.examples import FACTS
from vllm_plugin.contracts import statement
from vllm_plugin.contracts.lease_protocol import timestamp
from vllm_plugin.evidence.chains import Evidence, Statement, StatementRequest
from vllm_plugin.evidence.epoch_key import EpochKey, certify
from vllm_plugin.state.engine_facts import EngineFacts
from vllm_plugin.state.engine_speed import SchedulerReport
from vllm_plugin.state.engine_state import EngineState

BEGIN_S = 1_790_000_000.0
DAY_S = 86_400.0
OBSERVED = {"observed_at": timestamp(BEGIN_S), "age_ms": 0}
RUN, NONCE = "20260921T133320Z-batched_online-abc123", "0123456789abcdef" * 4
STEP_S, PROMPT_TOKENS = 0.010, 20


LOADED = "0123456789abcdef"


# The notes that are the client's word.
CLIENTS = [
    *("arrivals", "at_once", "seed", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms"),
    *("latency_p50_ms", "latency_p90_ms", "latency_p95_ms", "client_bottleneck"),
]


class Operator:
    """An operator's key, valid from a day before the engine's start for a year."""

    def __init__(self, name: str = "lab") -> None:
        self.name = name
        self.private = Ed25519PrivateKey.generate()
        self.public = self.private.public_key().public_bytes_raw()

    def trusted(self, from_s: float = BEGIN_S - DAY_S, days: float = 365) -> TrustedKeys:
        begin, end = (datetime.fromtimestamp(at, UTC) for at in (from_s, from_s + days * DAY_S))
        return parse_trusted(entry_of(self.name, self.public, begin, end))


class SigningEngine:
    """An engine of 8 slots whose clocks stand still but for its steps."""

    def __init__(
        self,
        operator: Operator | None = None,
        started_s: float = BEGIN_S,
        facts: EngineFacts = FACTS,
        **conditions: Any,
    ) -> None:
        self.now_s = started_s
        self.monotonic_s = 5000.0
        self.engine_state = EngineState(facts)
        self.engine_state.conditions = replace(facts.conditions, **{"loaded": LOADED} | conditions)
        private = Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        certificate = (
            None if operator is None else certify(operator.private, FACTS.epoch, public, started_s)
        )
        self.private = private
        self.key = EpochKey(public, private.sign, certificate)
        self.digests: dict[str, dict[str, str | None]] = {
            name: {"sha256": 64 * name[0]} for name in ("weights", "plugin")
        }
        self.evidence = Evidence(FACTS.epoch, self._document, self._digests, lambda: self.key)

    def _document(self, at_s: float) -> dict[str, Any]:
        return self.engine_state.document(None, at_s) | OBSERVED | {"observed_at": timestamp(at_s)}

    def _digests(self) -> dict[str, Any]:
        return {name: dict(each) for name, each in self.digests.items()}

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.monotonic_s += seconds

    def decode(
        self, batch: int, tokens: int, *, of_one_request: bool = False, prompts: int = 1
    ) -> None:
        """Serves `batch` requests side by side, or as many sequences of one request, of as many
        generated tokens each. `prompts`: of one request, which share its sequences."""
        began_s = self.now_s
        keys = [self.engine_state.enter(None) for _ in range(1 if of_one_request else batch)]
        self.engine_state.record(
            SchedulerReport(
                self.now_s, batch, 0, 0.0, 0, batch, prompt_tokens=batch * PROMPT_TOKENS
            )
        )
        for _ in range(tokens):
            self.wait(STEP_S)
            self.engine_state.record(
                SchedulerReport(
                    self.now_s, batch, 0, 0.0, 0, batch,
                    decode_only=True, elapsed_s=STEP_S, decoding=batch, generated=batch,
                )
            )  # fmt: skip
        self.engine_state.record(SchedulerReport(self.now_s, 0, 0, 0.0, 0))
        for key in keys:
            assert isinstance(key, int)
            assert key is not None
            self.engine_state.leave(key)
        for number in range(batch):
            finished = SimpleNamespace(
                request_id=f"cmpl-secret-{keys[number % len(keys)]}-{number % prompts}",
                finish_reason="length",
                e2e_latency=self.now_s - began_s,
                queued_time=0.0,
                prefill_time=0.0,
                decode_time=self.now_s - began_s,
                num_prompt_tokens=PROMPT_TOKENS,
                num_generation_tokens=tokens,
                num_cached_tokens=0,
            )
            self.evidence.finished.add([finished], self.now_s)

    def ask(self, since: int | None = None, nonce: str | None = NONCE, run: str = RUN) -> Statement:
        request = StatementRequest(run, nonce, since)
        return self.evidence.statement(request, self.now_s, self.monotonic_s)

    def measure(
        self, batch: int = 3, tokens: int = 6, nonce: str | None = NONCE, run: str = RUN
    ) -> Signed:
        """A run of as many requests at once, with a statement before and after."""
        before = self.ask(nonce=nonce, run=run)
        self.wait(0.02)
        self.decode(batch, tokens)
        self.wait(0.02)
        after = self.ask(content_of(before.envelope)["sequence"], nonce, run)
        return self.signed(before, after, nonce, run)

    def signed(
        self, before: Statement, after: Statement, nonce: str | None = NONCE, run: str = RUN
    ) -> Signed:
        assert after.between is not None
        assert after.leaves is not None
        return Signed(
            run=run,
            nonce=nonce,
            public_key=self.evidence.public_key,
            certificate=self.key.certificate,
            before=before.envelope,
            after=after.envelope,
            between=after.between,
            leaves=after.leaves,
        )


def content_of(envelope: statement.Envelope) -> dict[str, Any]:
    """The content of a statement."""
    content: dict[str, Any] = json.loads(statement.from_base64("payload", envelope["payload"]))
    return content


def resigned(
    envelope: statement.Envelope,
    change: Callable[[dict[str, Any]], object],
    private: Ed25519PrivateKey,
) -> statement.Envelope:
    """A statement whose content was changed, signed with this key."""
    content = content_of(envelope)
    change(content)
    payload = json.dumps(content, separators=(",", ":")).encode()
    signature = private.sign(statement.pae(statement.STATEMENT_TYPE, payload))
    identity = statement.key_id(private.public_key().public_bytes_raw())
    return statement.envelope(
        statement.Signed(statement.STATEMENT_TYPE, payload, identity, signature)
    )


def row_of(batch: int = 3, tokens: int = 6, run: str = RUN, **changes: Any) -> Row:
    """The row that `orch bench` makes of `SigningEngine.measure`, with changes.

    `notes`: further notes, or others; None: without it.
    """
    window_s, ttft_s = STEP_S * tokens + 0.002, 0.0115  # the client is a little further away
    state = parse_snapshot({"engines": [EngineState(FACTS).document(None) | OBSERVED]})
    served = [CompletedRequest(0.0, ttft_s, window_s, PROMPT_TOKENS, tokens)] * batch
    found = figures(served)
    load, named = Load(arrivals=Arrivals.CLOSED_LOOP, clients=batch, seed=1), {"tool": "orch bench"}
    settings = {**engine_between(States(state, state)).settings, "loaded": LOADED}
    batches = Batches(tokens, batch, float(batch))
    engine = replace(engine_of(state), batches=batches, settings=settings)
    measured = Run(model="tiny", totals=found, load=load, named=named)
    model, tag = Model("tiny", "tiny", ()), f"orch-bench:{run}"
    row = measured_row(measured, Label.BATCHED_ONLINE, engine, model, tag)
    notes = parse_notes(row.scenario_notes) | changes.pop("notes", {})
    kept = {name: value for name, value in notes.items() if value is not None}
    return replace(row, scenario_notes=format_notes(kept), **changes)


def result_of(row: Row) -> dict[str, Any]:
    """What the client recorded of this row, as far as the row says."""
    notes = parse_notes(row.scenario_notes)
    ttft_s, window_s = float(notes["ttft_p50_ms"]) / 1000, float(notes["window_s"])
    call = [
        *(None, 0.0, ttft_s, window_s, 200, "answered", ""),
        *(row.input_tokens, row.output_tokens, None, None),
    ]
    return {
        "id": row.source_tag.partition(":")[2],
        "measurement_type": row.measurement_type.value,
        "client": {"bottleneck": []},
        "counts": {"counted_by_events": 0},
        "engine": {
            "model": notes.get("served_as", row.model_id),
            "model_id": row.model_id,
            "model_name": row.model_name,
            "given": [],
        },
        "scenario": {
            "arrivals": "closed_loop",
            "clients": int(notes["at_once"]),
            "seed": 1,
            "slo_ms": {},
        },
        "calls": [call] * int(notes["requests"]),
    }


def evidence_and_row(signed: Signed, row: Row | None = None) -> tuple[bytes, Row]:
    """The bytes of an evidence file, and the row that names it."""
    row = row_of() if row is None else row
    return evidence_of(signed, row, result_of(row))


def verified(
    content: bytes, trusted: TrustedKeys, row: Row | None = None, name: str | None = None
) -> Verified:
    """The verdict on the evidence file with this content, by default of the name for that."""
    named = name or digest(content)
    return Verifier({named: content}.get, trusted).evidence(named, row)
