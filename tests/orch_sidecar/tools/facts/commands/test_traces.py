"""`orch facts from-jaeger` and `from-otlp`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools import terminal
from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.row import Row, parse_notes
from orch_sidecar.tools.facts.tables.table import check, parse, valid_rows
from orch_sidecar.tools.facts.traces.spans import Span, Value
from tests.orch_sidecar.tools.facts.conftest import Run
from tests.orch_sidecar.tools.facts.scripted_jaeger import ScriptedJaeger, export_of
from tests.orch_sidecar.tools.facts.spans import RECORDED, alone, counted, real, service_of

HOME, CLOUD, MIXED, OFFLINE = (f"{name}.jsonl" for name in RECORDED)
DAY = "2026-11-21T"  # of all real traces
ALL = ("--since", f"{DAY}00:00:00Z", "--until", "2026-11-22T00:00:00Z")
START_S = 1_795_295_000  # 21:03:20Z


@pytest.fixture(autouse=True)
def in_folder_of_recorded_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows no progress either, however slow the machine is."""
    monkeypatch.setattr(terminal, "AFTER_S", float("inf"))
    folder = tmp_path_factory.mktemp("recorded")
    for name in RECORDED:
        (folder / f"{name}.jsonl").write_text(json.dumps(export_of(real(name))))
    monkeypatch.chdir(folder)


async def from_jaeger(run: Run, spans: Iterable[Span], *words: str) -> tuple[int, str, str]:
    async with ScriptedJaeger(spans).running() as url:
        return await asyncio.to_thread(run, "from-jaeger", "--url", url, *words)


def rows(text: str) -> list[Row]:
    """Returns the rows of a table without faults."""
    table = parse("stdout", text)
    assert check(table) == []
    return [located.row for located in valid_rows(table)]


def labels(text: str) -> list[tuple[str, str]]:
    return [(row.measurement_type.value, row.source_tag) for row in rows(text)]


def test_prints_the_rows_and_the_objections(run: Run) -> None:
    code, out, err = run("from-otlp", HOME, CLOUD, MIXED)
    source = "otlp:home.jsonl+cloud.jsonl+mixed.jsonl"
    assert (code, labels(out)) == (
        0,
        [("single_stream", f"{source}/home-1"), ("batched_online", f"{source}/cloud-1")],
    )
    lines = err.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "invalid: shared-1 (batched_online, tiny, pool cloud, 3 requests)",
        "invalid: two-1 (batched_online, tiny, pool cloud, 3 requests)",
        "invalid: bulk-1 (batched_online, tiny, pool cloud, 2 requests)",
        "excluded warm-up: home-1.warmup",
    ]
    reasons = [line.split(":")[0] for line in lines if line.startswith(" ")]
    assert {"  coalesced", "  one_by_one"} <= set(reasons)


def test_spans_of_one_request_can_be_in_several_files(run: Run, tmp_path: Path) -> None:
    files = []
    for service in ("vllm", "orch-sidecar"):
        spans = [span for span in real("cloud") if service_of(span) == service]
        files.append(tmp_path / f"{service}.jsonl")
        files[-1].write_text("\n".join(json.dumps(export_of([span])) for span in spans))
    code, out, _ = run("from-otlp", *files)
    tag = "otlp:vllm.jsonl+orch-sidecar.jsonl/cloud-1"
    assert (code, labels(out)) == (0, [("batched_online", tag)])
    code, _, err = run("from-otlp", files[1])
    assert code == 1
    assert "engine_not_traced: 6 of 6 requests: no span" in err


async def test_jaeger_gives_the_same_rows_as_a_file(run: Run) -> None:
    spans = [span for name in RECORDED for span in real(name)]
    _, by_file, _ = run("from-otlp", "--json", HOME, CLOUD, MIXED, OFFLINE)
    _, by_jaeger, _ = await from_jaeger(run, spans, *ALL, "--json")
    documents = [json.loads(each) for each in (by_file, by_jaeger)]
    for document in documents:
        for row in document:
            row["source_tag"] = row["source_tag"].rpartition("/")[2]
            figure = row["throughput_tokens_per_sec"]
            row["throughput_tokens_per_sec"] = pytest.approx(figure, rel=1e-4)
            notes = parse_notes(row.pop("scenario_notes"))
            row["notes"] = {k: v for k, v in notes.items() if not k.endswith(("_ms", "_s"))}
    assert documents[0] == documents[1]
    tags = [row["source_tag"] for row in documents[0]]
    assert tags == ["home-1", "cloud-1", "offline-1"]


