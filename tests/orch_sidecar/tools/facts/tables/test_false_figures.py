"""Rows whose figures, lengths or engine contradict each other."""

from __future__ import annotations

import pytest

from tests.orch_sidecar.tools.facts.labelled_rows import Way, check_fault

TPS = "throughput_tokens_per_sec"
SHORT = {"requests": "600", "window_s": "60"}

THROUGHPUTS = [
    Way("9999 tokens/s", "online", SHORT | {"preliminary": "yes"}, {TPS: "9999"}, TPS,
        "must be 5114.96 to 5125.04: 600 requests with 512 generated tokens each (rounded) in"),
    Way("the highest of the rounding", "online", cells={TPS: "588.115"}),
    Way("above the rounding", "online", cells={TPS: "588.2"}, column=TPS, rule="must be 586.967"),
    Way("below the rounding", "online", cells={TPS: "586.9"}, column=TPS, rule="must be 586.967"),
    Way("a window divided by ten", "online", {"window_s": "61", "preliminary": "yes"}, {}, TPS,
        "must be 5869"),
    Way("ten times the requests", "online", {"requests": "7000"}, {}, TPS, "must be 5869"),
    Way("one request has whole tokens", "online", {"requests": "1", "preliminary": "yes",
        "latency_p50_ms": None, "latency_p90_ms": None, "latency_p95_ms": None, "ttft_p95_ms": None,
        "tpot_p95_ms": None}, {TPS: "0.84"}, TPS, "must be 0.839344 to 0.83934"),
    Way("a tool's own throughput within a thousandth", "claimed",
        {"window_is": "the tool's duration"}, {TPS: "547.2"}),
    Way("the same without the note", "claimed", {}, {TPS: "547.2"}, TPS, "must be 545.59"),
    Way("a window too short to be noted", "claimed", {"window_s": "0", **dict.fromkeys(
        ("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms", "latency_p50_ms",
         "latency_p90_ms", "latency_p95_ms"))}, {TPS: "99999999"}),
]  # fmt: skip

PERCENTILES = [
    Way("descending percentiles", "online", {"ttft_p95_ms": "79.9"}, rule="at least ttft_p50_ms"),
    Way("a 90th above the 95th", "online", {"latency_p90_ms": "7301"},
        rule="'latency_p95_ms=7300': must be at least latency_p90_ms=7301"),
    Way("a first token after the end", "online", {"ttft_p50_ms": "100", "latency_p50_ms": "99"},
        rule="'latency_p50_ms=99': must be at least ttft_p50_ms=100"),
    Way("an early estimate below its percentile", "online", {"latency_p90_early_ms": "7100"},
        rule="'latency_p90_early_ms=7100': must be at least latency_p90_ms=7100.25"),
    Way("an early estimate", "online", {"latency_p90_early_ms": "7211"}),
    Way("an early estimate of too few", "single", {"latency_p95_early_ms": "7400"},
        rule="'latency_p95_early_ms=7400': must be absent with requests=90: at least 130"),
    Way("a request longer than the window", "online", {"latency_p95_ms": "610010"},
        rule="must be at most window_s=610"),
    Way("a TPOT longer than the window", "online", {"tpot_p95_ms": "610010"}, rule="window_s=610"),
    Way("as long as the window", "online", {"latency_p95_ms": "610000"}),
    Way("one by one, longer than the window in sum", "single", {"latency_p50_ms": "13900",
        "latency_p90_ms": "13900", "latency_p95_ms": "13900"}, rule="45 of 90 requests took"),
    Way("one by one, as long as the window in sum", "single", {"latency_p50_ms": "6780",
        "latency_p90_ms": "7100", "latency_p95_ms": "122000"}),
    Way("16 clients, longer than 16 windows in sum", "closed", {"latency_p50_ms": "27900",
        "latency_p90_ms": "28000", "latency_p95_ms": "28000"}, rule="at most 16 at once, in 610 s"),
    Way("without clients the sum has no bound", "online", {"latency_p50_ms": "27900",
        "latency_p90_ms": "28000", "latency_p95_ms": "28000"}),
    Way("one request with two latencies", "claimed", {"requests": "1", "window_s": "0.9375"},
        {"batch": "1"}, rule="since requests=1"),
    Way("a negative TPOT", "online", {"tpot_p50_ms": "-3"}, rule="tpot_p50_ms=-3 must be a num"),
    Way("a TTFT that is no number", "online", {"ttft_p50_ms": "nan"}, rule="ttft_p50_ms=nan must"),
]  # fmt: skip

