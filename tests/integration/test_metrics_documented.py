"""The metrics, holds and states in the sidecar's documentation are those that a scrape returns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.documents import ROOT, quoted, rows, section
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import ScriptedEngine


def first_cells(page: str, heading: str, after: str = "") -> list[str]:
    """What the first cells of a section's tables name, of those after these words."""
    text = section(ROOT / "docs" / page, heading)
    text = text[text.index(after) :]
    return [name for first, *_ in rows(text) for name in quoted(first)]


async def test_every_metric_is_documented_and_no_other(
    engine: ScriptedEngine, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")  # for those of spans
    running = await start(
        request_log=str(tmp_path / "requests.jsonl"),
        api_keys_file=tmp_path / "keys.yaml",
        api_keys_required=False,
        batches=str(tmp_path / "batches"),
    )
    client = await running.client()
    text = (await client.get("/metrics")).body.decode()
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
    }
    documented = [
        name
        for name in first_cells("reference/metrics.md", "Metrics")
        if not name.startswith("vllm:")
    ]
    assert len(set(documented)) == len(documented)
    others = ("process_", "vllm:")  # the latter: Endpoint pickers
    assert set(documented) == {name for name in names if not name.startswith(others)}


async def test_every_hold_and_every_state_is_documented_and_no_other(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    metrics = await sidecar.metrics()
    holds = {
        match[1]
        for name in metrics
        if (match := re.fullmatch(r'orch_queue_blocked_by\{.*reason="(\w+)".*\}', name))
    }
    states = {
        match[1]
        for name in metrics
        if (match := re.fullmatch(r'orch_engine_state\{.*state="(\w+)".*\}', name))
    }
    assert set(first_cells("explanation/admission.md", "Constraints")) == holds
    assert set(first_cells("reference/operating.md", "Operating", "Engine states.")) == states
