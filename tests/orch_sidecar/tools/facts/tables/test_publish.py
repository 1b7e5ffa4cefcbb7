"""The published description of a table, held against the rules of Frictionless Data, version 2."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest

from orch_sidecar.tools.facts.tables.publish import data_package_of, named_evidence
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, violated_rule
from tests.orch_sidecar.tools.facts.labelled_rows import NOTES, altered
from tests.orch_sidecar.tools.facts.rows import SOUND, fact

EVIDENCE = "0" * 64
PACKAGE = data_package_of("TPS model_gpu.csv", b"a,b", {f"{EVIDENCE}.json": b"{}"})
FIELDS: dict[str, Any] = {
    each["name"]: each for each in PACKAGE["resources"][0]["schema"]["fields"]
}


def is_valid(name: str, value: str) -> bool:
    field = FIELDS[name]
    limits = field["constraints"]
    if field["type"] == "string":
        enum, pattern = limits.get("enum", [value]), limits.get("pattern", ".*")
        return value in enum and re.fullmatch(pattern, value) is not None
    if re.fullmatch(r"[+-]?[0-9]+" + (r"(\.[0-9]+)?" * (field["type"] == "number")), value) is None:
        return False
    low, above = limits.get("minimum", 0), limits.get("exclusiveMinimum", -1)
    return bool(float(value) >= low and float(value) > above)


def test_package_has_the_columns_of_the_header_in_their_order() -> None:
    assert tuple(FIELDS) == COLUMNS
    assert all(each["constraints"]["required"] is True for each in FIELDS.values())
    assert FIELDS["measurement_type"]["constraints"]["enum"] == list(Label)


@pytest.mark.parametrize("base", NOTES)
def test_row_of_a_run_is_valid(base: str) -> None:
    for name, value in zip(COLUMNS, altered(base), strict=True):
        assert is_valid(name, value), (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, "") for name in COLUMNS],
        *[(name, " x") for name in COLUMNS if name != "scenario_notes"],
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


def test_package_has_the_table_and_its_evidence_with_size_and_hash() -> None:
    table, evidence = PACKAGE["resources"]
    for each in (PACKAGE, table, evidence):
        assert re.fullmatch("[a-z0-9._-]+", each["name"])
    assert (table["path"], table["type"], table["bytes"]) == ("TPS model_gpu.csv", "table", 3)
    assert table["hash"] == f"sha256:{hashlib.sha256(b'a,b').hexdigest()}"
    assert evidence == {
        "name": EVIDENCE,
        "path": f"{EVIDENCE}.json",
        "format": "json",
        "mediatype": "application/json",
        "bytes": 2,
        "hash": f"sha256:{hashlib.sha256(b'{}').hexdigest()}",
    }


def test_evidence_of_several_rows_is_named_once() -> None:
    row = fact(notes={"evidence": f"sha256:{EVIDENCE}"})
    assert named_evidence([fact(), row, row]) == [EVIDENCE]
