"""`orch facts from-jaeger` and `from-otlp`."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools import terminal
from orch_sidecar.tools.facts.commands import traces as traces_cli
from orch_sidecar.tools.facts.tables.check import check, valid_rows
from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.row import parse_notes
from orch_sidecar.tools.facts.tables.table import parse
from orch_sidecar.tools.facts.traces.span import Span
from tests.orch_sidecar.tools.facts import spans as made
from tests.orch_sidecar.tools.facts.scripted_jaeger import ScriptedJaeger, export_of
from tests.orch_sidecar.tools.facts.spans import ALONE, RECORDED, counted, real, without

HOME, CLOUD, MIXED, OFFLINE = (f"{name}.jsonl" for name in RECORDED)
# All of the real traces.
ALL = ("--since", "2026-11-21T00:00:00Z", "--until", "2026-11-22T00:00:00Z")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress is shown, however slow the machine is."""
    monkeypatch.setattr(terminal, "AFTER_S", float("inf"))


@pytest.fixture(autouse=True)
def in_folder_of_recorded_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("recorded")
    for name in RECORDED:
        (folder / f"{name}.jsonl").write_text(json.dumps(export_of(real(name))))
    monkeypatch.chdir(folder)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="orch facts")
    commands = parser.add_subparsers(required=True)
    traces_cli.add_commands(commands)
    options = parser.parse_args(words)
    code: int = options.run(options)
    return code


