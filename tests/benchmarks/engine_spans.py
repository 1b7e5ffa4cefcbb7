"""What a trace costs vLLM's API server per request, part by part.

`python -m tests.benchmarks.engine_spans` calls vLLM's own span making (`OutputProcessor.do_tracing`)
with the exporter that vLLM sets up, which sends to a sink that only counts. Each measurement is a
process; CPU time of all its threads, and of the thread that has the event loop in a real server.

| variant | what |
|---|---|
| `vllm` | no plugin |
| `type` | the plugin's labels of every span |
| `plugin` | all labels of the plugin |
| `varying` | without those that are the same for all requests of an engine |
| `not sampled` | all labels, but the client or the sidecar decided against the trace |
| `objects` | all labels, exported to nobody: what the SDK's span objects cost |
| `own export` | a sampler that keeps vLLM's request spans from vLLM's exporter (RECORD_ONLY), and a span processor that encodes them itself, the constant labels once |
"""  # noqa: E501

from __future__ import annotations

import argparse
import http.client
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

from opentelemetry.sdk.trace import SpanProcessor

from tests.benchmarks.proxy import build
from tests.benchmarks.proxy.targets import start_engine, stop_all

VARIANTS: Final = ("vllm", "type", "plugin", "varying", "not sampled", "objects", "own export")
REQUESTS: Final = 2_000


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def any_value(value: Any) -> bytes:
    if isinstance(value, str):
        return field(1, value.encode())
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value)
    return b"\x21" + struct.pack("<d", value)


class OwnExport(SpanProcessor):
    """A span processor that encodes request spans, and sends them from a thread of its own."""

    def __init__(self, port: int, constant: Mapping[str, Any]) -> None:
        self._constant = b"".join(
            field(9, field(1, k.encode()) + field(2, any_value(v))) for k, v in constant.items()
        )
        self._keys: dict[str, bytes] = {}
        self._spans: list[bytes] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def on_start(self, span: Any, parent_context: Any = None) -> None: ...

    def on_end(self, span: Any) -> None:
        context = span.context
        parts = [field(1, context.trace_id.to_bytes(16)), field(2, context.span_id.to_bytes(8))]
        if span.parent is not None:
            parts.append(field(4, span.parent.span_id.to_bytes(8)))
        parts += [
            field(5, span.name.encode()),
            b"\x30\x02\x39" + struct.pack("<Q", span.start_time),
            b"\x41" + struct.pack("<Q", span.end_time),
            self._constant,
        ]
        for key, value in span.attributes.items():
            name = self._keys.get(key)
            if name is None:
                name = self._keys[key] = field(1, key.encode())
            parts.append(field(9, name + field(2, any_value(value))))
        self._spans.append(field(2, b"".join(parts)))

    def _work(self) -> None:
        while not self._stop.wait(0.5):
            self.force_flush()

    def force_flush(self, timeout_millis: int = 0) -> bool:
        spans, self._spans = self._spans, []
        if spans:
            self._connection.request("POST", "/v1/traces", field(1, field(2, b"".join(spans))))
            self._connection.getresponse().read()
        return True

    def shutdown(self) -> None:
        self._stop.set()
        self._thread.join()


def prepared(variant: str, port: int) -> Any:
    """vLLM's tracer provider with the processors of the variant."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
    from vllm.tracing.otel import init_otel_tracer

    from tests.benchmarks.plugin import engine_state_of_a_bench
    from vllm_plugin.adapters.spans import RequestSpanLabeller, SpanLabeller
    from vllm_plugin.contracts import profile as profiles

    os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    init_otel_tracer("vllm.llm_engine", f"http://127.0.0.1:{port}/v1/traces")
    provider: Any = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    labeller = RequestSpanLabeller(engine_state_of_a_bench())
    constant = SpanLabeller(profiles.load("cloud"))
    if variant == "objects":
        provider._active_span_processor._span_processors = ()
    if variant in ("varying", "own export"):
        vars(labeller)["_engine"] = {}
    if variant not in ("vllm", "varying", "own export"):
        provider.add_span_processor(constant)
    if variant not in ("vllm", "type"):
        provider.add_span_processor(labeller)
    if variant == "own export":
        engine = RequestSpanLabeller(engine_state_of_a_bench())._engine
        labels = {**engine, **constant.labels}

        class RecordOnly(Sampler):
            def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
                return SamplingResult(Decision.RECORD_ONLY)

            def get_description(self) -> str:
                return "RecordOnly"

        provider.sampler = RecordOnly()
        provider.add_span_processor(OwnExport(port, labels))
    return provider


def measure(variant: str, port: int) -> tuple[float, float]:
    """Microseconds of CPU per request: all threads, and this one."""
    provider = prepared(variant, port)
    from vllm.v1.engine.output_processor import OutputProcessor

    stats = SimpleNamespace(
        arrival_time=0.0,
        scheduled_ts=1.0,
        queued_ts=0.9,
        first_token_ts=1.1,
        last_token_ts=1.2,
        first_token_latency=0.05,
        num_generation_tokens=128,
    )
    request: Any = SimpleNamespace(
        stats=stats,
        prompt_token_ids=[1] * 20,
        prompt_embeds=None,
        external_req_id="cmpl-0123456789abcdef0123456789abcdef",
        top_p=1.0,
        max_tokens_param=128,
        temperature=0.7,
        n=1,
    )
    flags = 0 if variant == "not sampled" else 1
    parent = {"traceparent": f"00-{7:032x}-{9:016x}-{flags:02x}"}
    output: Any = SimpleNamespace(trace_headers=parent)
    nobody: Any = None

    def run(count: int) -> None:
        for number in range(count):
            now = time.time()
            stats.arrival_time = now - 0.1
            iteration: Any = SimpleNamespace(iteration_timestamp=now)
            OutputProcessor.do_tracing(nobody, output, request, iteration)
            if number % 50 == 49:
                time.sleep(0.02)  # the exporter's thread has time, as in a server

    run(REQUESTS // 10)
    provider.force_flush()
    everything, here = time.process_time(), time.thread_time()
    run(REQUESTS)
    here = time.thread_time() - here
    provider.force_flush()
    everything = time.process_time() - everything
    provider.shutdown()
    return everything / REQUESTS * 1e6, here / REQUESTS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="engine_spans")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    sink, port = start_engine("engine-sink", build.cache())
    found: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
    try:
        for _ in range(options.rounds):
            for variant, costs in found.items():
                command = [sys.executable, "-m", __spec__.name, "--one", variant, str(port)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                costs.append(tuple(json.loads(done.stdout.splitlines()[-1])))
    finally:
        stop_all([sink])
    print("| CPU per request, us: median (min to max) | all threads | event loop's thread |")
    print("|---|---|---|")
    for variant, costs in found.items():
        cells = [
            f"{median(c):.0f} ({min(c):.0f} to {max(c):.0f})" for c in zip(*costs, strict=True)
        ]
        print(f"| {variant} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