LENGTHS = [
    Way("preliminary deleted", "traced", {"preliminary": None}, rule="preliminary=yes is missing"),
    Way("too few queries", "single", {"requests": "63"}, rule="63 queries, MLPerf"),
    Way("too short", "offline", {"window_s": "599.999"}, {TPS: "597.334"}, rule="600.0 s, MLPerf"),
    Way("a length rounded to the minimum", "offline", {"window_s": "600"}, {TPS: "597.333"}),
    Way("the same, preliminary", "offline", {"window_s": "600", "preliminary": "yes"},
        {TPS: "597.333"}),
    Way("preliminary without need", "offline", {"preliminary": "yes"}, rule="must be absent: 700"),
    Way("another word", "traced", {"preliminary": "no"}, rule="preliminary=no must be yes"),
    Way("no length of a run", "online", {"requests": None, "window_s": None},
        rule="the notes requests, window_s are missing, which each row of a run has"),
    Way("no length of an older table", "online",
        {"requests": None, "window_s": None, "tool": None}, {"source_tag": "vendor-a"}),
]  # fmt: skip

ENGINES = [
    Way("hits without a prefix cache", "online", {"prefix_caching": "off"},
        rule="'prefix_hit_ratio=0.25': must be 0 with prefix_caching=off"),
    Way("no hits without a prefix cache", "online",
        {"prefix_caching": "off", "prefix_hit_ratio": "0"}),
    Way("more hits than queries", "online", {"prefix_hit_ratio": "1.01"}, rule="from 0 to 1"),
    Way("more goodput than requests", "online", {"goodput_share": "1.2"}, rule="from 0 to 1"),
    Way("accepted drafts of none", "online", {"acceptance_length": "2.1"}, rule="speculative=none"),
    Way("more accepted than drafted", "online", {"speculative": "ngram:3",
        "acceptance_length": "4.1"}, rule="must be at most 4 with speculative=ngram:3"),
    Way("all drafts accepted", "online", {"speculative": "ngram:3", "acceptance_length": "4"}),
    Way("GPUs of a CPU", "online", cells={"gpu": "CPU (some Xeon)"}, column="gpu_count",
        rule="must be 0: gpu is CPU (some Xeon)"),
    Way("no GPU of an H100", "online", cells={"gpu_count": "0"}, column="gpu_count",
        rule="must be at least 1: gpu is"),
    Way("speculative decoding", "online", {"speculative": "ngram:3", "acceptance_length": "2.1"}),
    Way("an unreadable method", "online", {"speculative": "ngram:many"}, rule="ngram:3"),
    Way("several attention backends", "online", {"attention_backend": "FLASH_ATTN+MAMBA2_ATTN"}),
    Way("an empty backend", "online", {"attention_backend": ""}, rule="name of a backend"),
    Way("another precision than the quantization", "online", {"quantization": "awq"},
        rule="'quantization=awq': must have the precision AWQ, not BF16"),
    Way("the precision of the quantization", "online", {"quantization": "fp8"},
        {"precision": "FP8"}),
    Way("the precision of no quantization", "online", cells={"precision": "FP8"},
        rule="'quantization=none': must have a precision of BF16, FP16, FP32"),
    Way("a declared precision", "online", {"quantization": "awq", "given": "precision"},
        {"precision": "W4A16"}),
    Way("more ranks than GPUs", "online", {"tensor_parallel": "2", "pipeline_parallel": "2"},
        {"gpu_count": "2"}, rule="must be at most gpu_count, 2"),
    Way("ranks on CPUs", "online", {"tensor_parallel": "2"},
        {"gpu": "CPU (some Xeon)", "gpu_count": "0"}),
    Way("one rank of eight", "online", {"data_parallel": "8"}),
    Way("one rank of one", "online", {"data_parallel": "1"}, rule="data_parallel=1 must be a"),
    Way("ranks of context parallelism", "online", {"tensor_parallel": "2"}, {"gpu_count": "4"}),
    Way("served under its own id", "online", {"served_as": "meta-llama/Llama-3.1-8B-Instruct"},
        rule="must be absent: it equals model_id"),
    Way("a given value that is no column", "online", {"given": "gpu,speed"}, rule="names of col"),
    Way("a value given twice", "online", {"given": "gpu,gpu"}, rule="given=gpu,gpu must be names"),
    Way("evidence without a digest", "online", {"evidence": "sha256:12"}, rule="64 hexadecimal"),
    Way("evidence", "online", {"evidence": f"sha256:{'0' * 64}"}),
    Way("half a request", "online", {"requests": "1.5"}, rule="requests=1.5 must be a whole"),
    Way("requests in other digits", "online", {"requests": "\u0667\u0660"}, rule="must be a whole"),
    Way("no request", "online", {"requests": "0"}, rule="requests=0 must be a whole number"),
    Way("an infinite window", "online", {"window_s": "1e400"}, rule="window_s=1e400 must be a"),
    Way("a negative rate", "online", {"rate_per_s": "-1"}, rule="rate_per_s=-1 must be a number"),
    Way("a cut at no end", "online", {"cut": "yes"}, rule="cut=yes must be one of before, after"),
]  # fmt: skip


@pytest.mark.parametrize(
    "way", [*THROUGHPUTS, *PERCENTILES, *LENGTHS, *ENGINES], ids=lambda way: way.name
)
def test_contradiction_is_a_fault_at_its_column(way: Way) -> None:
    check_fault(way)
