"""Runs both tools against the sidecar with the real engine, and imports their files.

A single-stream load on a `home` engine and Poisson arrivals on a `cloud` engine, each with
`/v1/capabilities` before and after. The table shows the imported rows and `orch bench`'s figures of
the same loads beside the engine's counters.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.facts.evidence import guidellm, vllm_bench
from orch_sidecar.tools.facts.evidence.imported import (
    read_run,
    to_row,
)
from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.labels.observation import Run, States
from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes
from orch_sidecar.tools.facts.tables.table import valid_rows
from orch_sidecar.tools.local.stack import Plan, Stack, get_json
from tests.benchmarks.imports import tools, trim
from tests.benchmarks.imports.counted import Counted, Spans, counted, generated_tokens
from tests.benchmarks.imports.tools import ONE_WORKER, Load, Ran, Target
from tests.benchmarks.policy.record import shown, table
from tests.benchmarks.policy.rig import model_directory

# A step of the tiny model is shorter than what two busy cores make a client wait for its turn.
MODEL: Final = "small"
_READY_WITHIN_S: Final = 300.0
_IDLE_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A profile's engine, the load on it, and the label that it should earn."""

    profile: str
    slots: int | None
    load: Load
    label: Label


SETTINGS: Final = (
    Setting("home", None, Load(20, None, output_tokens=32), Label.SINGLE_STREAM),
    Setting("cloud", 8, Load(45, 3.0, output_tokens=32), Label.BATCHED_ONLINE),
)


@dataclass(frozen=True, slots=True)
class Tool:
    """How a tool is run with a claim, how its result becomes a row, and how it is made a fixture
    (None: it is not)."""

    name: str
    run: Callable[[Target, Load, Path, Label], Ran]
    row: Callable[[Path, States], Row | str]
    trim: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def _run_vllm_bench(target: Target, load: Load, result: Path, claim: Label) -> Ran:
    extra = ["--metadata", f"measurement_type={claim}", "--metric-percentiles", "90,95"]
    # Two of its random prompts may be the same, and would share a decode.
    extra += ["--header", "X-Orch-No-Coalesce=true"]
    return tools.vllm_bench(target, load, result, *extra)


def _run_guidellm(target: Target, load: Load, result: Path, claim: Label) -> Ran:
    # Its Poisson arrivals are none (orch_sidecar/tools/facts/evidence/guidellm.py).
    extra = ("--label", f"measurement_type={claim}")
    return tools.guidellm(target, replace(load, poisson=False), result, *extra)


def _imported(
    run: Callable[[object], Run],
) -> Callable[[Path, States], Row | str]:
    def row(result: Path, proof: States) -> Row | str:
        document = json.loads(result.read_text(encoding="utf-8"))
        return read_run(result.name, lambda: to_row(run(document), proof, Source(result.name)))

    return row


def _own_row(result: Path, proof: States) -> Row | str:
    """What `orch bench` made of it by itself."""
    facts = result.with_suffix(".csv")
    rows = [placed.row for placed in valid_rows(files.read(facts))] if facts.exists() else []
    return rows[0] if rows else f"{result.name}: made no row"


TOOLS: Final = (
    Tool("vllm_bench", _run_vllm_bench, _imported(vllm_bench.run), trim.vllm_bench),
    Tool("guidellm", _run_guidellm, _imported(guidellm.run), trim.guidellm),
    Tool("orch_bench", tools.orch_bench, _own_row),
)


@dataclass(frozen=True, slots=True)
class Round:
    """One tool in one setting."""

    tool: str
    label: Label
    made: Row | str
    engine: Counted


def run(logs: Path, fixtures: Path | None) -> list[Round]:
    """All settings with both tools; prints the table. Files go to `logs`, and, trimmed, to
    `fixtures` where it is given."""
    rounds = []
    for setting in SETTINGS:
        with Spans() as spans, _stack(setting, logs, spans) as stack:
            _warm(stack)
            for tool in TOOLS:
                rounds.append(_round(setting, tool, stack, spans, logs, fixtures))
    print(_table(rounds))
    return rounds


@contextmanager
def _stack(setting: Setting, logs: Path, spans: Spans) -> Iterator[Stack]:
    plan = Plan(
        profile=setting.profile,
        model=str(model_directory(MODEL)),
        served_name=MODEL,
        slots=setting.slots,
        # Every prompt is computed: a prefix cache would hide what prefill does.
        engine_arguments=("--no-enable-prefix-caching",),
        environ={
            "HF_HUB_OFFLINE": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        },
        log_directory=logs / setting.profile,
    )
    with Stack(plan) as stack:
        stack.wait_ready(_READY_WITHIN_S, lambda waited, what: None)
        yield stack


def _warm(stack: Stack) -> None:
    """What a first request costs the engine is in nobody's figures."""
    body = {"model": MODEL, "prompt": "one two three", "max_tokens": 16, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    for _ in range(3):
        url = f"{stack.url}/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=120).close()


def _idle(stack: Stack) -> dict[str, Any]:
    """The sidecar's capabilities once nothing is in the engine."""
    until = time.monotonic() + _IDLE_WITHIN_S
    while True:
        stack.check_alive()
        # Longer than the engine takes to tell the sidecar of its last step.
        time.sleep(1.5)
        _, document = get_json(f"{stack.url}/v1/capabilities", 10.0)
        [state] = document["engines"]
        if not (state["running"] or state["waiting"] or state["leased"] or state["foreign"]):
            return document
        if time.monotonic() > until:
            raise RuntimeError(f"the engine is not idle after {_IDLE_WITHIN_S:g} s: {state}")


def _round(
    setting: Setting,
    tool: Tool,
    stack: Stack,
    spans: Spans,
    logs: Path,
    fixtures: Path | None,
) -> Round:
    before, had, seen = _idle(stack), generated_tokens(stack.engine_url), len(spans.decodes)
    result = logs / f"{tool.name}_{setting.profile}.json"
    tool.run(Target(stack.url, MODEL, ONE_WORKER), setting.load, result, setting.label)
    after, generated = _idle(stack), generated_tokens(stack.engine_url) - had
    if fixtures is not None and tool.trim is not None:
        document = json.loads(result.read_text(encoding="utf-8"))
        for end, content in (("", tool.trim(document)), ("_before", before), ("_after", after)):
            path = fixtures / f"{tool.name}_{setting.profile}{end}.json"
            path.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    ends = States(parse_snapshot(before), parse_snapshot(after))
    ended = spans.since(seen, setting.load.requests)
    made = tool.row(result, ends)
    return Round(tool.name, setting.label, made, counted(ends, generated, ended))


def _table(rounds: list[Round]) -> str:
    head = (
        "tool", "label", "batch", "tokens/s", "requests", "engine's", "tokens", "engine's",
        "spans'", "decoded", "ttft p50", "span's", "tpot p50",
    )  # fmt: skip
    return table(head, [_line(each) for each in rounds])


def _line(each: Round) -> list[str]:
    engine = each.engine
    if isinstance(each.made, str):
        return [each.tool, each.label, "refused", *(["-"] * 10)]
    notes = parse_notes(each.made.scenario_notes)
    tokens = each.made.output_tokens * int(notes["requests"])
    return [
        each.tool,
        each.made.measurement_type,
        str(each.made.batch),
        shown(each.made.throughput_tokens_per_sec),
        notes["requests"],
        str(engine.requests),
        str(tokens),
        str(engine.generated),
        str(engine.span_tokens),
        str(engine.decoded),
        notes["ttft_p50_ms"],
        shown(engine.span_ttft_p50_ms),
        notes["tpot_p50_ms"],
    ]
