"""Reads what the engine's state document reports: for admission, for metrics, and over time.

Pure: times are seconds of a monotonic clock. The documents are checked by `document`: each field
has the required type and range. Missing fields are unknown, and no default is guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from orch_sidecar.admission.types import EngineReport, StepTime
from orch_sidecar.engine_state.document import InvalidReport
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.contracts.lease_protocol import POOLING, WORKLOADS_BY_PATH, Claim

# What `report_of` reads; changes of other fields do not concern admission.
FIELDS: Final = frozenset(
    {
        "epoch", "slots_total", "running", "waiting", "prefilling", "foreign", "ctx_max",
        "kv_blocks_total", "kv_blocks_kept", "kv_groups", "kv_cache_usage", "preemptions_total",
        "batch_seen", "step_time", "prefill_tokens_per_s", "features", "sidecars", "contended",
        "foreign_interactive", "lora", "supported_workloads",
    }
)  # fmt: skip

# What takes a computation follows from these; they change seldom.
_DERIVED_FIELDS: Final = frozenset(
    {"kv_blocks_total", "kv_blocks_kept", "kv_groups", "step_time", "features"}
)

# Reports that are kept: a quarter of an hour, which is longer than nearly all requests take.
_MAX_SAMPLES: Final = 900
# Rates are means over this time, so that a step of seconds does not make them jump.
_RATE_WINDOW_S: Final = 5.0


def report_of(
    document: Mapping[str, Any],
    before: EngineReport | None = None,
    changed: Collection[str] = (),
) -> EngineReport:
    """Returns the report of a ready engine. Raises InvalidReport for an engine without slots.

    `before`: the report of the document before, which differed in the fields `changed` only: what
    follows from others is taken from it.
    """
    slots_total, foreign = document["slots_total"], document["foreign"]
    if not slots_total:
        raise InvalidReport(
            "slots_total is 0 in the report of a ready engine: it must be at least 1"
        )
    if before is None or not _DERIVED_FIELDS.isdisjoint(changed):
        features = document.get("features", {})
        kv, step_time = _kv_cache(document), step_time_of(document)
        chunk_tokens = _chunk_tokens(features)
        step_tokens = _positive_or_none(features.get("max_num_batched_tokens"))
    else:
        kv, step_time = before.kv, before.step_time
        chunk_tokens, step_tokens = before.chunk_tokens, before.step_tokens
    return EngineReport(
        epoch=document["epoch"],
        slots_total=slots_total,
        foreign=foreign,
        ctx_max=document.get("ctx_max"),
        kv=kv,
        kv_usage=document.get("kv_cache_usage", 0.0),
        preemptions_total=document.get("preemptions_total", 0),
        prefilling=document.get("prefilling", 0),
        waiting=document.get("waiting", 0),
        scheduled=_scheduled(document, foreign),
        sidecars=document.get("sidecars", 1),
        contended=document.get("contended", False),
        foreign_interactive=document.get("foreign_interactive", 0),
        batch_seen=document.get("batch_seen", 0) if _generates(document) else slots_total,
        step_time=step_time,
        prefill_tokens_per_s=document.get("prefill_tokens_per_s") or None,
        chunk_tokens=chunk_tokens,
        step_tokens=step_tokens,
        max_loras=_positive_or_none(document.get("features", {}).get("max_loras")) or 0,
        **_adapters(document.get("lora")),
    )


def _generates(document: Mapping[str, Any]) -> bool:
    """Whether the engine generates tokens; one that pools has no decode steps, and no time per
    token that a batch could make too long."""
    workloads = document.get("supported_workloads")
    return not workloads or not POOLING.issuperset(workloads)


def unserved_of(document: Mapping[str, Any]) -> frozenset[str]:
    """Returns the workloads that the engine does not serve; empty where it reports none."""
    workloads = document.get("supported_workloads")
    return frozenset(WORKLOADS_BY_PATH.values()).difference(workloads) if workloads else frozenset()


def _adapters(lora: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the fields of a report about LoRA adapters."""
    if lora is None:
        return {}
    return {
        "adapters_running": frozenset((*lora["running"], *lora["waiting"])),
        "adapters_foreign": frozenset(lora.get("foreign", ())),
        "adapters_wanted": frozenset(lora.get("wanted", ())),
        "adapters_joinable": lora.get("joinable", True),
    }


def _kv_cache(document: Mapping[str, Any]) -> KvCache | None:
    """Returns the KV cache; None for an engine without one, or that reports no groups of it."""
    blocks, entries = document.get("kv_blocks_total"), document.get("kv_groups")
    kept = document.get("kv_blocks_kept", 0)
    if not blocks or not entries:
        return None
    return KvCache(blocks, tuple(map(KvGroup.of, entries)), kept)


def _scheduled(document: Mapping[str, Any], foreign: int) -> int | None:
    """Returns the sequences in the scheduler that have leases."""
    running, waiting = document.get("running"), document.get("waiting")
    return None if running is None or waiting is None else max(0, running + waiting - foreign)


