"""The requests of a trace, and the parts and multiples of it that are replayed.

The format of a file follows from its first line.

    Azure LLM inference 2023 and 2024   CSV: TIMESTAMP (a date), ContextTokens, GeneratedTokens
    BurstGPT                            CSV: Timestamp (seconds), Request tokens, Response tokens
    GuideLLM's `trace_synthetic`        CSV or JSONL: timestamp (seconds), input_length,
                                        output_length
    vLLM's `timed_trace`                JSONL, the same names, and hash_ids of blocks of tokens
    Mooncake                            the same in milliseconds, with blocks of 512 tokens

Other columns are ignored. Times count from the first request, in the order of the times.

In JSONL neither the unit of the time nor the size of a block is written in the file. The size
follows from the lengths: n blocks of B tokens hold (n - 1) B + 1 to n B of them. Whole numbers as
times beside blocks of 512 tokens are Mooncake's milliseconds, all others seconds.

Pure. `orch bench`, `orch simulate` and `orch plan` replay the same `Trace`, by the options at the
end.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Annotated, Final

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    FiniteFloat,
    StrictInt,
)

from orch_sidecar.tools.arguments import count_or_zero, non_negative, positive
from orch_sidecar.tools.facts.labels.documents import documents_in, parsed_as
from orch_sidecar.tools.facts.tables.table import decoded, parse
from vllm_plugin.contracts.profile import BULK, INTERACTIVE, ServiceClass

# A block of less than one token of a scaled trace still distinguishes prefixes.
_LEAST_TOKENS: Final = 1


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request. `at_s`: seconds since the start of the trace.

    `prefix_blocks`: ids of the blocks of its prompt, in order; prompts with the same first ids
    begin with the same tokens. Empty where the trace does not record them.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival.

    `name`: of the file. `sha256`: of its bytes, in hexadecimal, whatever part of it is replayed.
    `block_tokens`: tokens of a prefix block, None where the trace has none.
    """

    name: str
    sha256: str
    requests: tuple[TracedRequest, ...]
    block_tokens: int | None = None

    def window(self, from_s: float, until_s: float = inf) -> Trace:
        """Returns the requests that arrived in that part, `until_s` excluded, from its start on.

        Raises ValueError for a part without requests.
        """
        found = tuple(
            replace(each, at_s=each.at_s - from_s)
            for each in self.requests
            if from_s <= each.at_s < until_s
        )
        if not found:
            raise ValueError(
                f"{self.name}: no request arrived from {from_s:g} to {until_s:g} s: the window "
                f"must overlap the {self.requests[-1].at_s:g} s of the trace"
            )
        return replace(self, requests=found)

    def scaled(self, time: float = 1.0, lengths: float = 1.0) -> Trace:
        """Returns the same requests with their times and their lengths multiplied.

        A time factor of 0.5 doubles the rate. No length falls below one token.
        """

        def tokens(count: int) -> int:
            return max(_LEAST_TOKENS, round(lengths * count))

        requests = (
            replace(
                each,
                at_s=time * each.at_s,
                prompt_tokens=tokens(each.prompt_tokens),
                output_tokens=tokens(each.output_tokens),
            )
            for each in self.requests
        )
        block_tokens = None if self.block_tokens is None else tokens(self.block_tokens)
        return replace(self, requests=tuple(requests), block_tokens=block_tokens)


def merged(trace: Trace, bulk: Trace | None) -> list[tuple[TracedRequest, ServiceClass, Trace]]:
    """Returns the interactive requests of a trace and the bulk ones of another, each with its own,
    in the order of their arrival."""
    found = [(each, INTERACTIVE, trace) for each in trace.requests]
    if bulk is not None:
        found += [(each, BULK, bulk) for each in bulk.requests]
    return sorted(found, key=lambda entry: entry[0].at_s)


# Of a second: a date as a float is no more exact.
_DIGITS: Final = 6
# Far beyond any context length: a larger number is of another column.
_MOST_TOKENS: Final = 100_000_000
_SHOWN: Final = 200  # characters of the columns in an error
# Mooncake's, and the default of vLLM's `--timed-trace-chunk-hash-size`.
_MOONCAKE: Final = 512
_USUAL: Final = (_MOONCAKE, 16)
_BLOCKS: Final = "hash_ids"


def _seconds(stated: object) -> object:
    """Returns the seconds of a date, one without a time zone in UTC; numbers stay as they are."""
    if not isinstance(stated, str):
        return stated
    try:
        return float(stated)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(stated)
    except ValueError:
        rule = "it must be seconds, or a date and time such as 2023-11-16 18:17:03.9799600"
        raise ValueError(rule) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# The columns of GuideLLM, which are those of vLLM and Mooncake, too, of Azure, and of BurstGPT. An
# error names a missing one as the first of them does.
_FORMATS: Final = (
    ("timestamp", "input_length", "output_length"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("Timestamp", "Request tokens", "Response tokens"),
)
_TIMES, _PROMPTS, _ANSWERS = (AliasChoices(*names) for names in zip(*_FORMATS, strict=True))
_Tokens = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]


