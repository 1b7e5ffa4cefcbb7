"""Rows whose label, load, batch, figures, lengths or engine contradict each other."""

from __future__ import annotations

from tests.orch_sidecar.tools.facts.cheats import Gate
from tests.orch_sidecar.tools.facts.labelled_rows import Way

ID = "20260501T080000Z-single_stream-ab12cd"

RULE = "names a run of single_stream, but the row is labelled offline"


def tagged(name: str, base: str, tag: str, rule: str = RULE, **notes: str | None) -> Way:
    return Way(name, base, notes, {"source_tag": tag}, "source_tag", rule)


LABELS = [
    Way(
        "a batched run relabelled offline",
        "closed",
        cells={"measurement_type": "offline"},
        notes={"profile": None},
        column="source_tag",
        rule="names a run of batched_online, but the row is labelled offline",
    ),
    tagged("a single-stream run under another label", "offline", f"orch-bench:{ID}"),
    tagged("a traced run under another label", "offline", f"jaeger:orch-sidecar/{ID}", tool=None),
    tagged(
        *("one of several traced runs under another label", "offline"),
        f"otlp:spans.jsonl/{ID}#2",
        tool=None,
        scenario=ID,
    ),
    tagged(
        *("a claim that differs from the run's label", "claimed", f"orch-bench:{ID}"),
        rule="names a run of single_stream, but the row claims batched_online",
        tool="orch bench",
    ),
    Way(
        "a renamed source whose scenario names the label",
        "traced",
        {"scenario": ID},
        {"source_tag": "lab 3"},
        rule=f"'scenario={ID}': {RULE}",
    ),
    Way(
        "the scenario of another run",
        "traced",
        {"scenario": "20260501T080000Z-offline-ffffff"},
        column="source_tag",
        rule="must end with the note scenario=20260501T080000Z-offline-ffffff",
    ),
    Way("a claim in a confirmed row", "online", notes={"claim": "offline"}, rule="must be absent"),
    Way("an overlap in a confirmed row", "online", notes={"batch_is": "overlap"}, rule="absent"),
    Way("a confirmed batch to be confirmed", "claimed", notes={"batch_mean": "8"}, rule="absent"),
    Way(
        "the tool of another source",
        "online",
        cells={"source_tag": "vendor-a"},
        rule="'tool=orch bench': contradicts the source tag vendor-a",
    ),
]

REPLAYED: dict[str, str | None] = {
    "arrivals": "trace:0123456789abcdef", "trace_window": "0:300", "trace_time": "0.5",
    "trace_lengths": "0.0625", "bulk_clients": "24", "bulk_trace": "f" * 16,
    "latency_of": "interactive", "rate_per_s": None,
}  # fmt: skip
LOADS = [
    Way("single with a batch", "single", cells={"batch": "8"}, column="batch", rule="batch_mean=1"),
    Way("single with a mean", "single", notes={"batch_mean": "7.8"}, rule="least batch_mean=7.8"),
    Way("single with a peak", "single", notes={"batch_max": "2"}, rule="'batch_max=2': must be 1"),
    Way("single of 16", "single", {"at_once": "16", "arrivals": None}, rule="at_once=16': must"),
    Way("single in cloud", "single", {"profile": "cloud"}, rule="must not be cloud"),
    Way("single in offline", "single", {"profile": "offline"}, rule="must not be offline"),
    Way("single in a profile of the user's", "single", {"profile": "den"}),
    Way("single by a schedule", "single", {"arrivals": "poisson"}, rule="must be one_by_one"),
    Way("single at a rate", "single", {"rate_per_s": "2", "arrivals": None}, rule="no schedule"),
    Way("single with batching", "single", {"batching": "on"}, rule="'batching=on': must be off"),
    Way("online at home", "online", {"profile": "home"}, rule="must not be home"),
    Way("online in offline", "online", {"profile": "offline"}, rule="must not be offline"),
    Way("online one by one", "online", {"arrivals": "one_by_one", "rate_per_s": None},
        rule="'arrivals=one_by_one': must be closed_loop or"),
    Way("online with one client", "online", {"at_once": "1"}, rule="at_once=1': must be above 1"),
    Way("online without a batch", "online", {"batch_mean": "1", "batch_max": "1"}, {"batch": "1"},
        rule="'batch_max=1': must be above 1 for batched_online"),
    Way("online that was mostly alone", "online", {"batch_mean": "1.3", "batch_max": "3"},
        {"batch": "1"}),
    Way("offline by a schedule", "offline", {"arrivals": "poisson"},
        rule="must be at_once or closed_loop for offline"),
    Way("offline at a rate", "offline", {"rate_per_s": "4", "arrivals": None}, rule="no schedule"),
    Way("offline one by one", "offline", {"arrivals": "one_by_one"}, rule="arrivals=one_by_one"),
    Way("offline with one client", "offline", {"at_once": "1"}, rule="at_once=1': must be above"),
    Way("offline at home", "offline", {"profile": "home"}, rule="must not be home"),
    Way("offline in cloud", "offline", {"profile": "cloud"}, rule="must not be cloud"),
    Way("offline from a closed loop", "offline", {"arrivals": "closed_loop", "at_once": "64"}),
    Way("a claim of no label", "claimed", {"claim": "online"}, rule="must be one of none, single_"),
    Way("claimed load of another label", "claimed", {"claim": "single_stream"}, rule="for single"),
    Way("arrivals of an unknown kind", "online", {"arrivals": "one-by-one"}, rule="one of one_by"),
    Way("arrivals with look-alikes", "offline", {"arrivals": "\u0430t_once"}, rule="one of one_by"),
    Way("a closed loop with a rate", "closed", {"rate_per_s": "4"}, rule="'rate_per_s=4': must be"),
    Way("a closed loop with bursts", "closed", {"burstiness": "2"}, rule="burstiness=2': must be"),
    Way("bursts in Poisson arrivals", "online", {"burstiness": "0.5"}, rule="must be absent with"),
    Way("bursts in gamma arrivals", "online", {"arrivals": "gamma", "burstiness": "0.5"}),
    Way("a replayed trace", "online", REPLAYED),
    Way("a trace of another tool", "online", {"arrivals": "trace", "rate_per_s": None}),
    Way("a trace with a short hash", "online", {"arrivals": "trace:0123"}, rule="16 digits of its"),
    Way("a replayed trace offline", "offline", {"arrivals": REPLAYED["arrivals"]},
        rule="must be at_once or closed_loop for offline"),
    Way("a part of no trace", "online", {"trace_window": "0:300"},
        rule="'trace_window=0:300': must be absent with arrivals=poisson"),
    Way("a part without a start", "online", REPLAYED | {"trace_window": ":300"}, rule="two times"),
    Way("no bulk clients", "online", REPLAYED | {"bulk_clients": "0"}, rule="must be a whole numb"),
    Way("latencies of bulk", "online", REPLAYED | {"latency_of": "bulk"}, rule="be interactive"),
    Way("a closed loop of one", "claimed", {"at_once": "1", "claim": "none"}, {"batch": "1"},
        rule="'at_once=1': must be above 1 with arrivals=closed_loop"),
    Way("one by one of two", "claimed", {"at_once": "2", "claim": "none", "arrivals": "one_by_one"},
        {"batch": "1"}, rule="'at_once=2': must be 1 with arrivals=one_by_one"),
]  # fmt: skip