def _chunk_tokens(features: Mapping[str, Any]) -> int | None:
    """Returns the tokens of one prompt that a step reads at most; a threshold of 0 means no
    threshold."""
    whole = _positive_or_none(features.get("max_num_batched_tokens"))
    chunk = _positive_or_none(features.get("long_prefill_token_threshold"))
    return chunk if whole is None else min(whole, chunk or whole)


def _positive_or_none(value: Any) -> int | None:
    """Returns a positive integer, or None: the members of `features` are not checked."""
    return value if type(value) is int and value > 0 else None


def claim_of(document: Mapping[str, Any]) -> tuple[Claim | None, bool, int]:
    """Returns what the engine keeps of this sidecar's last call: what it claims, whether more
    waits, and the number of the call."""
    claim, waits = document.get("claim"), document.get("waits", False)
    number = document.get("claimed", 0)
    if claim is None:
        return None, waits, number
    return Claim(claim["cost"], claim["urgent"], claim.get("more", 0)), waits, number


def decode_steps_of(document: Mapping[str, Any]) -> list[tuple[int, int, float]] | None:
    """Returns batch size, decode steps of that size since the engine started, and their seconds.

    None if the engine does not report them.
    """
    counted = document.get("steps_by_batch")
    if counted is None:
        return None
    return [(int(batch), steps, seconds) for batch, (steps, seconds) in counted.items()]


def step_time_of(document: Mapping[str, Any]) -> StepTime | None:
    """Returns the measured step time; None until the engine reports one."""
    fit = document.get("step_time")
    if fit is None or not fit["largest"]:
        return None
    # A step time of 0 would predict that every deadline is met.
    if not fit["t0_ms"] + fit["c_ms"]:
        return None
    return StepTime(
        t0_ms=float(fit["t0_ms"]),
        c_ms=float(fit["c_ms"]),
        alpha=float(fit["alpha"]),
        largest=fit["largest"],
        tokens=max(1.0, float(fit.get("tokens", 1))),
        good=fit["quality"] == "good",
        traffic=max(1.0, float(fit.get("traffic", 1))),
        prompt_share=float(fit.get("prompt_share", 0)),
    )


def models_of(document: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the names of the served models, the base model first; None if not reported."""
    return tuple(document.get("models", ())) or None


class _Counts(NamedTuple):
    """The engine's counts since its start, as of `at`."""

    at: float
    steps: int
    sequences: int
    tokens: int
    prompt_tokens: int


class StepHistory:
    """The decode steps and the tokens of one engine in the last minutes, from the counts that it
    reports each second."""

    def __init__(self) -> None:
        self._counts: deque[_Counts] = deque(maxlen=_MAX_SAMPLES)
        self._epoch: object = None

    @property
    def known_until(self) -> float:
        """The time of the last report; minus infinity before the first."""
        return self._counts[-1].at if self._counts else float("-inf")

    def add(self, document: Mapping[str, Any], at: float) -> None:
        """Adds a report. Another epoch starts from nothing."""
        if document.get("epoch") != self._epoch:
            self._epoch = document.get("epoch")
            self._counts.clear()
        decoded = decode_steps_of(document) or []
        self._counts.append(
            _Counts(
                at,
                sum(steps for _, steps, _ in decoded),
                sum(batch * count for batch, count, _ in decoded),
                document.get("generated_tokens_total", 0),
                (document.get("prefill") or {}).get("tokens", 0),
            )
        )

    def token_rates(self) -> dict[str, float | None]:
        """Returns recent generated and prompt tokens per second; None until two reports are
        known."""
        counts = self._counts
        if len(counts) < 2:
            return {"tokens_per_s": None, "prompt_tokens_per_s": None}
        last = counts[-1]
        since = next(each for each in counts if last.at - each.at <= _RATE_WINDOW_S)
        if since is last:
            since = counts[-2]
        seconds = last.at - since.at
        return {
            "tokens_per_s": round((last.tokens - since.tokens) / seconds, 1),
            "prompt_tokens_per_s": round((last.prompt_tokens - since.prompt_tokens) / seconds, 1),
        }

    def mean_batch(self, start: float, end: float) -> float | None:
        """Returns the mean batch of the decode steps between two times, interpolated between the
        reports; None where it is not known, or there were none."""
        if not self._counts or start < self._counts[0].at or end > self._counts[-1].at:
            return None
        steps_0, sequences_0 = self._at(start)
        steps_1, sequences_1 = self._at(end)
        steps = steps_1 - steps_0
        return round((sequences_1 - sequences_0) / steps, 1) if steps > 0 else None

    def _at(self, at: float) -> tuple[float, float]:
        """Returns the steps and sequences at a time within the reports."""
        before = after = self._counts[0]
        for after in self._counts:
            if after.at >= at:
                break
            before = after
        width = after.at - before.at
        part = (at - before.at) / width if width > 0 else 0.0
        return (
            before.steps + part * (after.steps - before.steps),
            before.sequences + part * (after.sequences - before.sequences),
        )
