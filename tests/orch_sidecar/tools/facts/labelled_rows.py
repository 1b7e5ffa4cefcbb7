"""Rows with all notes of a real run, one for each label and source, and tables of altered ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orch_sidecar.tools.facts.tables.row import COLUMNS
from orch_sidecar.tools.facts.tables.table import check
from tests.orch_sidecar.tools.facts.cheats import Cheat, Gate, said_of_table
from tests.orch_sidecar.tools.facts.rows import SOUND, places, table

Changes = Mapping[str, str | None]

_CONDITIONS = {
    "speculative": "none",
    "quantization": "none",
    "kv_cache_dtype": "bfloat16",
    "prefix_caching": "on",
    "attention_backend": "FLASH_ATTN",
    "tensor_parallel": "1",
    "pipeline_parallel": "1",
    "prefix_hit_ratio": "0.25",
}
_LENGTHS = {"input_tokens": "512", "output_tokens": "512"}
_LATENCIES = {
    "ttft_p50_ms": "80",
    "ttft_p95_ms": "120.5",
    "tpot_p50_ms": "13",
    "tpot_p95_ms": "14.2",
    "latency_p50_ms": "6700",
    "latency_p90_ms": "7100.25",
    "latency_p95_ms": "7300",
}

NOTES: Mapping[str, Mapping[str, str]] = {
    "single": {
        **_LENGTHS, "batching": "off", "tool": "orch bench", "arrivals": "one_by_one",
        "at_once": "1", "requests": "90", "window_s": "610.4", "seed": "1", **_LATENCIES,
        "profile": "home", "batch_mean": "1", "batch_max": "1", **_CONDITIONS,
    },
    "online": {
        **_LENGTHS, "batching": "on", "tool": "orch bench", "arrivals": "poisson",
        "rate_per_s": "1.2", "requests": "700", "window_s": "610", "seed": "1", **_LATENCIES,
        "goodput_share": "0.99", "profile": "cloud", "batch_mean": "7.8", "batch_max": "16",
        **_CONDITIONS,
    },
    "closed": {
        **_LENGTHS, "batching": "on", "tool": "orch bench", "arrivals": "closed_loop",
        "at_once": "16", "requests": "700", "window_s": "610", "seed": "1", **_LATENCIES,
        "profile": "cloud", "batch_mean": "7.8", "batch_max": "16", **_CONDITIONS,
    },
    "offline": {
        **_LENGTHS, "batching": "on", "tool": "orch bench", "arrivals": "at_once",
        "requests": "700", "window_s": "610", "seed": "1", "profile": "offline",
        "batch_mean": "60.26", "batch_max": "64", **_CONDITIONS,
    },
    "traced": {
        **_LENGTHS, "batching": "on", "scenario": "20260501T080000Z-offline-ab12cd",
        "requests": "64", "window_s": "60", "profile": "offline", "batch_mean": "60.26",
        "batch_max": "64", "latency_p50_ms": "50000", "latency_p90_ms": "58000",
        "preliminary": "yes", **_CONDITIONS,
    },
    "claimed": {
        **_LENGTHS, "batching": "unknown", "tool": "vllm bench serve", "arrivals": "closed_loop",
        "at_once": "8", "requests": "64", "window_s": "60", **_LATENCIES, "claim": "batched_online",
        "batch_is": "overlap", "given": "engine,precision,gpu,gpu_count",
    },
}  # fmt: skip

COLUMNS_OF: Mapping[str, Mapping[str, str]] = {
    "single": {
        "batch": "1",
        "throughput_tokens_per_sec": "75.4915",
        "measurement_type": "single_stream",
        "source_tag": "orch-bench:20260501T080000Z-single_stream-ab12cd",
    },
    "online": {
        "batch": "8",
        "throughput_tokens_per_sec": "587.541",
        "source_tag": "orch-bench:20260501T080000Z-batched_online-ab12cd",
    },
    "closed": {
        "batch": "8",
        "throughput_tokens_per_sec": "587.541",
        "source_tag": "orch-bench:20260501T090000Z-batched_online-ab12cd",
    },
    "offline": {
        "batch": "60",
        "throughput_tokens_per_sec": "587.541",
        "measurement_type": "offline",
        "source_tag": "orch-bench:20260501T080000Z-offline-ab12cd",
    },
    "traced": {
        "batch": "60",
        "throughput_tokens_per_sec": "546.133",
        "measurement_type": "offline",
        "source_tag": "jaeger:orch-sidecar/20260501T080000Z-offline-ab12cd",
    },
    "claimed": {
        "batch": "8",
        "throughput_tokens_per_sec": "546.133",
        "measurement_type": "to_be_confirmed",
        "source_tag": "result.json sha256:0123456789ab",
    },
}


def altered(base: str, cells: Changes | None = None, notes: Changes | None = None) -> list[str]:
    """Returns the fields of a row with changes; a note that changes to None is removed."""
    changed = {**NOTES[base], **(notes or {})}
    text = "; ".join(f"{name}={value}" for name, value in changed.items() if value is not None)
    row = {**SOUND, **COLUMNS_OF[base], "scenario_notes": text, **(cells or {})}
    return [str(row[name]) for name in COLUMNS]


@dataclass(frozen=True)
class Way:
    """One attempt: the changes of a valid row, and the expected fault, or none.

    `column`: where the fault is located, `rule`: a part of its text with the value. Both are empty
    where the row is accepted.
    """

    name: str
    base: str
    notes: Changes = field(default_factory=dict)
    cells: Changes = field(default_factory=dict)
    column: str = "scenario_notes"
    rule: str = ""

    @property
    def cheat(self) -> Cheat:
        rules = dict.fromkeys((Gate.CHECK, Gate.VERIFY), self.rule) if self.rule else {}
        return Cheat(f"{self.name} ({self.base})", rules, self._said)

    def _said(self) -> Mapping[Gate, str]:
        made = table(tuple(altered(self.base, self.cells, self.notes)))
        here = [each.text for each in check(made) if places([each]) == [(2, self.column)]]
        said = said_of_table(made)
        return said | {Gate.CHECK: "; ".join(here) or said[Gate.CHECK]}


def faults_of(*rows: Sequence[str]) -> list[tuple[int, str, str]]:
    """Returns line, column and text of each fault of a table of these rows."""
    return [(*places([each])[0], each.text) for each in check(table(*map(tuple, rows)))]