BATCHES = [
    Way("the peak as the batch", "online", cells={"batch": "16"}, column="batch",
        rule="must be batch_mean=7.8, rounded"),
    Way("a batch below the mean", "online", cells={"batch": "7"}, column="batch", rule="rounded"),
    Way("a mean of which half was rounded away", "online", {"batch_mean": "7.5"}),
    Way("that mean rounded down", "online", {"batch_mean": "7.5"}, {"batch": "7"}),
    Way("a mean above the peak", "online", {"batch_max": "7"}, rule="must be at least batch_mean"),
    Way("a mean without a peak", "online", {"batch_max": None}, rule="notes batch_max are missing"),
    Way("a peak without a mean", "online", {"batch_mean": None}, rule="notes batch_mean are mis"),
    Way("no batch of a run", "online", {"batch_mean": None, "batch_max": None}, {"batch": "64"},
        rule="the notes batch_mean, batch_max are missing, which each row of a run has"),
    Way("no notes of an older table", "online",
        {"batch_mean": None, "batch_max": None, "tool": None},
        {"batch": "32", "source_tag": "vendor-a"}),
    Way("more answers at once than clients", "claimed", cells={"batch": "9"}, column="batch",
        rule="must be at most at_once=8"),
    Way("more answers at once than requests", "claimed", {"at_once": None}, {"batch": "65"},
        column="batch", rule="must be at most requests=64"),
]  # fmt: skip

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
        {"batch": "1"}, rule="percentiles of one request are equal"),
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
        rule="'quantization=none': must have the precision BF16 or FP16 or FP32"),
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
    Way("a value given twice", "online", {"given": "gpu,gpu"}, rule="gpu,gpu': must be names"),
    Way("evidence without a digest", "online", {"evidence": "sha256:12"}, rule="64 hexadecimal"),
    Way("half a request", "online", {"requests": "1.5"}, rule="requests=1.5 must be a whole"),
    Way("requests in other digits", "online", {"requests": "\u0667\u0660"}, rule="must be a whole"),
    Way("no request", "online", {"requests": "0"}, rule="requests=0 must be a whole number"),
    Way("an infinite window", "online", {"window_s": "1e400"}, rule="window_s=1e400 must be a"),
    Way("a negative rate", "online", {"rate_per_s": "-1"}, rule="rate_per_s=-1 must be a number"),
    Way("a cut at no end", "online", {"cut": "yes"}, rule="cut=yes must be one of before, after"),
]  # fmt: skip


MISSING = Way("evidence that is nowhere", "online", {"evidence": f"sha256:{'0' * 64}"})

CHEATS = [
    MISSING.cheat._replace(rules={Gate.VERIFY: "0.json is not beside the table"}),
    *(
        way.cheat
        for way in (*LABELS, *LOADS, *BATCHES, *THROUGHPUTS, *PERCENTILES, *LENGTHS, *ENGINES)
    ),
]
