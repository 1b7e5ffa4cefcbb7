"""`orch up --check`: sends requests through a running stack and verifies what the project promises.

Answers are not empty, the slots were never exceeded, each request has one trace whose labels agree
with what the engine did, and the tokens of answers, traces and engine are the same number. A small
OTLP/HTTP receiver stands for a collector.
"""

from __future__ import annotations

import gzip
import json
import secrets
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from orch_sidecar.observability.otlp.encoder import ENGINE_SPAN, WAIT_SPAN
from orch_sidecar.tools.local.stack import DIRECT, Stack, get_json


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A received span. Ids are hexadecimal, times are nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def service(self) -> str:
        return str(self.resource.get("service.name", ""))


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    return None if which is None else getattr(value, which)


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def decode(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    """Returns the spans of one export request."""
    return [
        ReceivedSpan(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            name=span.name,
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            attributes=_attributes(span.attributes),
            resource=_attributes(resource_spans.resource.attributes),
        )
        for resource_spans in request.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


class OtlpReceiver:
    """Stores the spans exported to it. Use as a context manager."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self._lock: Final = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """The value for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Stores the spans of one export request; called from a thread per connection."""
        spans = decode(request)
        with self._lock:
            self._spans.extend(spans)

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans received so far."""
        with self._lock:
            return list(self._spans)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """Returns the spans of a trace received so far, by start."""
        with self._lock:
            found = [span for span in self._spans if span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.start_ns)

    def wait(
        self, trace_id: str, complete: Callable[[list[ReceivedSpan]], bool], within_s: float
    ) -> list[ReceivedSpan]:
        """Returns the spans of a trace once they are complete, or after a timeout."""
        until = time.monotonic() + within_s
        while True:
            spans = self.trace(trace_id)
            if complete(spans) or time.monotonic() > until:
                return spans
            time.sleep(0.05)


def tree(spans: list[ReceivedSpan], shown: Iterable[str]) -> str:
    """Formats a trace as an indented tree with durations and the attributes named in `shown`."""
    names = tuple(shown)
    known = {span.span_id for span in spans}
    lines: list[str] = []

    def add(span: ReceivedSpan, depth: int) -> None:
        attributes = "  ".join(
            f"{name}={span.attributes[name]}" for name in names if name in span.attributes
        )
        milliseconds = (span.end_ns - span.start_ns) / 1e6
        lines.append(
            f"{'  ' * depth}{span.name}  [{span.service}]  {milliseconds:.1f} ms  {attributes}"
        )
        for child in spans:
            if child.parent_id == span.span_id:
                add(child, depth + 1)

    for span in spans:
        if span.parent_id not in known:
            add(span, 0)
    return "\n".join(lines)


# vLLM's name for its span of one request.
REQUEST_SPAN: Final = "llm_request"
_OUTPUT: Final = "gen_ai.usage.output_tokens"

# Not `orch.steps`: a span ends before its last step is known, so that it is one below the engine's.
SHOWN: Final = (
    "measurement_type",
    "orch.outcome",
    "orch.batch_size.max",
    "orch.batch_size.mean",
    "gen_ai.usage.input_tokens",
    _OUTPUT,
)
_AT_ONCE: Final = 4
_TRACES_WITHIN_S: Final = 20.0
# The engine reports its counters once a second: when two readings further apart than that agree,
# it has nothing more to report.
_READ_EVERY_S: Final = 1.1
_COUNTED_WITHIN_S: Final = 20.0
_COUNTS: Final = (
    "requests_total", "steps_total", "steps_by_batch", "prefill", "generated_tokens_total",
)  # fmt: skip
_NOW: Final = ("running", "waiting", "leased", "foreign")


class Findings(NamedTuple):
    """The problems that were found, and what was seen, in one line."""

    problems: list[str]
    summary: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The text and the tokens of a chat completion, and the id of its trace."""

    text: str
    tokens: int
    trace_id: str


def ask(url: str, model: str, max_tokens: int) -> Answer:
    """Requests one chat completion through the sidecar, as the root of a trace."""
    trace_id = secrets.token_hex(16)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is a slot?"}],
        "max_tokens": max_tokens,
        "min_tokens": max_tokens // 2,  # random weights may end an answer at once
    }
    request = urllib.request.Request(  # noqa: S310 (our URL)
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {
            "Content-Type": "application/json",
            "traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01",
        },
    )
    with DIRECT.open(request, timeout=120) as response:
        document = json.load(response)
    text, tokens = document["choices"][0]["message"]["content"], document["usage"]
    return Answer(text, tokens["completion_tokens"], trace_id)


def _complete(spans: list[ReceivedSpan]) -> bool:
    return len(spans) >= 4


def problems_of_trace(spans: list[ReceivedSpan], capabilities: dict[str, Any]) -> list[str]:
    """Returns the problems of the trace of one request."""
    found = []
    by_name = {span.name: span for span in spans}
    for name in (WAIT_SPAN, ENGINE_SPAN, REQUEST_SPAN):
        if name not in by_name:
            found.append(f"the trace has no span {name}, only {sorted(by_name)}")
    expected = capabilities["measurement_type"]
    for span in spans:
        for place, values in (("span", span.attributes), ("resource", span.resource)):
            if values.get("measurement_type") != expected:
                found.append(
                    f"{place} of {span.name}: measurement_type is "
                    f"{values.get('measurement_type')!r}, not {expected!r}"
                )
    if found:
        return found
    largest = by_name[REQUEST_SPAN].attributes.get("orch.batch_size.max")
    if largest is None:
        found.append(f"the span {REQUEST_SPAN} has no attribute orch.batch_size.max")
    elif largest > capabilities["slots_total"]:
        found.append(f"a batch had {largest} sequences, in {capabilities['slots_total']} slots")
    return found


def settled(url: str, requests: int) -> dict[str, Any]:
    """Returns the capabilities once the engine is idle and has reported that many requests.

    After a timeout it returns them as they are.
    """
    until = time.monotonic() + _COUNTED_WITHIN_S
    before: list[Any] = []
    while True:
        _, document = get_json(f"{url}/v1/capabilities")
        engine = document["engines"][0]
        counts = [engine[name] for name in _COUNTS]
        idle = not any(engine[name] for name in _NOW)
        if idle and engine["requests_total"] >= requests and counts == before:
            return document
        if time.monotonic() > until:
            return document
        before = counts
        time.sleep(_READ_EVERY_S)


def run(stack: Stack, receiver: OtlpReceiver) -> Findings:
    """Prints an answer, the capabilities and a trace; returns what was found."""
    engine = settled(stack.url, 0)["engines"][0]
    at_once = min(_AT_ONCE, engine["slots_total"])
    model, before = engine["models"][0], engine
    # Concurrent requests are batched; with a single slot they queue.
    with ThreadPoolExecutor(_AT_ONCE) as clients:
        answers = list(clients.map(lambda _: ask(stack.url, model, 24), range(_AT_ONCE)))
    print(f"\n{_AT_ONCE} concurrent requests, {at_once} at a time in the engine; one answer:")
    print(f"  {answers[0].text!r}")

    document = settled(stack.url, before["requests_total"] + _AT_ONCE)
    engine = document["engines"][0]
    print("\n/v1/capabilities:")
    print("  " + json.dumps(document, indent=2).replace("\n", "\n  "))

    traces = [receiver.wait(a.trace_id, _complete, _TRACES_WITHIN_S) for a in answers]
    print("\nthe trace of that request:")
    print("  " + tree(traces[0], SHOWN).replace("\n", "\n  "))

    found = [problem for spans in traces for problem in problems_of_trace(spans, engine)]
    counted, steps = engine["requests_total"] - before["requests_total"], engine["steps_total"]
    if counted < _AT_ONCE or not steps:
        found.append(
            f"{_AT_ONCE} requests were sent, but the engine reports {counted} in {steps} steps"
        )
    if engine["peak"] > engine["slots_total"]:
        found.append(f"the engine held {engine['peak']} sequences in {engine['slots_total']} slots")
    if engine["oversubscription_violations_total"]:
        found.append("the sidecar granted more leases than there are slots")
    if any(not answer.text for answer in answers):
        found.append("an answer was empty")
    tokens = sum(answer.tokens for answer in answers)
    figures = {
        "the answers": tokens,
        "the traces": sum(_tokens(spans) for spans in traces),
        "the engine": engine["generated_tokens_total"] - before["generated_tokens_total"],
    }
    if len(set(figures.values())) > 1:
        counts = ", ".join(f"{count} by {what}" for what, count in figures.items())
        found.append(f"the generated tokens differ: {counts}")
    slots = engine["slots_total"]
    summary = (
        f"{_AT_ONCE} requests answered with {tokens} tokens, {at_once} at a time in "
        f"{slots} slot{'' if slots == 1 else 's'}; the engine and {len(traces)} traces agree"
    )
    return Findings(found, summary)


def _tokens(spans: list[ReceivedSpan]) -> int:
    """Returns the tokens that the engine's span of a request reports; 0 without one."""
    counts = (span.attributes.get(_OUTPUT) for span in spans if span.name == REQUEST_SPAN)
    return next((int(count) for count in counts if count is not None), 0)
