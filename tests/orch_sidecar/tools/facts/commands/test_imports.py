"""`orch facts from-vllm-bench` and `from-guidellm`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label
from orch_sidecar.tools.facts.tables.table import check, valid_rows
from tests.orch_sidecar.tools.facts.conftest import Run
from tests.orch_sidecar.tools.facts.imports import document, path

GIVEN = ("--engine", "vLLM 0.32.0", "--precision", "BF16", "--gpu", "H100", "--gpu-count", "1")


def ends(name: str) -> tuple[str, ...]:
    before, after = path(f"{name}_before"), path(f"{name}_after")
    return "--capabilities-before", str(before), "--capabilities-after", str(after)


@pytest.mark.parametrize(
    ("command", "name", "label"),
    [
        ("from-vllm-bench", "vllm_bench_home", Label.SINGLE_STREAM),
        ("from-guidellm", "guidellm_cloud", Label.BATCHED_ONLINE),
        ("from-aiperf", "aiperf_cloud", Label.BATCHED_ONLINE),
    ],
)
def test_appends_a_valid_row_once(
    run: Run, tmp_path: Path, command: str, name: str, label: Label
) -> None:
    table = tmp_path / "facts.csv"
    words = command, path(name), *ends(name), "--output", table
    assert run(*words) == (0, "", f"{table}: 1 added, 0 already present\n")
    assert run(*words) == (0, "", f"{table}: 0 added, 1 already present\n")
    found = read(table)
    assert check(found) == []
    [placed] = valid_rows(found)
    assert placed.row.measurement_type is label
    assert placed.row.source_tag.startswith(f"{name}.json sha256:")


def test_prints_the_table_without_an_output(run: Run) -> None:
    code, out, err = run("from-guidellm", path("guidellm_home"), *GIVEN)
    assert (code, err) == (0, "")
    header, row = out.splitlines()
    assert header == ",".join(COLUMNS)
    assert ",to_be_confirmed," in row


def test_prints_json(run: Run) -> None:
    code, out, _ = run("from-vllm-bench", "--json", path("vllm_bench_home"), *GIVEN)
    [row] = json.loads(out)
    assert (code, row["gpu"], row["measurement_type"]) == (0, "H100", "to_be_confirmed")
    assert list(row) == list(COLUMNS)


def test_runs_of_several_files_and_of_one_have_distinct_tags(run: Run, tmp_path: Path) -> None:
    """As `--append-result` writes them."""
    home, cloud = document("vllm_bench_home"), document("vllm_bench_cloud")
    several = tmp_path / "several.json"
    several.write_text(f"{json.dumps(home)}\n{json.dumps(cloud)}")
    code, out, _ = run(
        "from-vllm-bench", "--json", several, path("vllm_bench_home"), *GIVEN, "--model-name", "S"
    )
    rows = json.loads(out)
    assert code == 0
    tags = [row["source_tag"] for row in rows]
    assert tags[0].endswith("#1")
    assert tags[1].endswith("#2")
    assert tags[2].startswith("vllm_bench_home.json")
    assert "#" not in tags[2]
    assert {row["model_name"] for row in rows} == {"S"}


def test_rejected_run_exits_with_1_and_the_others_are_written(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "facts.csv"
    failed, fine = path("vllm_bench_all_failed"), path("vllm_bench_home")
    code, out, err = run("from-vllm-bench", failed, fine, *GIVEN, "--output", table)
    assert (code, out) == (1, "")
    assert f"{failed}: completed is 0: Input should be greater than 0\n" in err
    assert len(read(table).rows) == 1


def test_label_that_was_not_earned_is_rejected_with_the_reason(run: Run) -> None:
    code, out, err = run("from-guidellm", path("guidellm_cloud"), *ends("guidellm_home"))
    assert (code, out) == (1, "")
    assert "measurement_type 'batched_online': the pool 'home'" in err


def test_declared_values_must_be_valid(run: Run) -> None:
    words = [*GIVEN]
    words[words.index("H100")] = "=H100"
    code, _, err = run("from-guidellm", path("guidellm_home"), *words)
    assert code == 1
    assert "gpu '=H100': must not begin with U+003D EQUALS SIGN" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give either both --capabilities-before"),
        (GIVEN[:-2], "give either both --capabilities-before"),
        (ends("guidellm_home")[:2], "give either both --capabilities-before"),
        ([*ends("guidellm_home"), *GIVEN], "are part of the capabilities"),
        ([path("guidellm_cloud"), *ends("guidellm_home")], "not 2"),
    ],
)
def test_contradicting_options_exit_with_2(
    run: Run, words: list[str | Path], expected: str
) -> None:
    code, out, err = run("from-guidellm", path("guidellm_home"), *words)
    assert (code, out) == (2, "")
    assert expected in err


def test_file_that_cannot_be_read_exits_with_2(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_bytes(b"{} x")
    code, out, err = run("from-vllm-bench", file, *GIVEN)
    assert (code, out) == (2, "")
    assert err.startswith(f"orch facts: {file}:1: invalid JSON")


def test_incomplete_capabilities_exit_with_2(run: Run, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    capabilities = document("guidellm_home_before")
    del capabilities["engines"][0]["requests_total"]
    old.write_text(json.dumps(capabilities))
    words = "--capabilities-before", old, "--capabilities-after", path("guidellm_home_after")
    code, _, err = run("from-guidellm", path("guidellm_home"), *words)
    assert code == 2
    assert f"orch facts: {old}: requests_total is missing" in err


def test_pool_that_was_measured_is_named_where_there_are_several(run: Run, tmp_path: Path) -> None:
    paths = []
    for end in ("before", "after"):
        both = document(f"guidellm_home_{end}")
        both["engines"] += document(f"guidellm_cloud_{end}")["engines"]
        paths.append(tmp_path / f"{end}.json")
        paths[-1].write_text(json.dumps(both))
    words = "--capabilities-before", paths[0], "--capabilities-after", paths[1]
    code, _, err = run("from-guidellm", path("guidellm_home"), *words)
    assert code == 2
    assert "a pool must be given" in err
    code, out, _ = run("from-guidellm", path("guidellm_home"), *words, "--pool", "home")
    assert code == 0
    assert ",single_stream," in out
