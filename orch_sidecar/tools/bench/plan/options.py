"""What the words of `orch bench` mean.

Raises Usage for a value that breaks a rule, with the flag, the value and the rule.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.bench.load.scenario import Scenario, Slo
from orch_sidecar.tools.bench.results.identity import Given
from orch_sidecar.tools.facts.evidence.measured import Arrivals
from orch_sidecar.tools.facts.evidence.verdict import MIN_DURATION_S, MIN_QUERIES
from orch_sidecar.tools.facts.tables.row import Label

KEY_VARIABLE: Final = "OPENAI_API_KEY"

# MLPerf asks for one query of 24576 samples; this many keep an engine of 256 slots full for a
# while.
OFFLINE_REQUESTS: Final = 1024

_FIELD: Final = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([ -~]*?)[ \t]*")
# Fields that every request has already: what they say is not to be typed.
_OWN_FIELDS: Final = {
    "host": "it follows from --url",
    "content-type": "it is JSON",
    "content-length": "it follows from the body",
    "transfer-encoding": "a request is sent whole",
    "connection": "connections are kept",
    "x-orch-pool": "use --pool",
    "x-orch-no-coalesce": "decodes are never shared in a measurement",
    "x-orch-scenario": "it is the id of the run",
}


class Usage(ValueError):
    """A word that cannot be meant."""


def positive(text: str) -> float:
    """A number above 0; raises argparse's error otherwise."""
    value = _number(text)
    if value is None or value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def seconds(text: str) -> float:
    """A number from 0."""
    value = _number(text)
    if value is None or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0")
    return value


