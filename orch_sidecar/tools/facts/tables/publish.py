"""Describes a table for others as a package of Frictionless Data (datapackage.org, version 2), with
the evidence of its rows as further resources.

Pure. What the columns mean says `docs/reference/tps_model_gpu.csv-metadata.json`, by W3C's CSV on
the Web: it is the same for each table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from orch_sidecar.tools.facts.tables.notes import EVIDENCE
from orch_sidecar.tools.facts.tables.row import TYPES, Row

_PROFILE: Final = "https://datapackage.org/profiles/2.0/datapackage.json"
_TITLE: Final = "Throughput of language models, by how the engine was batching"
_TYPES: Final = {int: "integer", float: "number"}


def data_package_of(
    file_name: str, content: bytes, evidence: Mapping[str, bytes]
) -> dict[str, Any]:
    """Returns the content of `datapackage.json`. `evidence`: the content of each file that supports
    a row, by its name."""
    fields = [
        {"name": name, "type": _TYPES.get(kind, "string"), "constraints": {"required": True}}
        for name, kind in TYPES.items()
    ]
    table = _resource(file_name, content, "text/csv")
    table |= {"type": "table", "encoding": "utf-8", "schema": {"fields": fields}}
    files = [_resource(*each, "application/json") for each in evidence.items()]
    name, resources = _name(file_name), [table, *files]
    return {"$schema": _PROFILE, "name": name, "title": _TITLE, "resources": resources}


def _resource(file_name: str, content: bytes, media_type: str) -> dict[str, Any]:
    return {
        "name": _name(file_name),
        "path": file_name,
        "mediatype": media_type,
        "bytes": len(content),
        "hash": f"sha256:{hashlib.sha256(content).hexdigest()}",
    }


def _name(file_name: str) -> str:
    """Returns the identifier of a file: lower case letters, digits, `.`, `-` and `_`."""
    return re.sub(r"[^a-z0-9._-]", "-", file_name.lower().rpartition(".")[0])


def named_evidence(rows: Iterable[Row]) -> list[str]:
    """Returns the digests of the evidence that rows name, each once, in their order."""
    named = (row.notes.get(EVIDENCE, "").removeprefix("sha256:") for row in rows)
    return list(dict.fromkeys(filter(None, named)))
