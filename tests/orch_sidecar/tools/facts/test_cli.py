"""`orch facts`."""

from __future__ import annotations

import hashlib
import json
import os
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

VALID, OLD, OTHER = Path("sound.csv"), Path("legacy.csv"), Path("b.csv")


@pytest.fixture(autouse=True)
def in_folder_of_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    OLD.write_bytes(LEGACY.read_bytes())
    rows = [fact(Label.SINGLE_STREAM), fact(batch=8, throughput_tokens_per_sec=700.0), fact()]
    append(VALID, rows)


class TestCheck:
    def test_valid_file_has_no_faults(self, run: Run) -> None:
        expected = f"{VALID}: 3 rows (1 single_stream, 2 batched_online), no faults\n"
        assert run("check", VALID) == (0, expected, "")

    def test_faults_are_printed_by_line_and_column_and_exit_with_1(self, run: Run) -> None:
        code, out, _ = run("check", VALID, OLD)
        lines = out.splitlines()
        assert code == 1
        assert lines[0].startswith(f"{VALID}: 3 rows")
        assert lines[-1] == f"{OLD}: 24 rows, 41 faults"
        assert sum(line.startswith(f"{OLD}:") for line in lines) == 42
        assert any(line.startswith(f"{OLD}:10:8: input_tokens '~45000': ") for line in lines)
        assert run("check", OLD, VALID)[0] == 1

    @pytest.mark.parametrize(
        ("content", "expected"),
        [(b"\xff\xfe", "not UTF-8"), (None, "No such file"), (b"x" * 200_000, "invalid CSV")],
    )
    def test_file_that_cannot_be_read_exits_with_2(
        self, run: Run, content: bytes | None, expected: str
    ) -> None:
        if content is not None:
            OTHER.write_bytes(content)
        code, _, err = run("check", OTHER)
        assert code == 2
        assert err.startswith(f"orch facts: {OTHER}")
        assert expected in err

    def test_file_beyond_the_memory_exits_with_2(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read_bytes(path: Path) -> bytes:
            raise MemoryError

        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        said = "orch facts: the input is too large for the memory of this machine\n"
        assert run("check", VALID)[0::2] == (2, said)


class TestMigrate:
    def test_output_has_all_rows_and_the_input_is_not_changed(self, run: Run) -> None:
        code, out, _ = run("check", "--migrate-legacy", "--output", OTHER, OLD)
        lines = out.splitlines()
        assert code == 1
        assert OLD.read_bytes() == LEGACY.read_bytes()
        assert sum(": migrated: " in line for line in lines) == 21
        assert sum(": unchanged: " in line for line in lines) == 3
        assert lines[-1] == f"{OTHER}: 24 rows (6 single_stream, 15 to_be_confirmed), 5 faults"
        assert f"{OTHER}:10:8: input_tokens '~45000'" in out

    @pytest.mark.parametrize(
        "words",
        [
            ["--migrate-legacy", "a.csv"],
            ["--output", "b.csv", "a.csv"],
            ["--migrate-legacy", "--output", "c.csv", "a.csv", "b.csv"],
        ],
    )
    def test_it_takes_one_file_and_an_output(self, run: Run, words: list[str]) -> None:
        expected = "orch facts: --migrate-legacy takes one FILE, and --output\n"
        assert run("check", *words) == (2, "", expected)


class TestPublish:
    def test_table_is_described_with_its_evidence(self, run: Run) -> None:
        table, digest = Path("TPS model.csv"), hashlib.sha256(b"{}").hexdigest()
        named = fact(notes={"evidence": f"sha256:{digest}"})
        append(table, [named, fact(source_tag="b")])
        package, evidence = Path("datapackage.json"), Path(f"{digest}.json")
        lacks = f"{table} is not published: its evidence {evidence} is not beside it"
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


class TestMerge:
    def test_merges_in_order_and_reports_repeated_rows(self, run: Run) -> None:
        append(OTHER, [fact(), fact(gpu="A100")])
        before = VALID.read_text()
        code, out, _ = run("merge", "-o", VALID, VALID, OTHER)
        assert (code, out) == (0, f"{VALID}: 4 rows (1 repeated omitted)\n")
        assert VALID.read_text().startswith(before)
        assert run("check", VALID)[0] == 0

    def test_conflict_exits_with_1_names_both_places_and_writes_nothing(self, run: Run) -> None:
        append(OTHER, [fact(throughput_tokens_per_sec=2500.0)])
        code, out, _ = run("merge", "-o", "out.csv", VALID, OTHER)
        assert code == 1
        assert out.startswith(f"{OTHER}:2:10: throughput_tokens_per_sec '2500': {VALID}:4:10 has")
        assert out.endswith("1 fault: out.csv is not written\n")
        assert not Path("out.csv").exists()


class TestCompare:
    def test_prints_a_table_for_each_set(self, run: Run) -> None:
        code, out, err = run("compare", VALID)
        assert (code, err) == (0, "")
        assert "tokens out, engine settings unknown\n" in out
        assert "A  single_stream " in out
        assert "B  batched_online, arrivals unknown " in out

    def test_prints_everything_as_json(self, run: Run) -> None:
        code, out, _ = run("compare", "--json", VALID)
        document = json.loads(out)
        assert (code, set(document)) == (0, {"sets", "left_out"})
        online = document["sets"][0]["ways"][1]["points"]
        assert [point["batch"] for point in online] == [8, 32]
        assert online[1]["speedup"] == pytest.approx(2461.67 / 700)

    def test_draws_and_writes_a_page_with_the_table_and_the_pictures(self, run: Run) -> None:
        plot, path = Path("p.svg"), Path("p.html")
        assert run("compare", VALID, "--plot", plot, "--report", path)[0] == 0
        assert plot.stat().st_size > 5000
        page = Page(path.read_text(encoding="utf-8"))
        assert page.charts == ["Throughput", "Speed-up"]
        assert len(page.all("table")) == 1
        assert page.loads_nothing()

    def test_rows_to_be_confirmed_alone_cannot_be_compared(self, run: Run) -> None:
        append(OTHER, [fact(Label.TO_BE_CONFIRMED)])
        code, out, err = run("compare", OTHER)
        assert code == 1
        assert f"{OTHER}:2: to_be_confirmed" in out
        assert "have no row that can be compared" in err

    def test_unknown_plot_format_is_bad_usage(self, run: Run) -> None:
        code, out, err = run("compare", VALID, "--plot", "p.gif")
        assert (code, out) == (2, "")
        assert "'p.gif' must end in .png or .svg" in err

    def test_plot_without_matplotlib_names_what_to_install(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        for words in (("--plot", "p.png"), ("--report", "p.html")):
            code, out, err = run("compare", VALID, *words)
            assert (code, out) == (2, "")
            assert "pip install matplotlib" in err
        assert run("compare", VALID)[0] == 0


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["compare", VALID, OLD], "compared"),
        (["publish", OLD], "published"),
        (["cost", "--per-hour", "1", OLD], "priced"),
    ],
)
def test_faults_are_printed_and_their_tables_not_used(
    run: Run, words: list[str], done: str
) -> None:
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert f"{OLD}:10:8: " in err
    assert err.endswith(f"orch facts: files with faults are not {done}: fix them\n")
    assert not Path("datapackage.json").exists()


@pytest.mark.parametrize(
    "words", [[], ["best"], ["check"], ["check", "--fast", "a.csv"], ["merge", "a.csv"]]
)
def test_bad_usage_exits_with_2(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "usage: orch facts" in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_name_that_cannot_be_encoded_does_not_fail(encoding: str) -> None:
    OTHER.write_text("model_id,x\u2026\n", encoding="utf-8")
    words = [sys.executable, "-m", "orch_sidecar", "facts", "check", str(OTHER)]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(words, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 1, done.stderr
    assert ("x\u2026" if encoding == "utf-8" else "x\\u2026") in done.stdout.decode(encoding)


def test_help_names_the_commands_and_exit_codes(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for word in ("check", "merge", "compare", "exit codes: 0 success"):
        assert word in out


def test_help_of_merge_names_what_identifies_a_measurement(run: Run) -> None:
    _, out, _ = run("merge", "--help")
    words = set(out.replace(",", " ").replace(".", " ").split())
    assert {*MEASUREMENT, *SETTING_NAMES} <= words
