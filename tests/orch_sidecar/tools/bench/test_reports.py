"""Result files, by the commands that read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from orch_sidecar.tools.bench import cli
from orch_sidecar.tools.bench.decode.schedule import TimedStep
from tests.orch_sidecar.tools.bench.decode.test_result import swept
from tests.orch_sidecar.tools.bench.report.sample_reports import online, sweep
from tests.orch_sidecar.tools.drawing.html_reader import Page


def written(path: Path, document: BaseModel | dict[str, object]) -> Path:
    value = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def bench(*words: object) -> int:
    """The exit code of `orch bench`."""
    try:
        cli.main([str(word) for word in words])
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


@pytest.mark.parametrize("kind", ["run", "sweep", "decode"])
def test_report_of_each_kind_is_written_beside_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    documents: dict[str, BaseModel] = {
        "run": online(40), "sweep": sweep(clients=(1, 2)), "decode": swept(TimedStep(4, 4.5)),
    }  # fmt: skip
    path = written(tmp_path / "a.json", documents[kind])
    before = path.read_bytes()
    assert bench("report", path) == 0
    page = tmp_path / "a.html"
    assert capsys.readouterr().out == f"report: {page}\n"
    assert Page(page.read_text(encoding="utf-8")).charts
    assert path.read_bytes() == before


def test_comparison_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a = written(tmp_path / "a.json", online(100))
    b = written(tmp_path / "b.json", online(100, seed=1, faster=2.0))
    assert bench("compare", a, b, "--report") == 0
    printed = capsys.readouterr().out
    assert "TTFT p50, ms" in printed
    assert "better" in printed
    assert "report: compare.html" in printed
    assert "Distributions" in Page((tmp_path / "compare.html").read_text(encoding="utf-8")).text
    assert bench("compare", a, b) == 0
    assert "report:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "it is []: Input should be a valid dictionary"),
        ('{"schema_version": "orch.bench/9"}', "Input tag 'orch.bench/9'"),
        ('{"schema_version": "orch.bench/2"}', "id is missing"),
        ('{"schema_version": "orch.bench.decode/3"}', "config"),
    ],
)
def test_file_that_is_no_result_is_named_with_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    assert bench("report", path) == 2
    error = capsys.readouterr().err
    assert error.startswith("orch bench report: ")
    assert message in error
    assert not (tmp_path / "a.html").exists()


def test_only_runs_can_be_compared_and_calls_have_all_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = written(tmp_path / "a.json", online(20))
    b = written(tmp_path / "b.json", sweep(clients=(1,)))
    c = written(tmp_path / "c.json", online(5).model_dump(mode="json") | {"calls": [[1.0]]})
    assert bench("compare", a, tmp_path / "none.json") == 2
    for other, error in (
        (b, "only two runs can be compared; of sweeps, `orch facts compare` the rows"),
        (c, "calls.0 is [1.0]: must have all columns\n"),
    ):
        assert bench("compare", a, other) == 2
        assert error in capsys.readouterr().err


def test_report_never_replaces_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a.json", online(5))
    assert bench("compare", a, a, "--report", a) == 2
    assert "must end in .html" in capsys.readouterr().err
    assert bench("compare", "--report", a, a) == 2
    assert bench("report", a, "--output", tmp_path / "no" / "a.html") == 2
    assert "no report" in capsys.readouterr().err
