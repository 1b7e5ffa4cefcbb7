"""Names and values of the notes in `scenario_notes` that several modules write, compare or read.

Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

# Sequences per decode step: the mean over the steps of the window, and the largest. The column
# `batch` is the mean, rounded.
BATCH_MEAN: Final = "batch_mean"
BATCH_MAX: Final = "batch_max"

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
# Prompt tokens found in the prefix cache over prompt tokens looked up in it, of the window: 0 to 1.
PREFIX_HIT_RATIO: Final = "prefix_hit_ratio"

# What limits the trust in a figure. Rows that differ in one of these are not averaged.
GIVEN: Final = "given"  # the columns that the user declared: "engine,gpu"
PRELIMINARY: Final = "preliminary"  # "yes": too short to be published
CUT: Final = "cut"  # requests of the scenario lie outside of the interval that was read
CLIENT_BOTTLENECK: Final = "client_bottleneck"  # "yes"
EVIDENCE: Final = "evidence"  # "sha256:<hex>" of the evidence file beside the table


class Arrivals(StrEnum):
    """How requests arrive: the values of the note `arrivals`."""

    ONE_BY_ONE = "one_by_one"  # one client, which waits for each answer
    CLOSED_LOOP = "closed_loop"  # several such clients
    AT_ONCE = "at_once"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    REPEATED_GAPS = "repeated_gaps"  # exponential gaps, each of which occurs several times
    TRACE = "trace"
