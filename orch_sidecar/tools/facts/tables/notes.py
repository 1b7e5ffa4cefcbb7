"""The forms of values, and the notes in `scenario_notes` that have one.

Pure. `docs/reference/facts.md` has their meaning; notes with other names are free text. `SETTINGS`
are what the plugin, its document and its spans call the engine's conditions; a `Condition` of a row
is one of these, a column, or what else keeps rows apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final, NamedTuple

# A float keeps fifteen digits.
_WHOLE: Final = "0|[1-9][0-9]{0,14}"
# A float as `format_notes` formats it.
_FLOAT: Final = r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,2})?"

SIGNIFICANT_DIGITS: Final = 6  # of a number in a row
# Far below any rounding, and above the errors of the arithmetic here.
_ARITHMETIC: Final = 1e-12


class Rounded(NamedTuple):
    """The least and the largest number that a rounded one may stand for; both are included."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Form:
    """What a value must be: the whole text matches `pattern`, and if it is a number, it `holds`.
    `what`: all of that in words. `decimals`: to which producers of rows round a number one after
    the other, before the six digits."""

    what: str
    pattern: str
    holds: Callable[[float], bool] | None = None
    decimals: Sequence[int] = ()

    def violated_rule(self, value: str) -> str | None:
        """Returns the rule if a value violates it, else None."""
        valid = re.fullmatch(self.pattern, value) is not None
        if valid and self.holds is not None:
            valid = math.isfinite(float(value)) and self.holds(float(value))
        return None if valid else f"must be {self.what}"

    def before_rounding(self, value: float) -> Rounded:
        """Returns the numbers that may have been rounded to this one, which is not negative.

        Floats in notes and the throughput have six significant digits (`format_notes`,
        `row_fields`), after roundings to some decimals; the rounding to six digits changes nothing
        where the last of those left no more digits.
        """
        slack = value * _ARITHMETIC + sum(0.5 * 10.0**-each for each in self.decimals)
        if value > 0:
            last_digit = math.floor(math.log10(value)) + 1 - SIGNIFICANT_DIGITS
            slack += 0.5 * 10.0**last_digit if last_digit > -self.decimals[-1] else 0.0
        return Rounded(max(0.0, value - slack), value + slack)


def whole(least: int) -> Form:
    """Returns the form of a count."""
    what = f"a whole number in plain digits, at least {least}"
    return Form(what, _WHOLE, lambda value: value >= least)


def number(unit: str, least: float, most: float = math.inf, decimals: Sequence[int] = ()) -> Form:
    """Returns the form of a number between two others, both included."""
    limits = f"of at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
    return Form(f"a number {unit}{limits}", _FLOAT, lambda value: least <= value <= most, decimals)


def one_of(*values: str) -> Form:
    """Returns the form of a choice."""
    what = values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    return Form(what, "|".join(map(re.escape, values)))


ABOVE_0: Final = Form("a number above 0", _FLOAT, lambda value: value > 0)
TEXT: Final = Form(
    "one line that is not empty, and must not begin or end with white space",
    r"\S([^\n\r]*\S)?",
)
THROUGHPUT: Final = Form(
    "tokens per second, a decimal number above 0 such as 92.72",
    rf"({_WHOLE})(\.[0-9]+)?",
    lambda value: value > 0,
    decimals=(4,),
)
FORMS: Final[dict[str, Form]] = {}  # of notes, by their names


def _note(name: str, form: Form) -> str:
    """Declares the form of a note, and returns its name."""
    FORMS[name] = form
    return name


class Loop(StrEnum):
    """What determines when a request arrives."""

    OPEN = "open loop"  # a schedule
    CLOSED = "closed loop"  # the answer to another request
    AT_ONCE = "all at once"
    UNKNOWN = "arrivals unknown"


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

    @property
    def loop(self) -> Loop:
        """What determines when a request arrives."""
        if self in (Arrivals.ONE_BY_ONE, Arrivals.CLOSED_LOOP):
            return Loop.CLOSED
        return Loop.AT_ONCE if self is Arrivals.AT_ONCE else Loop.OPEN


