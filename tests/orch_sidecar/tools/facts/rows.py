"""Facts and tables for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row, format_notes
from orch_sidecar.tools.facts.tables.table import Fault, Table, with_records

LEGACY = Path(__file__).with_name("legacy.csv")
HEADER = ",".join(COLUMNS)

# The notes of an engine that reports its settings.
SETTINGS: dict[str, Any] = {
    "speculative": "none",
    "quantization": "none",
    "kv_cache_dtype": "bfloat16",
    "prefix_caching": "on",
    "attention_backend": "FLASH_ATTN",
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "prefix_hit_ratio": 0.0,
}

SOUND = {
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "model_name": "Llama 3.1 8B",
    "engine": "vLLM 0.32.0",
    "precision": "BF16",
    "gpu": "H100",
    "gpu_count": "1",
    "batch": "32",
    "input_tokens": "512",
    "output_tokens": "512",
    "throughput_tokens_per_sec": "2461.67",
    "measurement_type": "batched_online",
    "scenario_notes": "input_tokens=512; output_tokens=512; batching=on",
    "source_tag": "run-1",
}


def fields(**changes: str) -> tuple[str, ...]:
    """Returns the fields of a valid row, with changes."""
    assert set(changes) <= set(COLUMNS)
    return tuple({**SOUND, **changes}[name] for name in COLUMNS)


def table(*rows: tuple[str, ...], name: str = "t.csv") -> Table:
    """Returns a table of records, whose rows begin in line 2."""
    return with_records(Table(name), [COLUMNS, *rows])


def fact(label: Label = Label.BATCHED_ONLINE, **changes: Any) -> Row:
    """Returns a valid row, with changes; notes that are not given follow from the columns."""
    single = label is Label.SINGLE_STREAM
    values: dict[str, Any] = {
        **SOUND,
        "gpu_count": 1,
        "batch": 1 if single else 32,
        "input_tokens": 512,
        "output_tokens": 512,
        "throughput_tokens_per_sec": 92.72 if single else 2461.67,
        "measurement_type": label,
        **changes,
    }
    notes: dict[str, str | int | float] = {
        "input_tokens": values["input_tokens"],
        "output_tokens": values["output_tokens"],
        "batching": "off" if single else "on",
    }
    extra = values.pop("notes", {})
    if "scenario_notes" not in changes:
        values["scenario_notes"] = format_notes(notes | extra)
    return Row(**values)


def places(faults: Iterable[Fault]) -> list[tuple[int, str]]:
    """Returns line and column name of each fault."""
    return [(each.record.line, (*COLUMNS, "(no column)")[each.index]) for each in faults]
