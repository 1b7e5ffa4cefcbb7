"""Names and values of the notes in `scenario_notes` that several modules write, compare or read.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

# Sequences per decode step: the mean over the steps of the window, and the largest. The column
# `batch` is the mean, rounded.
BATCH_MEAN: Final = "batch_mean"
BATCH_MAX: Final = "batch_max"
# Of all requests, those that met the SLO.
GOODPUT_SHARE: Final = "goodput_share"
# The bounds of the SLO, in milliseconds.
SLOS: Final = ("slo_ttft_ms", "slo_tpot_ms", "slo_latency_ms")
# Of a run of requests for several sequences: the mean number of requests that were decoded at once.
BATCH_REQUESTS: Final = "batch_requests"

# How the engine was configured, as it reports it. Rows that differ in one of these were measured
# under different conditions: the notes are part of a row's identity, and of a comparison's sets.
CONDITIONS: Final = (
    "speculative",  # "none", or the method and its drafts per step: "ngram:3"
    "quantization",  # "none", or vLLM's name of the method: "awq"
    "kv_cache_dtype",  # "bfloat16", "fp8_e4m3"
    "prefix_caching",  # "on" or "off"
    "attention_backend",  # "FLASH_ATTN"
    "tensor_parallel",  # ranks
    "pipeline_parallel",  # ranks
)
# Of how many data-parallel ranks the engine was one; noted above 1. A condition as these are.
DATA_PARALLEL: Final = "data_parallel"
# The model as the engine loaded it: digits of a digest of its configuration in effect and of its
# parameters, with "dummy:" or "random:" before them where its weights mean nothing. A condition,
# too; engines of older releases do not report it.
LOADED: Final = "loaded"
# Conditions that engines of older releases do not report, either; one that is missing is unknown.
SETTINGS: Final = (
    "max_num_batched_tokens",
    "long_prefill_token_threshold",  # 0: none
    "async_scheduling",  # "on" or "off"
    "prefill_schedule_interval",  # steps
    "execution",  # "eager", "vllm_compile+full_and_piecewise"
    "kv_offload",  # "none", or the KV connector and its GiB: "OffloadingConnector:8"
    "max_loras",  # 0: without LoRA
)
# All conditions of an engine.
ENGINE: Final = (*CONDITIONS, DATA_PARALLEL, LOADED, *SETTINGS)
# Prompt tokens found in the prefix cache over prompt tokens looked up in it, of the window: 0 to 1.
PREFIX_HIT_RATIO: Final = "prefix_hit_ratio"

# What limits the trust in a figure. Rows that differ in one of these are not averaged.
GIVEN: Final = "given"  # the columns that the user declared: "engine,gpu"
PRELIMINARY: Final = "preliminary"  # "yes": too short to be published
CUT: Final = "cut"  # requests of the scenario lie outside of the interval that was read
CLIENT_BOTTLENECK: Final = "client_bottleneck"  # "yes"
STATES: Final = "states"  # "unsigned": those of the engine by which another tool's run was judged
EVIDENCE: Final = "evidence"  # "sha256:<hex>" of the evidence file beside the table


# What was replayed, beside the trace that the note `arrivals` names: the part of it, its factors,
# and the bulk work that ran beside it. A trace by another part or factor is another load.
TRACE_WINDOW: Final = "trace_window"  # "0:300", in its seconds; without an end "300:"
TRACE_TIME: Final = "trace_time"  # the factor of its times
TRACE_LENGTHS: Final = "trace_lengths"  # the factor of its lengths
BULK_CLIENTS: Final = "bulk_clients"
BULK_TRACE: Final = "bulk_trace"  # digits of its SHA-256
REPLAYED: Final = (TRACE_WINDOW, TRACE_TIME, TRACE_LENGTHS, BULK_CLIENTS, BULK_TRACE)
# "interactive": the latencies and the goodput are of these requests only.
LATENCY_OF: Final = "latency_of"

# Hexadecimal digits of a trace's SHA-256 in a note.
TRACE_DIGITS: Final = 16


class Arrivals(StrEnum):
    """How requests arrive: the values of the note `arrivals`. A trace may be named by the first
    digits of its SHA-256: `trace:0123456789abcdef`."""

    ONE_BY_ONE = "one_by_one"  # one client, which waits for each answer
    CLOSED_LOOP = "closed_loop"  # several such clients
    AT_ONCE = "at_once"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    REPEATED_GAPS = "repeated_gaps"  # exponential gaps, each of which occurs several times
    TRACE = "trace"
    OPEN_LOOP = "open_loop"  # a schedule of one of these kinds, as the times of spans show it


def arrivals_of(notes: Mapping[str, str]) -> str | None:
    """Returns the kind of arrivals that a row notes, without the digits of a trace."""
    value = notes.get("arrivals")
    kind = (value or "").partition(":")[0]
    return Arrivals.TRACE.value if kind == Arrivals.TRACE else value
