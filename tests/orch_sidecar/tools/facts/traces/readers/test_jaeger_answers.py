"""The answers against which Jaeger's own tests hold its query service, field by field.

`jaeger_answers.json` has them as recorded, with their source.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.facts.traces.readers.jaeger import _spans
from orch_sidecar.tools.facts.traces.readers.spans import spans_of
from orch_sidecar.tools.facts.traces.span import SERVICE, Kind, Link, Span

ANSWERS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("jaeger_answers.json").read_text(encoding="utf-8")
)


def answered(name: str) -> list[Span]:
    """The spans of an answer, as the client of the query service reads it."""
    return _spans(json.dumps(ANSWERS[name]).encode())


def test_ui_form_of_a_trace_gives_the_same_spans_as_the_export_that_jaeger_made_it_of() -> None:
    exported, shown = spans_of(ANSWERS["otlp_in"]), answered("ui_out")
    assert len(shown) == len(exported) == 2
    for ours, theirs in zip(exported, shown, strict=True):
        # Jaeger keeps microseconds, and the scope as an attribute: all else is the same.
        end_ns = (ours.start_ns // 1000 + (ours.end_ns - ours.start_ns) // 1000) * 1000
        scope = {"otel.scope.name": "telemetrygen"}
        assert theirs == replace(
            ours,
            start_ns=ours.start_ns // 1000 * 1000,
            end_ns=end_ns,
            attributes={**scope, **ours.attributes},
        )
        assert theirs.service == "telemetrygen"
        assert theirs.kind is Kind.SERVER


def test_values_have_their_types() -> None:
    _, typed, *_ = spans_of({"data": [ANSWERS["ui_types"]]})
    assert typed.attributes == {
        "peer.service": "service-y",
        "peer.ipv4": 23456,
        "temperature": 72.5,
        "javascript_limit": 9223372036854775222,  # given as text, beyond what JavaScript counts
        "blob": b"\x00\x0009",
    }
    assert typed.error


def test_parent_is_the_reference_within_the_trace_and_others_are_links() -> None:
    referring = spans_of({"data": [ANSWERS["ui_types"]]})[3]
    trace, parent = "1".rjust(32, "0"), "2".rjust(16, "0")
    assert (referring.trace_id, referring.parent_id) == (trace, parent)
    assert referring.links == (Link("ff".rjust(32, "0"), "ff".rjust(16, "0")), Link(trace, parent))
    assert referring.resource[SERVICE] == "service-y"


def test_answer_of_the_newer_api_is_one_object_with_otlp() -> None:
    [span] = answered("v3")
    assert (span.name, span.kind, span.error) == ("foobar", Kind.SERVER, True)
    assert (span.trace_id, span.span_id) == ("1".rjust(32, "0"), "2".rjust(16, "0"))
    assert (span.start_ns, dict(span.resource)) == (0, {})
