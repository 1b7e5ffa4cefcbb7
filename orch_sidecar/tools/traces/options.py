"""The options by which commands replay a trace."""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path

from orch_sidecar.tools.arguments import count_or_zero, non_negative, positive
from orch_sidecar.tools.traces.reader import read
from orch_sidecar.tools.traces.trace import Trace


def factor(text: str) -> float:
    """Returns a number above 0, or a quotient of two such as 1/16."""
    above, slash, below = text.partition("/")
    return positive(above) / positive(below) if slash else positive(text)


def window(text: str) -> tuple[float, float]:
    """Returns the two numbers of FROM:TO, in seconds; without TO, infinity."""
    first, colon, last = text.partition(":")
    from_s = non_negative(first or "0")
    until_s = non_negative(last) if last else inf
    if not colon or until_s <= from_s:
        raise argparse.ArgumentTypeError(f"{text!r} must be FROM:TO in seconds, FROM below TO")
    return from_s, until_s


def add_trace(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds the options of a trace, and returns their group."""
    group = parser.add_argument_group("replay of a trace")
    add = group.add_argument
    text = "arrivals and lengths of interactive requests: Azure, Mooncake, BurstGPT, GuideLLM, vLLM"
    add("--trace", type=Path, metavar="FILE", help=text)
    add("--bulk-trace", type=Path, metavar="FILE", help="the same, of bulk requests beside them")
    text = "the part of the traces to replay, in their seconds; default: all"
    add("--trace-window", type=window, default=(0.0, inf), metavar="FROM:TO", help=text)
    text = "multiplies the times of arrival: 0.5 or 1/2 doubles the rate; default: 1"
    add("--time-factor", type=factor, default=1.0, metavar="F", help=text)
    text = "multiplies the lengths of prompts and answers, such as 1/16; default: 1"
    add("--length-factor", type=factor, default=1.0, metavar="F", help=text)
    return group


def add_bulk_clients(group: argparse._ActionsContainer, lengths: str) -> None:
    """Adds clients beside a schedule. `lengths`: the options that their requests have them of."""
    text = f"clients that always have a bulk request, of {lengths}"
    group.add_argument("--bulk-clients", type=count_or_zero, default=0, metavar="N", help=text)


def trace_of(options: argparse.Namespace, path: Path) -> Trace:
    """Returns the part of a trace that the options define. Raises OSError and InvalidTrace."""
    return (
        read(path)
        .window(*options.trace_window)
        .scaled(time=options.time_factor, lengths=options.length_factor)
    )
