"""Files of spans, as the OpenTelemetry collector's file exporter writes them.

Pure. One `ExportTraceServiceRequest` a line, in the order in which they came: the spans of one
request stand in several lines, for the sidecar and the engine export each for itself. A file that
is one JSON document is taken, too: a request, or a list of requests.
"""

from __future__ import annotations

from orch_sidecar.tools.facts.tables import json_documents
from orch_sidecar.tools.facts.tables.json_documents import InvalidJson
from orch_sidecar.tools.facts.traces.otlp import Malformed, spans_of
from orch_sidecar.tools.facts.traces.span import Span


def read(name: str, content: bytes) -> list[Span]:
    """The spans of a file. Raises Malformed with file and line."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        broken = content.count(b"\n", 0, error.start) + 1
        raise Malformed(
            f"{name}:{broken}: no UTF-8 (the file exporter's format must be json, "
            "without compression)"
        ) from None
    # Not splitlines: U+2028 may stand within a JSON string.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise Malformed(f"{name}: is empty")
    try:
        json_documents.whole(lines[0][1])
    except InvalidJson:
        # A document that is laid out over lines; or a first line that is broken.
        return _document(name, text)
    found = []
    for number, line in lines:
        found += _request(name, number, line)
    return found


def _document(name: str, text: str) -> list[Span]:
    try:
        document = json_documents.whole(text)
    except InvalidJson as error:
        raise Malformed(f"{name}:{error}") from None
    try:
        return _spans(document)
    except Malformed as error:
        raise Malformed(f"{name}: {error}") from None


def _request(name: str, number: int, line: str) -> list[Span]:
    try:
        return _spans(json_documents.whole(line))
    except InvalidJson as error:
        raise Malformed(f"{name}:{number}: no JSON: {error.rule}") from None
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