def one(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns a request that was alone in its engine."""
    return made.one(number, start_s, end_s, **{**ALONE, **more})


async def from_jaeger(spans: Iterable[Span], *words: str) -> int:
    async with ScriptedJaeger(spans).running() as url:
        return await asyncio.to_thread(run, "from-jaeger", "--url", url, *words)


def labels(text: str) -> list[tuple[str, str]]:
    """Returns the label and the tag of each row of a table."""
    table = parse("stdout", text)
    assert check(table) == []
    return [
        (placed.row.measurement_type.value, placed.row.source_tag) for placed in valid_rows(table)
    ]


def test_prints_the_rows_and_the_objections(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("from-otlp", HOME, CLOUD, MIXED) == 0
    printed = capsys.readouterr()
    source = "otlp:home.jsonl+cloud.jsonl+mixed.jsonl"
    assert labels(printed.out) == [
        ("single_stream", f"{source}/home-1"),
        ("batched_online", f"{source}/cloud-1"),
    ]
    assert printed.err.splitlines() == [
        "invalid: shared-1 (batched_online, tiny, pool cloud, 3 requests)",
        "  never_batched: no step decoded more than one sequence: nothing was batched",
        "  coalesced: 3 requests: a generation was shared, its tokens would count several times",
        "invalid: two-1 (batched_online, tiny, pool cloud, 3 requests)",
        "  one_by_one: the requests came one by one: the batch of up to 2 sequences was that of a "
        "single request, and batched_online needs several requests at a time",
        "invalid: bulk-1 (batched_online, tiny, pool cloud, 2 requests)",
        "  never_batched: no step decoded more than one sequence: nothing was batched",
        "excluded warm-up: home-1.warmup",
    ]


def test_spans_of_one_request_can_be_in_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for service in ("vllm", "orch-sidecar"):
        spans = [span for span in real("cloud") if span.service == service]
        files.append(tmp_path / f"{service}.jsonl")
        files[-1].write_text("\n".join(json.dumps(export_of([span])) for span in spans))
    assert run("from-otlp", *map(str, files)) == 0
    assert labels(capsys.readouterr().out) == [
        ("batched_online", "otlp:vllm.jsonl+orch-sidecar.jsonl/cloud-1")
    ]
    assert run("from-otlp", str(files[1])) == 1
    assert "engine_not_traced: 6 of 6 requests: no span" in capsys.readouterr().err


async def test_jaeger_gives_the_same_rows_as_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    spans = [*real("home"), *real("cloud"), *real("mixed"), *real("offline")]
    files = (HOME, CLOUD, MIXED, OFFLINE)
    assert await asyncio.to_thread(run, "from-otlp", "--json", *files) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert await from_jaeger(spans, *ALL, "--json", "--limit", "3") == 0
    by_jaeger = json.loads(capsys.readouterr().out)
    assert by_file["requests"] == by_jaeger["requests"] == 26
    for document in (by_file, by_jaeger):
        for row in document["rows"]:
            row["source_tag"] = row["source_tag"].rpartition("/")[2]
            row["throughput_tokens_per_sec"] = pytest.approx(
                row["throughput_tokens_per_sec"], rel=1e-4
            )
            notes = parse_notes(row.pop("scenario_notes"))
            row["notes"] = {k: v for k, v in notes.items() if not k.endswith(("_ms", "_s"))}
    assert by_file == by_jaeger
    assert [row["source_tag"] for row in by_jaeger["rows"]] == [
        "home-1",
        "cloud-1",
        "offline-1",
    ]


def test_rows_are_added_to_a_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tps_model_gpu.csv"
    assert run("from-otlp", HOME, "--output", str(path)) == 0
    assert capsys.readouterr().out == f"{path}: 1 row added\n"
    assert run("from-otlp", HOME, CLOUD, "--output", str(path)) == 0
    assert run("from-otlp", HOME, "--output", str(path)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{path}: no rows added"
    assert check(read(path)) == []
    assert [each.row.measurement_type.value for each in valid_rows(read(path))] == [
        "single_stream",
        "single_stream",  # from two files: another source
        "batched_online",
    ]


def test_nothing_is_written_without_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tps_model_gpu.csv"
    assert run("from-otlp", MIXED, "--scenario", "bulk-1", "--output", str(path)) == 1
    assert not path.exists()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("invalid: bulk-1 ")


def test_prints_everything_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("from-otlp", CLOUD, MIXED, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["requests"], document["warmups"], document["added"]) == (14, [], 0)
    [row] = document["rows"]
    assert (row["measurement_type"], row["batch"]) == ("batched_online", 6)
    shared, two, bulk = document["invalid"]
    assert (shared["scenario"], two["scenario"]) == ("shared-1", "two-1")
    assert [each["reason"] for each in two["reasons"]] == ["one_by_one"]
    assert shared["conditions"]["speculative"] == "none"
    assert (bulk["pool"], bulk["requests"], bulk["gpu_count"]) == ("cloud", 2, 0)


def test_scenario_is_selected_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("from-otlp", CLOUD, MIXED, "--scenario", "cloud-1") == 0
    printed = capsys.readouterr()
    assert labels(printed.out) == [("batched_online", "otlp:cloud.jsonl+mixed.jsonl/cloud-1")]
    assert printed.err == ""
    assert run("from-otlp", HOME, "--scenario", "moon") == 1
    assert f"no scenario 'moon' in {HOME} (6 requests)" in capsys.readouterr().err


def test_missing_values_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("orch.gpu", "orch.gpu_count", "orch.engine_version", "orch.precision")
    path = tmp_path / "bare.jsonl"
    path.write_text(json.dumps(export_of(without(real("cloud"), *names))))
    assert run("from-otlp", str(path)) == 1
    assert "not_said: gpu: the spans do not contain it" in capsys.readouterr().err
    given = ("--gpu", "L40S", "--gpu-count", "1", "--engine", "vLLM 0.32.0", "--precision", "BF16")
    assert run("from-otlp", str(path), *given, "--model-id", "tiny") == 0
    [placed] = valid_rows(parse("stdout", capsys.readouterr().out))
    assert (placed.row.gpu, placed.row.gpu_count, placed.row.precision) == ("L40S", 1, "BF16")
    assert placed.row.model_id == "tiny"
    notes = parse_notes(placed.row.scenario_notes)
    assert notes["given"] == "engine,precision,gpu,gpu_count"


async def test_traffic_that_only_the_engine_traced_is_detected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_ = counted(one(1, 1_795_295_000, 1_795_295_010))
    *_, around = one(2, 1_795_295_004, 1_795_295_005)
    assert await from_jaeger([*run_, replace(around, parent_id=None)], *ALL) == 1
    assert (
        "other_traffic: foreign sequences in the same engine at the time: 1"
        in capsys.readouterr().err
    )
    assert (
        await from_jaeger([*run_, replace(around, parent_id=None)], *ALL, "--engine-service", "x")
        == 0
    )


async def test_service_names_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    spans = [
        replace(span, resource={**span.resource, "service.name": f"{span.service}-2"})
        for span in real("cloud")
    ]
    assert await from_jaeger(spans, *ALL) == 1
    capsys.readouterr()
    assert await from_jaeger(spans, *ALL, "--service", "orch-sidecar-2") == 0
    assert labels(capsys.readouterr().out) == [("batched_online", "jaeger:orch-sidecar-2/cloud-1")]


def test_unreachable_server_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("from-jaeger", "--url", "http://127.0.0.1:1") == 2
    assert capsys.readouterr().err.startswith(
        "orch facts: from-jaeger: cannot read http://127.0.0.1:1/api/traces: "
    )
    assert run("from-jaeger", "--url", "jaeger:16686") == 2
    assert "the URL 'jaeger:16686' must begin with http" in capsys.readouterr().err


def test_malformed_file_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"resourceSpans":[]}\n{}')
    assert run("from-otlp", HOME, str(path)) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.startswith(f"orch facts: {path}:2: no traces")) == ("", True)
    path.write_text(json.dumps(export_of(one(1, 0, 1, decode={"orch.steps": "x"}))))
    assert run("from-otlp", str(path)) == 2
    assert "orch.steps is 'x', must be a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["from-jaeger", "--since", "yesterday"], "'yesterday' must be an age"),
        (["from-jaeger", "--since", "2026-11-21T00:00:00"], "with its zone"),
        (["from-jaeger", "--limit", "1"], "'1' must be a whole number of at least 2"),
        (["from-jaeger", "--limit", "2.5"], "'2.5' must be a whole number"),
        (["from-jaeger", "--since", "1h", "--until", "2h"], "is before --since"),
        (["from-otlp", HOME, "--gap", "0.01"], "'0.01' must be a number of seconds of at least 10"),
        (["from-otlp", HOME, "--gap", "nan"], "'nan' must be"),
        (["from-otlp", HOME, "--gpu-count", "-1"], "'-1' must be a whole number of at least 0"),
        (["from-otlp", HOME, "--gpu", " "], "must not be empty"),
        (["from-otlp"], "the following arguments are required: FILE"),
    ],
)
def test_bad_usage_exits_with_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(*words)
    assert exit_.value.code == 2
    assert expected in capsys.readouterr().err


def test_one_name_is_not_given_to_several_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other: dict[str, Any] = {"gen_ai.request.model": "other"}
    path = tmp_path / "two.jsonl"
    path.write_text(json.dumps(export_of([*one(1, 0, 1), *one(2, 0, 1, server=other)])))
    with pytest.raises(SystemExit):
        run("from-otlp", str(path), "--model-id", "x")
    assert "not model, other" in capsys.readouterr().err
