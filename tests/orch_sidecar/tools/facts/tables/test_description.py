"""The static description of tables by W3C's CSV on the Web, held against the rules of `check`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from orch_sidecar.tools.facts.tables.row import COLUMNS, violated_rule
from tests.orch_sidecar.tools.facts.labelled_rows import NOTES, altered, faults_of
from tests.orch_sidecar.tools.facts.rows import SOUND

DESCRIPTION: Final = Path(__file__).parents[5] / "docs/reference/tps_model_gpu.csv-metadata.json"
DESCRIBED: Final[dict[str, Any]] = {
    each["name"]: each
    for each in json.loads(DESCRIPTION.read_text("utf-8"))["tableSchema"]["columns"]
}


def is_valid(name: str, value: str) -> bool:
    datatype = DESCRIBED[name]["datatype"]
    if datatype["base"] == "string":
        return re.search(datatype["format"], value) is not None
    fraction = r"(\.[0-9]+)?" * (datatype["base"] == "decimal")
    if re.fullmatch(rf"[+-]?[0-9]+{fraction}", value) is None:
        return False
    least, above = datatype.get("minimum", 0), datatype.get("minExclusive", -1)
    return bool(float(value) >= float(least) and float(value) > float(above))


def test_all_columns_are_described_in_their_order_and_required() -> None:
    assert tuple(DESCRIBED) == COLUMNS
    assert all(each["required"] and each["dc:description"] for each in DESCRIBED.values())


@pytest.mark.parametrize("base", NOTES)
def test_row_of_a_real_run_is_accepted_and_valid(base: str) -> None:
    assert faults_of(altered(base)) == []
    for name, value in zip(COLUMNS, altered(base), strict=True):
        assert is_valid(name, value), (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, "") for name in COLUMNS],
        *[(name, "1.5") for name in ("gpu_count", "batch", "input_tokens", "output_tokens")],
        ("batch", "0"),
        ("output_tokens", "0"),
        ("throughput_tokens_per_sec", "0"),
        ("measurement_type", "aggregate"),
        ("measurement_type", "batched_online2"),
        ("scenario_notes", "one user"),
        ("scenario_notes", SOUND["scenario_notes"].replace("output_tokens=512; ", "")),
    ],
)
def test_value_that_check_refuses_is_invalid(name: str, value: str) -> None:
    assert violated_rule(name, value) is not None
    assert not is_valid(name, value)
