"""Reads a trace file, whose format follows from its first line.

    Azure LLM inference 2023 and 2024   CSV: TIMESTAMP (a date), ContextTokens, GeneratedTokens
    BurstGPT                            CSV: Timestamp (seconds), Request tokens, Response tokens
    GuideLLM's `trace_synthetic`        CSV or JSONL: timestamp (seconds), input_length,
                                        output_length
    vLLM's `timed_trace`                JSONL, the same names, and hash_ids of blocks of tokens
    Mooncake                            the same in milliseconds, with blocks of 512 tokens

Other columns are ignored. Times count from the first request, in the order of the times.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from orch_sidecar.tools.traces.csv_rows import csv_rows
from orch_sidecar.tools.traces.json_lines import json_lines
from orch_sidecar.tools.traces.row import Row
from orch_sidecar.tools.traces.trace import InvalidTrace, Trace, TracedRequest

# Of a second: a date as a float is no more exact.
_DIGITS: Final = 6


def read(path: Path | str) -> Trace:
    """Returns the trace in a file. Raises OSError and InvalidTrace."""
    path = Path(path)
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise InvalidTrace(f"{path}:{line}: byte {byte:#x}: the file must be UTF-8") from None
    rows, block_tokens = _rows(str(path), text)
    kept = sorted(
        (row for row in rows if row.prompt_tokens and row.output_tokens),
        key=lambda row: row.at_s,
    )
    if not kept:
        raise InvalidTrace(f"{path}: the file must contain at least one answered request")
    began_s = kept[0].at_s
    return Trace(
        name=path.name,
        sha256=sha256(content).hexdigest(),
        requests=tuple(
            TracedRequest(
                round(row.at_s - began_s, _DIGITS),
                row.prompt_tokens,
                row.output_tokens,
                row.blocks,
            )
            for row in kept
        ),
        block_tokens=block_tokens,
        left_out=len(rows) - len(kept),
    )


def _rows(name: str, text: str) -> tuple[list[Row], int | None]:
    """Returns all rows and the tokens of a prefix block, None without blocks."""
    if text.lstrip().startswith("{"):
        return json_lines(name, text)
    return csv_rows(name, text), None