def test_rows_are_added_to_a_file_once(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tps_model_gpu.csv"
    assert run("from-otlp", HOME, "--output", path)[0] == 0
    code, out, err = run("from-otlp", HOME, CLOUD, "--output", path)  # other sources
    assert (code, out, err.splitlines()[0]) == (0, "", f"{path}: 2 added, 0 already present")
    assert run("from-otlp", HOME, "--output", path)[2].startswith(f"{path}: 0 added, 1 already")
    assert check(read(path)) == []
    assert len(valid_rows(read(path))) == 3


def test_scenario_is_selected_by_its_id(run: Run) -> None:
    code, out, err = run("from-otlp", CLOUD, MIXED, "--scenario", "cloud-1")
    tag = "otlp:cloud.jsonl+mixed.jsonl/cloud-1"
    assert (code, labels(out), err) == (0, [("batched_online", tag)], "")
    code, _, err = run("from-otlp", HOME, "--scenario", "moon")
    assert code == 1
    assert f"no scenario 'moon' in {HOME} (6 requests in " in err


def test_names_in_spans_do_not_control_the_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "named.jsonl"
    path.write_text(json.dumps(export_of(real("home"))).replace('"home-1"', '"\\u001b]0;a\\u202e"'))
    code, _, err = run("from-otlp", path)
    assert (code, "invalid: \\x1b]0;a\\u202e (single_stream" in err) == (1, True)
    assert "\x1b" not in err


async def test_traffic_that_only_the_engine_traced_is_detected(run: Run) -> None:
    *_, around = alone(2, START_S + 4, START_S + 5)
    spans = counted([*alone(1, START_S, START_S + 10), replace(around, parent_id=None)])
    code, _, err = await from_jaeger(run, spans, *ALL)
    assert code == 1
    assert "other_traffic: foreign sequences in the same engine at the time: 1" in err
    unseen = (await from_jaeger(run, spans, *ALL, "--engine-service", "x"))[2]
    assert "other_traffic" not in unseen
    assert "untraced_requests: the engine accepted 2 requests" in unseen


async def test_service_names_are_options(run: Run) -> None:
    async with ScriptedJaeger(real("cloud"), suffix="-2").running() as url:
        words = "from-jaeger", "--url", url, *ALL
        assert (await asyncio.to_thread(run, *words))[0] == 1
        _, out, _ = await asyncio.to_thread(run, *words, "--service", "orch-sidecar-2")
    assert labels(out) == [("batched_online", "jaeger:orch-sidecar-2/cloud-1")]


async def test_the_last_hour_until_now_is_the_default(run: Run) -> None:
    now_s = time.time()
    spans = counted([*alone(1, now_s - 600, now_s - 590), *alone(2, now_s - 7200, now_s - 7190)])
    assert len(labels((await from_jaeger(run, spans))[1])) == 1
    assert len(labels((await from_jaeger(run, spans, "--since", "3h"))[1])) == 2
    code, _, err = await from_jaeger(run, spans, "--since", "5m")
    assert code == 1
    assert "no scenario in orch-sidecar at http://127.0.0.1:" in err


NAMED: dict[str, Value] = {"orch.scenario": "run-1"}


@pytest.mark.parametrize(
    ("times", "server", "since", "until", "requests", "cut"),
    [
        ([(n, n + 0.5) for n in range(10)], {}, "21:03:22.5", "21:03:26.5", "4", "before,after"),
        # The interval holds the middle of three parts, nine minutes from either other one.
        ([(at_s, at_s + 5) for at_s in (0, 545, 1090)], NAMED, "21:12:00", "21:13:00", "1",
         "before,after"),
        # A long request began minutes before the interval, and ended just before it.
        ([(0, 300), (301, 601)], {}, "21:08:20", "21:20:00", "1", "before"),
    ],
)  # fmt: skip
async def test_scenario_that_extends_beyond_the_interval_is_noted_as_cut(
    run: Run,
    times: list[tuple[float, float]],
    server: dict[str, Value],
    since: str,
    until: str,
    requests: str,
    cut: str,
) -> None:
    more: dict[str, Any] = {"server": server} if server else {}
    spans = counted(
        span
        for number, (start_s, end_s) in enumerate(times)
        for span in alone(number, START_S + start_s, START_S + end_s, **more)
    )
    ends = ("--since", f"{DAY}{since}Z", "--until", f"{DAY}{until}Z")
    [row] = rows((await from_jaeger(run, spans, *ends))[1])
    notes = parse_notes(row.scenario_notes)
    assert (notes["requests"], notes["cut"]) == (requests, cut)


def test_unreachable_server_exits_with_2(run: Run) -> None:
    code, _, err = run("from-jaeger", "--url", "http://127.0.0.1:1")
    assert code == 2
    assert err.startswith("orch facts: cannot read http://127.0.0.1:1/api/traces: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"resourceSpans":[]}\n{}', "x.jsonl:2: no traces"),
        (
            json.dumps(export_of(alone(1, 0, 1, decode={"orch.steps": "x"}))),
            "orch.steps is 'x': ",
        ),
    ],
)
def test_malformed_file_exits_with_2(run: Run, tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    code, out, err = run("from-otlp", path)
    assert (code, out) == (2, "")
    assert err.startswith("orch facts: ")
    assert expected in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["from-jaeger", "--since", "yesterday"], "'yesterday' must be an age"),
        (["from-jaeger", "--since", "2026-11-21T00:00:00"], "with its zone"),
        (["from-jaeger", "--url", "jaeger:16686"], "'jaeger:16686' must begin with http"),
        (["from-jaeger", "--url", "http://"], "'http://' must begin with http"),
        (["from-otlp", HOME, "--gap", "0.01"], "'0.01' must be a number of seconds of at least 10"),
        (["from-otlp", HOME, "--gap", "nan"], "'nan' must be"),
        (["from-otlp"], "the following arguments are required: FILE"),
    ],
)
def test_bad_usage_exits_with_2(run: Run, words: list[str], expected: str) -> None:
    code, _, err = run(*words)
    assert code == 2
    assert expected in err
