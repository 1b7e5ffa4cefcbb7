"""What a trace costs vLLM's API server per request, beside what vLLM's own span costs.

`python -m tests.benchmarks.engine_spans` calls vLLM's own span making (`OutputProcessor.do_tracing`)
with the exporter that vLLM sets up, which sends to a sink that only counts. The variants take turns
in one process; CPU time of all its threads, and of the thread that has the event loop in a real
server. A machine that does other work makes both dearer: what counts is the ratio to `vllm`.

| variant | what |
|---|---|
| `vllm` | no plugin |
| `plugin` | all labels of the plugin |
| `not sampled` | the plugin, but the client or the sidecar decided against the trace |
"""  # noqa: E501

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

from tests.benchmarks.proxy import build
from tests.benchmarks.proxy.targets import start_engine, stop_all

VARIANTS: Final = ("vllm", "plugin", "not sampled")
REQUESTS: Final = 512  # of a variant in a round: one export
WARM_UP_ROUNDS: Final = 2


class Rig:
    """vLLM's tracer provider, with and without the plugin."""

    def __init__(self, port: int) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http import trace_exporter
        from vllm.tracing.otel import init_otel_tracer

        from tests.benchmarks.plugin import engine_state_of_a_bench
        from vllm_plugin.adapters.spans import (
            RequestSpanEncoder,
            RequestSpanLabeller,
            SpanLabeller,
            engine_labels,
        )
        from vllm_plugin.contracts import profile as profiles

        os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
        init_otel_tracer("vllm.llm_engine", f"http://127.0.0.1:{port}/v1/traces")
        provider: Any = trace.get_tracer_provider()  # its processors have no public name
        self._provider = provider
        self._exporter: Any = trace_exporter
        plain_encoder = self._exporter.encode_spans
        state = engine_state_of_a_bench()
        own = provider._active_span_processor._span_processors
        labellers = SpanLabeller(profiles.load("cloud")), RequestSpanLabeller(state)
        encoder = RequestSpanEncoder(lambda: engine_labels(state))
        self._without = own, plain_encoder
        self._with = (*own, *labellers), encoder

    def measure(self, variant: str) -> tuple[float, float]:
        """Returns the microseconds of CPU per request: all threads, and this one."""
        processors, self._exporter.encode_spans = self._without if variant == "vllm" else self._with
        self._provider._active_span_processor._span_processors = processors
        everything, here = time.process_time(), time.thread_time()
        make_spans(REQUESTS, sampled=variant != "not sampled")
        here = time.thread_time() - here
        self._provider.force_flush()
        everything = time.process_time() - everything
        return everything / REQUESTS * 1e6, here / REQUESTS * 1e6


def make_spans(count: int, *, sampled: bool) -> None:
    """Lets vLLM make the spans of requests that have just finished."""
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
    parent = {"traceparent": f"00-{7:032x}-{9:016x}-{int(sampled):02x}"}
    output: Any = SimpleNamespace(trace_headers=parent)
    nobody: Any = None
    for _ in range(count):
        now = time.time()
        stats.arrival_time = now - 0.1
        iteration: Any = SimpleNamespace(iteration_timestamp=now)
        OutputProcessor.do_tracing(nobody, output, request, iteration)


def cell(figures: list[float], digits: int) -> str:
    low, high = min(figures), max(figures)
    return f"{median(figures):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="engine_spans")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    sink, port = start_engine("engine-sink", build.cache())
    rounds: list[dict[str, tuple[float, float]]] = []
    try:
        rig = Rig(port)
        for _ in range(WARM_UP_ROUNDS + options.rounds):
            rounds.append({variant: rig.measure(variant) for variant in VARIANTS})
    finally:
        stop_all([sink])
    del rounds[:WARM_UP_ROUNDS]
    print("| CPU per request: median (min to max) | all threads, us | over vllm's ", end="")
    print("| event loop's thread, us | over vllm's |")
    print("|---|---|---|---|---|")
    for variant in VARIANTS:
        cells = []
        for column in (0, 1):
            costs = [each[variant][column] for each in rounds]
            ratios = [each[variant][column] / each["vllm"][column] for each in rounds]
            cells += [cell(costs, 0), cell(ratios, 2)]
        print(f"| {variant} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
