"""The words of `orch bench decode`: what may be asked for, and the rules of each value. Pure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final

from orch_sidecar.tools.bench.results.fit import Curve

DESCRIPTION: Final = """Decode steps on this machine's device: throughput and latency by batch.

Requests arrive at random, wait for the admission window, and are decoded together, one token in
each step, up to Bmax of them; between steps the batch is topped up. Arrivals and windows are in
virtual time, steps are run: attention over a KV cache of real content, and weights that do not
fit in the cache. PyTorch runs it on CUDA, HIP or a CPU."""

EPILOG: Final = """examples:
  orch bench decode                               the defaults: a few seconds
  orch bench decode --sweep                       tokens/s by batch, and the curve t0 + c b^alpha
  orch bench decode --window-ms 6,2               what the window does to the first token
  orch bench decode --rate 120 --tokens 512 --bmax 64 --window-ms 20
  orch bench decode --step-time 0.567,0.0833      the schedule alone: a step of b takes
                                                  0.567 + 0.0833 b ms"""


class WordsWrong(Exception):
    """Words that do not go together; the message says which, and the rule."""


# Torch's names of them.
_DTYPES: Final = ("bfloat16", "float16", "float32")

# What `--sweep` alone means.
_BATCHES: Final = (1, 2, 4, 8, 16)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Defaults of the schedule are those of "Throughput, Latency & Batching Policy"."""
    _add_schedule(parser)
    _add_device(parser)
    add = parser.add_argument_group("what to do").add_argument
    add(
        "--sweep",
        type=_counts,
        nargs="?",
        const=_BATCHES,
        metavar="B,B",
        help="steps of each of these batches, without a schedule (1,2,4,8,16)",
    )
    add("--steps", type=_count, default=100, help="of each batch in a sweep (100)")
    add("--json", metavar="FILE", help="everything, as JSON; -: to the output, and no text")


def _add_schedule(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("schedule").add_argument
    add("--nreq", type=_count, default=200, help="requests (200)")
    add("--rate", type=_above_zero, default=80.0, help="of their arrival, per second (80)")
    add("--tokens", type=_count, default=32, help="for each request (32)")
    add("--bmax", type=_count, default=16, help="sequences in a step at most (16)")
    add(
        "--window-ms",
        type=_windows,
        default=(6.0,),
        metavar="MS[,MS]",
        help="admission window; several: the same arrivals with each (6)",
    )
    add("--seed", type=_seed, default=123, help="of arrivals, weights and caches (123)")
    add(
        "--step-time",
        type=_curve,
        metavar="T0,C[,ALPHA]",
        help="a step of b takes T0 + C b^ALPHA ms, and no device runs (ALPHA 1)",
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("device").add_argument
    add("--device", type=_device, default="auto", help="auto, cpu, cuda or cuda:N; HIP is cuda")
    add("--dtype", choices=_DTYPES, help="of weights and cache (what the device is fast with)")
    add("--threads", type=_count, help="of a CPU (torch's own choice)")
    add("--layers", type=_count, help="(2 on a CPU, 4 on a GPU)")
    add("--hidden", type=_count, help="size of a token's state (1024, 4096)")
    add("--heads", type=_count, help="of queries (16, 32)")
    add("--kv-heads", type=_count, help="of keys and values (a fourth of the heads)")
    add("--context", type=_count, help="tokens of a sequence in the KV cache (256, 2048)")


def _device(text: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not auto, cpu, cuda or cuda:N")
    return text


def _seed(text: str) -> int:
    if re.fullmatch(r"\d{1,18}", text) is None:  # torch takes 64 bits
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at most 18 digits")
    return int(text)


def _number(text: str, rule: str, obeys: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not obeys(value) or value >= 1e12:
        raise argparse.ArgumentTypeError(f"{text}: {rule}")
    return value


def _above_zero(text: str) -> float:
    return _number(text, "must be above 0", lambda value: value > 0)


def _count(text: str) -> int:
    rule = "must be a whole number of at least 1"
    return int(_number(text, rule, lambda value: value >= 1 and value.is_integer()))


def _counts(text: str) -> tuple[int, ...]:
    """Each once, by size."""
    return tuple(sorted({_count(part) for part in text.split(",")}))


def _windows(text: str) -> tuple[float, ...]:
    def window(part: str) -> float:
        return _number(part, "must be at least 0", lambda value: value >= 0)

    return tuple(window(part) for part in text.split(","))


def _curve(text: str) -> Curve:
    parts = text.split(",")
    if len(parts) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is not T0,C or T0,C,ALPHA")
    t0, c = (_number(part, "must be at least 0", lambda value: value >= 0) for part in parts[:2])
    alpha = 1.0
    if len(parts) == 3:
        alpha = _number(parts[2], "must be above 0, at most 1", lambda value: 0 < value <= 1)
    if t0 + c == 0:
        raise argparse.ArgumentTypeError(f"{text}: a step must take more than 0 ms")
    return Curve(t0, c, alpha)
