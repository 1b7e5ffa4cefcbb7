"""Counters as a real engine exports them: the runs earn their rows.

The files in `counted/` are made by `python -m tests.engine.record_traces`, which states what each
one has.
"""

from __future__ import annotations

from pathlib import Path

from orch_sidecar.tools.facts.tables.table import parse, valid_rows
from tests.orch_sidecar.tools.facts.conftest import Run

FOLDER = Path(__file__).with_name("counted")


def test_valid_runs_make_their_rows(run: Run) -> None:
    code, out, _ = run("from-otlp", *(FOLDER / f"{n}.jsonl" for n in ("home", "cloud", "offline")))
    rows = [placed.row for placed in valid_rows(parse("stdout", out))]
    labels = {row.source_tag.rpartition("/")[2]: row.measurement_type.value for row in rows}
    assert (code, labels) == (
        0,
        {"home-1": "single_stream", "cloud-1": "batched_online", "offline-1": "offline"},
    )


def test_run_with_a_sequence_that_left_no_span_makes_no_row(run: Run, tmp_path: Path) -> None:
    """Whichever of six streams it is: the engine has counted its steps, or its request."""
    first, *rest = (FOLDER / "cloud.jsonl").read_text(encoding="utf-8").split('"llm_request"')
    path = tmp_path / "cloud.jsonl"
    for absent in range(6):
        names = ('"other"' if place == absent else '"llm_request"' for place in range(len(rest)))
        parts = [name + part for name, part in zip(names, rest, strict=True)]
        path.write_text("".join([first, *parts]), encoding="utf-8")
        assert run("from-otlp", path)[0] == 1
