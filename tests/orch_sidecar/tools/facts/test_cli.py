"""`orch facts`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from orch_sidecar.tools.facts.tables.files import append
from orch_sidecar.tools.facts.tables.notes import SETTING_NAMES
from orch_sidecar.tools.facts.tables.row import COLUMNS, MEASUREMENT, Label
from tests.orch_sidecar.tools.drawing.html_reader import Page
from tests.orch_sidecar.tools.facts.conftest import Run
from tests.orch_sidecar.tools.facts.rows import LEGACY, fact


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    path = tmp_path / "sound.csv"
    rows = [fact(Label.SINGLE_STREAM), fact(batch=8, throughput_tokens_per_sec=700.0), fact()]
    append(path, rows)
    return path


@pytest.fixture
def legacy(tmp_path: Path) -> Path:
    path = tmp_path / "legacy.csv"
    path.write_bytes(LEGACY.read_bytes())
    return path


class TestCheck:
    def test_valid_file_has_no_faults(self, run: Run, valid: Path) -> None:
        expected = f"{valid}: 3 rows (1 single_stream, 2 batched_online), no faults\n"
        assert run("check", valid) == (0, expected, "")

    def test_faults_are_printed_by_line_and_column_and_exit_with_1(
        self, run: Run, valid: Path, legacy: Path
    ) -> None:
        code, out, _ = run("check", valid, legacy)
        assert code == 1
        lines = out.splitlines()
        assert lines[0].startswith(f"{valid}: 3 rows")
        assert lines[-1] == f"{legacy}: 24 rows, 41 faults"
        assert sum(line.startswith(f"{legacy}:") for line in lines) == 42
        assert any(line.startswith(f"{legacy}:10:8: input_tokens '~45000': ") for line in lines)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [(b"\xff\xfe", "not UTF-8"), (None, "No such file"), (b"x" * 200_000, "invalid CSV")],
    )
    def test_file_that_cannot_be_read_exits_with_2(
        self, run: Run, tmp_path: Path, content: bytes | None, expected: str
    ) -> None:
        path = tmp_path / "t.csv"
        if content is not None:
            path.write_bytes(content)
        code, _, err = run("check", path)
        assert code == 2
        assert err.startswith(f"orch facts: {path}")
        assert expected in err

    def test_file_beyond_the_memory_exits_with_2(
        self, run: Run, valid: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read_bytes(path: Path) -> bytes:
            raise MemoryError

        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        assert run("check", valid)[0::2] == (
            2,
            "orch facts: the input is too large for the memory of this machine\n",
        )


class TestMigrate:
    def test_output_has_all_rows_and_the_input_is_not_changed(
        self, run: Run, legacy: Path, tmp_path: Path
    ) -> None:
        to = tmp_path / "new.csv"
        code, out, _ = run("check", "--migrate-legacy", "--output", to, legacy)
        assert code == 1
        assert legacy.read_bytes() == LEGACY.read_bytes()
        lines = out.splitlines()
        assert sum(": migrated: " in line for line in lines) == 21
        assert sum(": unchanged: " in line for line in lines) == 3
        assert lines[-1] == f"{to}: 24 rows (6 single_stream, 15 to_be_confirmed), 5 faults"
        assert f"{to}:10:8: input_tokens '~45000'" in out


class TestPublish:
    def test_table_is_described_with_its_evidence(self, run: Run, tmp_path: Path) -> None:
        table, digest = tmp_path / "TPS model.csv", hashlib.sha256(b"{}").hexdigest()
        named = fact(notes={"evidence": f"sha256:{digest}"})
        append(table, [named, fact(source_tag="b")])
        package, evidence = tmp_path / "datapackage.json", tmp_path / f"{digest}.json"
        lacks = f"{table} is not published: its evidence {evidence.name} is not beside it"
        assert run("publish", table)[0::2] == (1, f"orch facts: {lacks}\n")
        evidence.write_bytes(b"[]")
        code, _, err = run("publish", table)
        assert (code, "was changed: its SHA-256 is another" in err) == (1, True)
        assert not package.exists()
        evidence.write_bytes(b"{}")
        assert run("publish", table) == (0, f"{package}\n", "")
        of_table, of_evidence = json.loads(package.read_text())["resources"]
        assert of_table["name"] == "tps-model"
        assert [each["name"] for each in of_table["schema"]["fields"]] == list(COLUMNS)
        assert of_evidence == {
            "name": digest, "path": f"{digest}.json", "mediatype": "application/json",
            "bytes": 2, "hash": f"sha256:{digest}",
        }  # fmt: skip

    def test_table_with_faults_is_not_published(self, run: Run, legacy: Path) -> None:
        code, out, err = run("publish", legacy)
        assert (code, out) == (1, "")
        assert f"{legacy}:10:8: " in err
        assert not legacy.with_name("datapackage.json").exists()


class TestMerge:
    def test_merges_in_order_and_reports_repeated_rows(
        self, run: Run, valid: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "b.csv"
        append(other, [fact(), fact(gpu="A100")])
        before = valid.read_text()
        code, out, _ = run("merge", "-o", valid, valid, other)
        assert (code, out) == (0, f"{valid}: 4 rows (1 repeated omitted)\n")
        assert valid.read_text().startswith(before)
        assert run("check", valid)[0] == 0

    def test_conflict_exits_with_1_names_both_places_and_writes_nothing(
        self, run: Run, valid: Path, tmp_path: Path
    ) -> None:
        other, to = tmp_path / "b.csv", tmp_path / "out.csv"
        append(other, [fact(throughput_tokens_per_sec=2500.0)])
        code, out, _ = run("merge", "-o", to, valid, other)
        assert code == 1
        assert out.startswith(f"{other}:2:10: throughput_tokens_per_sec '2500': {valid}:4:10 has")
        assert out.endswith(f"1 fault: {to} is not written\n")
        assert not to.exists()


class TestCompare:
    def test_prints_a_table_for_each_set(self, run: Run, valid: Path) -> None:
        code, out, err = run("compare", valid)
        assert (code, err) == (0, "")
        assert "tokens out, engine settings unknown\n" in out
        assert "A  single_stream " in out
        assert "B  batched_online, arrivals unknown " in out

    def test_prints_everything_as_json(self, run: Run, valid: Path) -> None:
        code, out, _ = run("compare", "--json", valid)
        assert code == 0
        document = json.loads(out)
        assert set(document) == {"sets", "left_out"}
        online = document["sets"][0]["ways"][1]["points"]
        assert [point["batch"] for point in online] == [8, 32]
        assert online[1]["speedup"] == pytest.approx(2461.67 / 700)

    @pytest.mark.parametrize("suffix", ["png", "svg"])
    def test_draws(self, run: Run, valid: Path, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"p.{suffix}"
        assert run("compare", valid, "--plot", path)[0] == 0
        assert path.stat().st_size > 5000

    def test_report_has_the_table_and_the_pictures(
        self, run: Run, valid: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "p.html"
        assert run("compare", valid, "--report", path)[0] == 0
        page = Page(path.read_text(encoding="utf-8"))
        assert page.charts == ["Throughput", "Speed-up"]
        assert len(page.all("table")) == 1
        assert page.loads_nothing()

    def test_file_with_faults_is_not_compared(self, run: Run, valid: Path, legacy: Path) -> None:
        code, out, err = run("compare", valid, legacy)
        assert (code, out) == (1, "")
        assert f"{legacy}:10:8: " in err

    def test_rows_to_be_confirmed_alone_cannot_be_compared(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        append(path, [fact(Label.TO_BE_CONFIRMED)])
        code, out, err = run("compare", path)
        assert code == 1
        assert f"{path}:2: to_be_confirmed" in out
        assert "have no row that can be compared" in err

    def test_unknown_plot_format_is_bad_usage(self, run: Run, valid: Path, tmp_path: Path) -> None:
        code, out, err = run("compare", valid, "--plot", tmp_path / "p.gif")
        assert (code, out) == (2, "")
        assert "must be .png or .svg" in err

    def test_plot_without_matplotlib_names_what_to_install(
        self, run: Run, valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        for words in (("--plot", tmp_path / "p.png"), ("--report", tmp_path / "p.html")):
            code, out, err = run("compare", valid, *words)
            assert (code, out) == (2, "")
            assert "pip install matplotlib" in err
        assert run("compare", valid)[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["best"],
        ["check"],
        ["check", "--fast", "a.csv"],
        ["merge", "a.csv"],
    ],
)
def test_bad_usage_exits_with_2(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "usage: orch facts" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--migrate-legacy", "a.csv"],
        ["--output", "b.csv", "a.csv"],
        ["--migrate-legacy", "--output", "c.csv", "a.csv", "b.csv"],
    ],
)
def test_migration_takes_one_file_and_an_output(run: Run, words: list[str]) -> None:
    expected = "orch facts: --migrate-legacy takes one FILE, and --output\n"
    assert run("check", *words) == (2, "", expected)


def test_help_names_the_commands_and_exit_codes() -> None:
    command = [sys.executable, "-m", "orch_sidecar", "facts", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for word in ("check", "merge", "compare", "exit codes: 0 success"):
        assert word in result.stdout


def test_help_of_merge_names_what_identifies_a_measurement(run: Run) -> None:
    _, out, _ = run("merge", "--help")
    words = set(out.replace(",", " ").replace(".", " ").split())
    assert {*MEASUREMENT, *SETTING_NAMES} <= words