class _Row(BaseModel):
    """A row of any format; a number may be the text of one.

    `at_s`: of the trace's own clock; `is_whole`: it is an integer.
    """

    at_s: Annotated[FiniteFloat, BeforeValidator(_seconds)] = Field(validation_alias=_TIMES)
    prompt_tokens: _Tokens = Field(validation_alias=_PROMPTS)
    output_tokens: _Tokens = Field(validation_alias=_ANSWERS)
    blocks: tuple[StrictInt, ...] = Field((), validation_alias=_BLOCKS)
    is_whole: Annotated[bool, BeforeValidator(lambda stated: type(stated) is int)] = Field(
        False, validation_alias=_TIMES
    )


def read(path: Path | str) -> Trace:
    """Returns the trace in a file. Raises OSError and ValueError."""
    path = Path(path)
    content, name = path.read_bytes(), str(path)
    is_json = content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    stated = documents_in(name, content) if is_json else _csv_lines(name, content)
    lines = [(line, _row(document, f"{name}:{line}: ")) for line, document in stated]
    block_tokens = _block_tokens(name, lines)
    in_ms = block_tokens == _MOONCAKE and all(row.is_whole for _, row in lines)
    # Those without a prompt or without an answer failed, or were cancelled there.
    kept = [row for _, row in lines if row.prompt_tokens and row.output_tokens]
    if not kept:
        raise ValueError(f"{path}: the file must contain at least one answered request")
    began, unit_s = min(row.at_s for row in kept), 1e-3 if in_ms else 1.0
    requests = (
        TracedRequest(
            round(unit_s * (row.at_s - began), _DIGITS),
            *(row.prompt_tokens, row.output_tokens, row.blocks),
        )
        for row in sorted(kept, key=lambda row: row.at_s)
    )
    return Trace(path.name, sha256(content).hexdigest(), tuple(requests), block_tokens)


def _row(stated: object, place: str) -> _Row:
    """Returns what a line states; null is nothing. Raises ValueError."""
    if isinstance(stated, dict):
        stated = {column: value for column, value in stated.items() if value is not None}
    return parsed_as(_Row, stated, place)


def _csv_lines(name: str, content: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the lines below the first one, whose columns say which format it is."""
    records = parse(name, decoded(name, content, "utf-8-sig")).records
    rows = [(each.line, [cell.strip() for cell in each.fields]) for each in records]
    head = rows[0][1] if rows else []
    columns = next((each for each in _FORMATS if set(each) <= set(head)), None)
    if columns is None:
        known = "; or ".join(map(", ".join, _FORMATS))
        found = ascii(", ".join(head) or "none")[1:-1]
        rule = f"they must include those of a known trace: {known}; or the file must be JSONL"
        raise ValueError(f"{name}:1: the columns are {found[:_SHOWN]}: {rule}")
    for line, cells in rows[1:]:
        if cells and len(cells) != len(head):
            rule = f"it must have the {len(head)} of the first line"
            raise ValueError(f"{name}:{line}: the row has {len(cells)} cells: {rule}")
        if cells:
            values = dict(zip(head, cells, strict=True))
            yield line, {each: values[each] for each in columns}


def _block_tokens(name: str, lines: Sequence[tuple[int, _Row]]) -> int | None:
    """Returns the size of a block that agrees with all lengths; the usual ones first."""
    least, most = 1, inf
    for line, row in lines:
        count = len(row.blocks)
        if not count:
            continue
        least = max(least, -(-row.prompt_tokens // count))
        if count > 1:
            most = min(most, (row.prompt_tokens - 1) // (count - 1))
        if least > most:
            rule = f"as many as blocks of one size need for input_length {row.prompt_tokens}"
            problem = f"the number of {_BLOCKS} is {count}: it must be {rule}"
            raise ValueError(f"{name}:{line}: {problem}")
    if not any(row.blocks for _, row in lines):
        return None
    return next((usual for usual in _USUAL if least <= usual <= most), least)


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


def add_trace(
    parser: argparse.ArgumentParser, ways: argparse._ActionsContainer | None = None
) -> argparse._ArgumentGroup:
    """Adds the options of a trace, and returns their group. `ways`: what `--trace` excludes."""
    group = parser.add_argument_group("replay of a trace")
    add = group.add_argument
    text = "arrivals and lengths of interactive requests: Azure, Mooncake, BurstGPT, GuideLLM, vLLM"
    (ways or group).add_argument("--trace", type=Path, metavar="FILE", help=text)
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


def traces_of(options: argparse.Namespace) -> tuple[Trace, Trace | None]:
    """Returns the parts of the traces that the options define, the second None if not given.

    Raises OSError and ValueError.
    """

    def part(path: Path) -> Trace:
        whole = read(path).window(*options.trace_window)
        return whole.scaled(time=options.time_factor, lengths=options.length_factor)

    return part(options.trace), part(options.bulk_trace) if options.bulk_trace else None
