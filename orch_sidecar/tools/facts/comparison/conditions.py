"""Derives from a row the conditions under which it was measured, and what limits the trust in it.

Pure. A condition that a row does not note is `unknown`, which is a value of its own: it equals no
value that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes

UNKNOWN: Final = "unknown"
NONE: Final = "none"

# A chat template or a few repeated tokens at the start of random prompts are found in any prefix
# cache; below this share they change no figure.
_FEW_HITS: Final = 0.01


class Loop(StrEnum):
    """What determines when a request arrives."""

    OPEN = "open loop"  # a schedule
    CLOSED = "closed loop"  # the answer to another request
    AT_ONCE = "all at once"
    UNKNOWN = UNKNOWN


class Evidence(StrEnum):
    """Whether signed evidence of a row was verified."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"  # or there is none


_LOOPS: Final = {
    Arrivals.ONE_BY_ONE: Loop.CLOSED,
    Arrivals.CLOSED_LOOP: Loop.CLOSED,
    Arrivals.AT_ONCE: Loop.AT_ONCE,
    Arrivals.CONSTANT: Loop.OPEN,
    Arrivals.POISSON: Loop.OPEN,
    Arrivals.GAMMA: Loop.OPEN,
    Arrivals.REPEATED_GAPS: Loop.OPEN,
    Arrivals.TRACE: Loop.OPEN,
}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all rows of a set have in common: columns, and notes by their names.

    `arrivals`: the kind of arrivals in the notes. `traffic`: the trace that was replayed.
    `prefix_hit_ratio`: its band. `given`: the columns that the user declared. `preliminary`, `cut`,
    `client_bottleneck`: whether it is noted.
    """

    model_id: str
    engine: str
    precision: str
    gpu: str
    gpu_count: int
    input_tokens: int
    output_tokens: int
    measurement_type: Label
    arrivals: Loop = Loop.UNKNOWN
    traffic: str = NONE
    speculative: str = UNKNOWN
    quantization: str = UNKNOWN
    kv_cache_dtype: str = UNKNOWN
    prefix_caching: str = UNKNOWN
    attention_backend: str = UNKNOWN
    tensor_parallel: str = UNKNOWN
    pipeline_parallel: str = UNKNOWN
    data_parallel: str = UNKNOWN
    loaded: str = UNKNOWN
    max_num_batched_tokens: str = UNKNOWN
    long_prefill_token_threshold: str = UNKNOWN
    async_scheduling: str = UNKNOWN
    prefill_schedule_interval: str = UNKNOWN
    execution: str = UNKNOWN
    kv_offload: str = UNKNOWN
    max_loras: str = UNKNOWN
    prefix_hit_ratio: str = UNKNOWN
    given: str = NONE
    preliminary: bool = False
    cut: bool = False
    client_bottleneck: bool = False
    evidence: Evidence = Evidence.UNVERIFIED


# Why rows that differ in one of these are not compared.
DIFFERENCES: Final = {
    "model_id": "different models",
    "engine": "different engines, or versions of one",
    "precision": "different precisions",
    "gpu": "different accelerators",
    "gpu_count": "different numbers of accelerators",
    "input_tokens": "prompts of different lengths",
    "output_tokens": "answers of different lengths",
    "measurement_type": "different ways of batching, whose ratio has no meaning",
    "arrivals": "loads that wait for answers, loads that do not, or unknown ones",
    "traffic": "different traces, parts of one, factors, or bulk work beside them",
    "speculative": "steps with and without drafted tokens, or different drafts",
    "quantization": "weights of different quantization",
    "kv_cache_dtype": "KV caches of different types",
    "prefix_caching": "engines with and without a prefix cache",
    "attention_backend": "different attention kernels",
    "tensor_parallel": "layers divided over different numbers of ranks",
    "pipeline_parallel": "layers distributed over different numbers of ranks",
    "data_parallel": "whole engines and single ranks, or ranks of different numbers",
    "loaded": "models of other configurations or sizes, or weights that mean nothing and real ones",
    "max_num_batched_tokens": "steps of different sizes",
    "long_prefill_token_threshold": "different shares of a step for one long prompt",
    "async_scheduling": "engines that schedule a step during the one before, and others",
    "prefill_schedule_interval": "different numbers of steps between those that take new prompts",
    "execution": "eager engines and compiled ones, or other CUDA graphs",
    "kv_offload": "KV caches with and without memory of the host, or different memories",
    "max_loras": "engines with and without LoRA, or for different numbers of adapters",
    "prefix_hit_ratio": "different shares of prompt tokens that were found in the prefix cache",
    "given": "columns that the user declared instead of the engine",
    "preliminary": "runs that were too short to be published, and others",
    "cut": "scenarios of which requests are missing, and whole ones",
    "client_bottleneck": "figures that the client may have limited, and others",
    "evidence": "figures with and without verified evidence",
}


def conditions_of(row: Row, evidence: Evidence) -> Conditions:
    """Returns the conditions of a valid row. The caller has verified its evidence, or has not."""
    notes = parse_notes(row.scenario_notes)
    engine = {name: notes.get(name, UNKNOWN) for name in names.ENGINE}
    # Noted above 1; a row without any conditions knows nothing of ranks, either.
    alone = "1" if names.CONDITIONS[-1] in notes else UNKNOWN
    return Conditions(
        model_id=row.model_id,
        engine=row.engine,
        precision=row.precision,
        gpu=row.gpu,
        gpu_count=row.gpu_count,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        measurement_type=row.measurement_type,
        arrivals=_loop(notes),
        traffic=_traffic(notes),
        **engine | {names.DATA_PARALLEL: notes.get(names.DATA_PARALLEL, alone)},
        prefix_hit_ratio=_prefix_hits(notes),
        given=",".join(sorted(notes.get(names.GIVEN, NONE).split(","))),
        preliminary=names.PRELIMINARY in notes,
        cut=names.CUT in notes,
        client_bottleneck=names.CLIENT_BOTTLENECK in notes,
        evidence=evidence,
    )


def _loop(notes: Mapping[str, str]) -> Loop:
    """Returns the kind of arrivals; unknown values of the note count as none."""
    arrivals = names.arrivals_of(notes)
    return _LOOPS[Arrivals(arrivals)] if arrivals in set(Arrivals) else Loop.UNKNOWN


def _traffic(notes: Mapping[str, str]) -> str:
    """Returns the trace by its hash, and what was replayed of it."""
    arrivals = notes.get("arrivals", NONE)
    if names.arrivals_of(notes) != Arrivals.TRACE or arrivals == Arrivals.TRACE:
        return NONE
    return " ".join([arrivals, *(f"{n}={notes[n]}" for n in names.REPLAYED if n in notes)])


def _prefix_hits(notes: Mapping[str, str]) -> str:
    """Returns the band of the share of prompt tokens that came from the prefix cache.

    Bands are a tenth wide, and centred on tenths: prompts are designed to share a half or nine
    tenths, and the measured ratios scatter around that. Within a band the prefill work, which is
    what hits save, differs by at most a tenth of that of all prompts.
    """
    ratio = number_note(notes, names.PREFIX_HIT_RATIO)
    if ratio is None:
        return NONE if notes.get("prefix_caching") == "off" else UNKNOWN
    if ratio < _FEW_HITS:
        return NONE
    tenth = int(ratio * 10 + 0.5)
    return f"about {tenth * 10} %" if tenth else "below 5 %"


def number_note(notes: Mapping[str, str], name: str) -> float | None:
    """Returns a note as a number; None where it is missing."""
    return float(notes[name]) if name in notes else None
