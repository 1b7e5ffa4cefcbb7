"""`orch facts from-jaeger`: the interval that is read, and scenarios that it cuts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from orch_sidecar.tools.facts.tables.check import valid_rows
from orch_sidecar.tools.facts.tables.row import parse_notes
from orch_sidecar.tools.facts.tables.table import parse
from orch_sidecar.tools.facts.traces.span import Span, Value
from tests.orch_sidecar.tools.facts import spans as made
from tests.orch_sidecar.tools.facts.commands.test_traces import from_jaeger, labels
from tests.orch_sidecar.tools.facts.spans import ALONE, counted

NAMED: dict[str, Value] = {"orch.scenario": "run-1"}
START_S = 1_795_295_000  # 2026-11-21T21:03:20Z


def one(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns a request that was alone in its engine."""
    return made.one(number, start_s, end_s, **{**ALONE, **more})


async def notes_of(spans: Iterable[Span], since: str, until: str, printed: Any) -> dict[str, str]:
    """Returns the notes of the single row of an interval of that evening."""
    day = "2026-11-21T"
    assert await from_jaeger(spans, "--since", f"{day}{since}Z", "--until", f"{day}{until}Z") == 0
    [placed] = valid_rows(parse("stdout", printed.readouterr().out))
    return parse_notes(placed.row.scenario_notes)


async def test_the_last_hour_until_now_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = time.time()
    recent, older = one(1, now_s - 600, now_s - 590), one(2, now_s - 7200, now_s - 7190)
    spans = counted([*recent, *older])
    assert await from_jaeger(spans) == 0
    assert len(labels(capsys.readouterr().out)) == 1
    assert await from_jaeger(spans, "--since", "3h") == 0
    assert len(labels(capsys.readouterr().out)) == 2
    assert await from_jaeger(spans, "--since", "5m") == 1
    assert "no scenario in orch-sidecar at http://127.0.0.1:" in capsys.readouterr().err


async def test_scenario_that_extends_beyond_the_interval_is_noted_as_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    second_s = 1_795_295_000
    requests = [one(n, second_s + n, second_s + n + 0.5) for n in range(10)]
    spans = counted(span for request in requests for span in request)
    ends = ("--since", "2026-11-21T21:03:22.5Z", "--until", "2026-11-21T21:03:26.5Z")
    assert await from_jaeger(spans, *ends) == 0
    [placed] = valid_rows(parse("stdout", capsys.readouterr().out))
    notes = parse_notes(placed.row.scenario_notes)
    assert (notes["requests"], notes["cut"]) == ("4", "before,after")


async def test_pause_within_a_run_is_no_place_to_cut_it_unseen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The interval holds the middle of three parts, nine minutes from either other one."""
    runs = [one(n, START_S + at_s, START_S + at_s + 5, server=NAMED)
            for n, at_s in enumerate((0, 545, 1090))]  # fmt: skip
    spans = counted(span for request in runs for span in request)
    notes = await notes_of(spans, "21:12:00", "21:13:00", capsys)
    assert (notes["requests"], notes["cut"]) == ("1", "before,after")


async def test_long_request_before_the_interval_cuts_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It began minutes before the interval, and ended just before it."""
    runs = [one(1, START_S, START_S + 300), one(2, START_S + 301, START_S + 601)]
    spans = counted(span for request in runs for span in request)
    notes = await notes_of(spans, "21:08:20", "21:20:00", capsys)
    assert (notes["requests"], notes["cut"]) == ("1", "before")
