"""Names of headers: each is defined once, and in which forms."""

from __future__ import annotations

import ast
from pathlib import Path

from multidict import CIMultiDict, istr

import orch_sidecar
from orch_sidecar.api import headers
from orch_sidecar.api.headers import HOP_BY_HOP, X_ORCH_CLASS, field_line, raw

ROOT = Path(orch_sidecar.__file__).parent
NAMES = {name.lower() for name in vars(headers).values() if isinstance(name, istr)}
# A word without a hyphen is often something else than the name of a header.
DISTINCTIVE = {name for name in NAMES if "-" in name}


def literals(path: Path) -> set[str]:
    """The string and bytes literals of a file, in lower case."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            value = node.value
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            found.add(text.partition(":")[0].lower())
    return found


def test_names_are_defined_once() -> None:
    elsewhere = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in ROOT.rglob("*.py")
        if "tools" not in path.parts and path.name != "headers.py"
        if (found := literals(path) & DISTINCTIVE)
    }
    assert elsewhere == {}


def test_name_is_found_in_any_case_and_written_in_lower_case() -> None:
    assert CIMultiDict({"x-orch-CLASS": "bulk"})[X_ORCH_CLASS] == "bulk"
    assert raw(X_ORCH_CLASS) == b"x-orch-class"
    assert field_line(X_ORCH_CLASS, "bulk") == b"x-orch-class: bulk\r\n"
    assert field_line(X_ORCH_CLASS, "%b") % b"bulk" == b"x-orch-class: bulk\r\n"
    assert {b"connection", b"transfer-encoding", b"te"} <= HOP_BY_HOP
