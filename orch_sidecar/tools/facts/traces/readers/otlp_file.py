"""Reads spans from files of the OpenTelemetry collector's file exporter.

Pure. Such a file has one `ExportTraceServiceRequest` per line, in the order of their arrival:
sidecar and engine export separately, so the spans of one request are in several lines. A file that
is one JSON document (an export, or a list of exports) is accepted, too.
"""

from __future__ import annotations

from orch_sidecar.tools.facts.tables import json_documents
from orch_sidecar.tools.facts.tables.json_documents import InvalidJson
from orch_sidecar.tools.facts.traces.readers.otlp import Malformed, spans_of
from orch_sidecar.tools.facts.traces.span import Span


def read(name: str, content: bytes) -> list[Span]:
    """Returns the spans of a file. Raises Malformed with file and line."""
    try:
        text = json_documents.decode(content)
    except InvalidJson as error:
        hint = "the file exporter's format must be json, without compression"
        raise Malformed(f"{name}:{error} ({hint})") from None
    # Not splitlines: U+2028 may occur within a JSON string.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise Malformed(f"{name}: the file is empty")
    try:
        json_documents.parse(lines[0][1])
    except InvalidJson:
        # One document over several lines; or a malformed first line.
        return _document(name, text)
    found = []
    for number, line in lines:
        found += _request(name, number, line)
    return found


def _document(name: str, text: str) -> list[Span]:
    try:
        document = json_documents.parse(text)
    except InvalidJson as error:
        raise Malformed(f"{name}:{error}") from None
    try:
        return _spans(document)
    except Malformed as error:
        raise Malformed(f"{name}: {error}") from None


def _request(name: str, number: int, line: str) -> list[Span]:
    try:
        return _spans(json_documents.parse(line))
    except InvalidJson as error:
        raise Malformed(f"{name}:{number}: invalid JSON: {error.rule}") from None
    except Malformed as error:
        raise Malformed(f"{name}:{number}: {error}") from None


def _spans(document: object) -> list[Span]:
    if not isinstance(document, list):
        return spans_of(document)
    found = []
    for index, each in enumerate(document):
        try:
            found += spans_of(each)
        except Malformed as error:
            raise Malformed(f"[{index}]: {error}") from None
    return found