BATCH_MEAN: Final = _note("batch_mean", number("", 1, decimals=(3,)))
BATCH_MAX: Final = _note("batch_max", whole(1))
GOODPUT_SHARE: Final = _note("goodput_share", number("", 0, 1))
SLOS: Final = ("slo_ttft_ms", "slo_tpot_ms", "slo_latency_ms")
BATCH_REQUESTS: Final = _note("batch_requests", number("", 1))

UNKNOWN: Final = "unknown"
NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a measurement: rows that differ in it were measured otherwise.

    `form`: of the note; None of a column. `spelled`: how a value reads in a line, and `none` how
    the value `none` does. `usual`: a pattern of values that are not worth a word where all sets
    share them. `beside`: rows that differ in it stand side by side: how an engine is set up to
    batch comes with its label, as one slot does with a single stream.
    """

    name: str
    form: Form | None = None
    spelled: str = "{}"
    none: str = ""
    usual: str = ""
    beside: bool = False


# vLLM's names of methods, types and backends.
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.+/-]*"
_DRAFTS: Final = rf"{_NAME}(?::[1-9][0-9]{{0,2}})?"
_OFFLOAD: Final = r"[A-Za-z][A-Za-z0-9_]*(?::[0-9.]+(?:e[+-]?[0-9]{1,2})?)?"
_LOADED: Final = r"(?:dummy:|random:)?[0-9a-f]{16}"

DATA_PARALLEL: Final = "data_parallel"  # noted above 1
LOADED: Final = "loaded"

# How the engine was configured, as it reports it: notes, which are a part of a row's identity.
SETTINGS: Final = (
    Condition("speculative", Form("none, or a method and its drafts per step: ngram:3", _DRAFTS),
              "speculative decoding {}", "no speculative decoding", NONE),
    Condition("quantization", Form("none, or the name of a method: awq", _NAME),
              "quantization {}", "no quantization", NONE),
    # The types in which models are published are usual.
    Condition("kv_cache_dtype", Form("the name of a type: bfloat16", _NAME),
              "KV cache {}", usual="bfloat16|float16|float32"),
    Condition("prefix_caching", one_of("on", "off"), "prefix cache {}", usual="on"),
    # vLLM chooses it by the accelerator.
    Condition("attention_backend", Form("the name of a backend: FLASH_ATTN", _NAME),
              "attention {}", usual=r"(?!unknown\Z).*"),
    Condition("tensor_parallel", whole(1), "tensor parallel {}", usual="1"),
    Condition("pipeline_parallel", whole(1), "pipeline parallel {}", usual="1"),
    # The following, engines of older releases do not report: one that is missing is unknown.
    Condition(DATA_PARALLEL, whole(2), "one rank of data parallel {}", usual="1"),
    Condition(LOADED, Form("16 hexadecimal digits, after dummy: or random: or alone", _LOADED),
              "loaded as {}", usual="[0-9a-f]{16}"),
    Condition("max_num_batched_tokens", whole(1), "steps of {} tokens", beside=True),
    Condition("long_prefill_token_threshold", whole(0), "long prompts by {} tokens", beside=True),
    Condition("async_scheduling", one_of("on", "off"), "asynchronous scheduling {}",
              usual=".*"),
    Condition("prefill_schedule_interval", whole(1), "prompts every {} steps", beside=True),
    Condition("execution", Form("eager, or modes: vllm_compile+full_and_piecewise", _NAME),
              "execution {}", usual=r"(?!eager\Z).*"),
    Condition("kv_offload",
              Form("none, or a connector and its GiB: OffloadingConnector:8", _OFFLOAD),
              "KV offload {}", "no KV offload", "none|unknown"),
    Condition("max_loras", whole(0), "LoRA adapters {}", usual="0|unknown"),
)  # fmt: skip
SETTING_NAMES: Final = tuple(each.name for each in SETTINGS)
# By every engine; versions before do not report the others.
ALWAYS_REPORTED: Final = SETTING_NAMES[: SETTING_NAMES.index(DATA_PARALLEL)]
PREFIX_HIT_RATIO: Final = _note("prefix_hit_ratio", number("", 0, 1))

# What limits the trust in a figure: rows that differ in one of these are not averaged.
GIVEN: Final = "given"  # the columns that the user declared: "engine,gpu"
PRELIMINARY: Final = _note("preliminary", one_of("yes"))  # too short to be published
CUT: Final = _note("cut", one_of("before", "after", "before,after"))
CLIENT_BOTTLENECK: Final = _note("client_bottleneck", one_of("yes"))
STATES: Final = _note("states", one_of("unsigned"))
_DIGEST: Final = Form("sha256: and 64 hexadecimal digits", r"sha256:[0-9a-f]{64}")
EVIDENCE: Final = _note("evidence", _DIGEST)  # of the file beside the table

# Hexadecimal digits of a trace's SHA-256 in a note.
TRACE_DIGITS: Final = 16
_TRACE: Final = rf"[0-9a-f]{{{TRACE_DIGITS}}}"
_WINDOW: Final = r"[0-9]+(?:\.[0-9]+)?:(?:[0-9]+(?:\.[0-9]+)?)?"

# A trace by another part or factor is another load.
TRACE_WINDOW: Final = _note("trace_window", Form("two times in seconds: 0:300, 300:", _WINDOW))
TRACE_TIME: Final = _note("trace_time", ABOVE_0)
TRACE_LENGTHS: Final = _note("trace_lengths", ABOVE_0)
BULK_CLIENTS: Final = _note("bulk_clients", whole(1))
BULK_TRACE: Final = _note("bulk_trace", Form(f"{TRACE_DIGITS} digits of its hash", _TRACE))
REPLAYED: Final = (TRACE_WINDOW, TRACE_TIME, TRACE_LENGTHS, BULK_CLIENTS, BULK_TRACE)
LATENCY_OF: Final = _note("latency_of", one_of("interactive"))

PERCENTILES: Final = (50, 90, 95, 99)
TIMES: Final = ("ttft", "tpot", "latency")


def time_note(name: str, percentile: int, *, early: bool = False) -> str:
    """Returns the name of the note with a percentile of a time, in milliseconds, or with MLPerf's
    early-stopping estimate of it."""
    return f"{name}_p{percentile}{'_early' if early else ''}_ms"


class RowNotes(dict[str, str]):
    """The notes of a row by their names, as texts; those of a valid row are of their forms."""

    def number(self, name: str) -> float | None:
        """Returns a number; None where it is not noted."""
        return float(self[name]) if name in self else None

    def count(self, name: str) -> int | None:
        """Returns a whole number; None where it is not noted."""
        return int(self[name]) if name in self else None

    def rounded(self, name: str) -> Rounded | None:
        """Returns the numbers that a noted one may stand for; None where it is not noted."""
        return FORMS[name].before_rounding(float(self[name])) if name in self else None

    def pair(self, name: str) -> str:
        """Returns `name=value`; empty where it is not noted."""
        return f"{name}={self[name]}" if name in self else ""

    @property
    def arrivals(self) -> Arrivals | None:
        """The kind of arrivals, without the digits of a trace; None where it is not noted."""
        return Arrivals(self["arrivals"].partition(":")[0]) if "arrivals" in self else None

    @property
    def loop(self) -> Loop:
        """What determined when a request arrived."""
        return self.arrivals.loop if self.arrivals else Loop.UNKNOWN

    @property
    def given(self) -> list[str]:
        """The columns that the user declared."""
        return self[GIVEN].split(",") if GIVEN in self else []


FORMS.update(
    {each.name: each.form for each in SETTINGS if each.form is not None},
    batching=one_of("on", "off", UNKNOWN),
    arrivals=Form(
        f"one of {', '.join(Arrivals)}, or trace: and {TRACE_DIGITS} digits of its hash",
        rf"{'|'.join(Arrivals)}|{Arrivals.TRACE}:{_TRACE}",
    ),
    window_s=number("of seconds, ", 0, decimals=(6, 3)),
    batch_is=one_of("overlap"),
    acceptance_length=number("", 1),
    **dict.fromkeys(("rate_per_s", "burstiness", *SLOS), ABOVE_0),
    **dict.fromkeys(("at_once", "requests"), whole(1)),
    **dict.fromkeys(("refused", "failed", "cancelled", "counted_by_events"), whole(0)),
    **{
        time_note(name, at, early=early): number("of milliseconds, ", 0, decimals=(4, 3))
        for name, at, early in product(TIMES, PERCENTILES, (False, True))
    },
)
