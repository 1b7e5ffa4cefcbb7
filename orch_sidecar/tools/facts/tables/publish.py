"""Describes a table for others, as a package of Frictionless Data (datapackage.org).

Pure. It is generated from the columns, `row.TABLE`. What relates several fields or rows it cannot
state: `orch facts check` does.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from orch_sidecar.tools.facts.tables.forms import Form
from orch_sidecar.tools.facts.tables.notes import EVIDENCE
from orch_sidecar.tools.facts.tables.row import TABLE, Row, parse_notes

_TITLE: Final = "Throughput of language models, by how the engine was batching"


def data_package_of(
    file_name: str, content: bytes, evidence: Mapping[str, bytes]
) -> dict[str, Any]:
    """Returns the content of `datapackage.json` (datapackage.org, version 2).

    `evidence`: the content of each file that supports a row, by its name.
    """
    table = {
        **_resource(file_name, content, "csv", "text/csv"),
        "type": "table",
        "encoding": "utf-8",
        "schema": {
            "fields": [
                {
                    "name": name,
                    "type": column.form.base,
                    "description": column.meaning,
                    "constraints": {"required": True, **_constraints(column.form)},
                }
                for name, column in TABLE.items()
            ]
        },
    }
    files = [_resource(*each, "json", "application/json") for each in evidence.items()]
    return {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": _name(file_name),
        "title": _TITLE,
        "resources": [table, *files],
    }


def _constraints(form: Form) -> dict[str, Any]:
    if form.values:
        return {"enum": list(form.values)}
    if form.base == "string":
        return {"pattern": form.pattern}
    limits = {"minimum": form.least, "exclusiveMinimum": form.above, "maximum": form.most}
    return {name: limit for name, limit in limits.items() if math.isfinite(limit)}


def _resource(file_name: str, content: bytes, form: str, media_type: str) -> dict[str, Any]:
    return {
        "name": _name(file_name),
        "path": file_name,
        "format": form,
        "mediatype": media_type,
        "bytes": len(content),
        "hash": f"sha256:{hashlib.sha256(content).hexdigest()}",
    }


def _name(file_name: str) -> str:
    """Returns the identifier of a file: lower case letters, digits, `.`, `-` and `_`."""
    return re.sub(r"[^a-z0-9._-]", "-", file_name.lower().rpartition(".")[0])


def named_evidence(rows: Iterable[Row]) -> list[str]:
    """Returns the digests of the evidence that rows name, each once, in their order."""
    notes = (parse_notes(row.scenario_notes) for row in rows)
    return list(
        dict.fromkeys(each[EVIDENCE].removeprefix("sha256:") for each in notes if EVIDENCE in each)
    )