def count(text: str) -> int:
    """An integer from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer from 1")
    return int(text)


def count_or_none(text: str) -> int:
    """An integer from 0."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer from 0")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Integers from 1, ascending, with commas between them."""
    found = tuple(count(part) for part in text.split(","))
    if list(found) != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"{text!r} must be ascending, each once")
    return found


def burstiness(text: str) -> float:
    """A number above 0, or `inf`."""
    return math.inf if text == "inf" else positive(text)


def header(text: str) -> tuple[str, str]:
    """`Name: value`. What is wrong with one is told without its value, which may be a key."""
    found = _FIELD.fullmatch(text)
    name = text.partition(":")[0]
    if found is None:
        shown = repr(name) if ":" in text else "a text without a colon"
        raise argparse.ArgumentTypeError(f"{shown}: must be 'Name: value' in ASCII")
    if (why := _OWN_FIELDS.get(name.lower())) is not None:
        raise argparse.ArgumentTypeError(f"{name!r} must not be given: {why}")
    return found[1], found[2]


def add_common(parser: argparse.ArgumentParser) -> None:
    """The words that all scenarios have."""
    where = parser.add_argument_group("where")
    where.add_argument("--url", default="http://127.0.0.1:8080", help="default: %(default)s")
    where.add_argument("--model", help="default: the first that the endpoint (or pool) serves")
    where.add_argument("--pool", help="of a sidecar with several")
    where.add_argument(
        "--header", action="append", type=header, default=[], metavar="'NAME: VALUE'",
        help=f"on every request; a key is read from ${KEY_VARIABLE}",
    )  # fmt: skip
    what = parser.add_argument_group("what is asked")
    what.add_argument(
        "--prompts", type=Path, metavar="FILE",
        help="JSONL with prompt or messages, or a ShareGPT-shaped JSON; default: synthetic",
    )  # fmt: skip
    what.add_argument("--input-tokens", type=count, default=512, help="default: %(default)s")
    what.add_argument("--output-tokens", type=count, help="default: 128, or what the file says")
    what.add_argument(
        "--no-ignore-eos", action="store_true",
        help="let answers end where the model ends them (and for endpoints without ignore_eos)",
    )  # fmt: skip
    what.add_argument("--seed", type=count_or_none, default=0, help="default: %(default)s")
    keeps = parser.add_argument_group("what counts for goodput (milliseconds)")
    keeps.add_argument("--slo-ttft-ms", type=positive)
    keeps.add_argument("--slo-tpot-ms", type=positive)
    keeps.add_argument("--slo-latency-ms", type=positive)
    out = parser.add_argument_group("what is written")
    out.add_argument("--output", type=Path, metavar="JSON", help="default: orch-bench-<id>.json")
    out.add_argument("--facts", type=Path, metavar="CSV", help="gets a row, if it is a fact")
    given = parser.add_argument_group(
        "instead of what the engine says (the row then says that it was given)"
    )
    given.add_argument("--engine", help="name and version, as 'vLLM 0.32.0'")
    given.add_argument("--precision", help="as BF16")
    given.add_argument("--gpu", help="as 'NVIDIA H100 80GB HBM3'")
    given.add_argument("--gpu-count", type=count_or_none, help="0 without one")
    given.add_argument("--model-id", help="where the name that it is served by is another")
    given.add_argument("--model-name", help="in print; default: the last part of the id")


def add_length(parser: argparse.ArgumentParser, label: Label) -> None:
    """How long it takes. Defaults are the least of which figures may be published (MLPerf)."""
    offline = label is Label.OFFLINE
    length = parser.add_argument_group("how long" if offline else "how long: until both are over")
    length.add_argument(
        "--requests", type=count,
        default=OFFLINE_REQUESTS if offline else MIN_QUERIES[label],
        help=f"{'all at once' if offline else 'at least'}; default: %(default)s",
    )  # fmt: skip
    meaning = "it lasts as long as its requests do, and says if that was less" if offline else (
        "at least; a shorter run is preliminary"
    )  # fmt: skip
    length.add_argument(
        "--duration", type=seconds, default=MIN_DURATION_S, metavar="SECONDS",
        help=f"{meaning}; default: %(default)g",
    )  # fmt: skip
    length.add_argument(
        "--warm-up", type=count_or_none, default=4, metavar="REQUESTS",
        help="before it, not counted; default: %(default)s",
    )  # fmt: skip


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    """How requests come, where there is a choice."""
    how = parser.add_argument_group("how requests come")
    how.add_argument("--rate", type=positive, help="requests per second, Poisson")
    how.add_argument(
        "--burstiness", type=burstiness,
        help="gamma instead of Poisson: below 1 burstier, above 1 more regular, inf constant",
    )  # fmt: skip
    how.add_argument("--concurrency", type=count, help="a closed loop of so many clients instead")
    how.add_argument(
        "--find-rate", action="store_true",
        help="look for the largest rate at which 99 %% keep the SLO, from --rate on; then run it",
    )  # fmt: skip
    how.add_argument(
        "--trial", type=positive, default=20.0, metavar="SECONDS",
        help="length of a trial of the search, of 100 requests at least; default: %(default)g",
    )  # fmt: skip


def given_of(options: argparse.Namespace) -> Given:
    """What was typed about the engine."""
    return Given(
        engine=options.engine,
        precision=options.precision,
        gpu=options.gpu,
        gpu_count=options.gpu_count,
        model_id=options.model_id,
        model_name=options.model_name,
    )


def api_key() -> str | None:
    """From the environment, where no list of processes shows it."""
    return os.environ.get(KEY_VARIABLE, "").strip() or None


def scenario_of(options: argparse.Namespace, label: Label) -> Scenario:
    """The scenario that the words ask for. Raises Usage."""
    common: dict[str, Any] = {
        "label": label,
        "least_requests": options.requests,
        "least_seconds": options.duration,
        "seed": options.seed,
        "warm_up": options.warm_up,
        "slo": Slo(options.slo_ttft_ms, options.slo_tpot_ms, options.slo_latency_ms),
    }
    if label is Label.SINGLE_STREAM:
        return Scenario(arrivals=Arrivals.ONE_BY_ONE, clients=1, **common)
    if label is Label.OFFLINE:
        return Scenario(arrivals=Arrivals.AT_ONCE, **common)
    if options.find_rate and not common["slo"].bounds:
        raise Usage("--find-rate needs a bound: --slo-ttft-ms, --slo-tpot-ms or --slo-latency-ms")
    if options.concurrency is not None:
        return _closed_loop(options, common)
    if options.rate is None:
        raise Usage("--rate (requests per second) or --concurrency must be given")
    arrivals, shape = Arrivals.POISSON, options.burstiness
    if shape is not None:
        arrivals = Arrivals.GAMMA if math.isfinite(shape) else Arrivals.CONSTANT
    return Scenario(
        arrivals=arrivals,
        rate_per_s=options.rate,
        burstiness=shape if arrivals is Arrivals.GAMMA else None,
        **common,
    )


def _closed_loop(options: argparse.Namespace, common: dict[str, Any]) -> Scenario:
    if options.rate is not None or options.burstiness is not None or options.find_rate:
        rule = "it is a closed loop, which has no rate, no burstiness and none to be found"
        raise Usage(f"--concurrency {options.concurrency}: {rule}")
    if options.concurrency < 2:
        raise Usage(f"--concurrency {options.concurrency}: one at a time is never batched")
    return Scenario(arrivals=Arrivals.CLOSED_LOOP, clients=options.concurrency, **common)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
