"""`orch facts from-vllm-bench` and `from-guidellm`: other tools' files in, rows out."""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orch_sidecar.tools.facts.evidence import guidellm, vllm_bench
from orch_sidecar.tools.facts.evidence.measured import MeasuredRun, Rejection
from orch_sidecar.tools.facts.evidence.run_row import Given, Proof, Source, fact
from orch_sidecar.tools.facts.evidence.snapshot import InvalidSnapshot, Snapshot, parse_snapshot
from orch_sidecar.tools.facts.tables import json_documents
from orch_sidecar.tools.facts.tables.check import row_faults
from orch_sidecar.tools.facts.tables.files import append
from orch_sidecar.tools.facts.tables.json_documents import InvalidJson
from orch_sidecar.tools.facts.tables.row import COLUMNS, Row
from orch_sidecar.tools.facts.tables.table import Record, UnreadableFile, row_fields

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

Read = Callable[[object], list[MeasuredRun | Rejection]]

_PROOF: Final = """
A file proves nothing about the engine. With what GET /v1/capabilities said before the first
request and after the last answer, the engine idle for two seconds both times, the row has the
label of the file (or of the engine, where the file claims none), or the file is refused because
the engine did something else. Without, the row is to_be_confirmed, and --engine, --precision,
--gpu and --gpu-count must say what the capabilities would have said."""

_VLLM_BENCH: Final = f"""Rows from files of `vllm bench serve --save-result`.

Better with --save-detailed: figures are then of every request as `orch bench` has them, and not
of vLLM's own duration. A claim is --metadata measurement_type=LABEL.
{_PROOF}"""

_GUIDELLM: Final = f"""Rows from reports of GuideLLM 0.7 or 0.8 (--output kind=json,path=FILE), one
for each of their benchmarks. A claim is --label measurement_type=LABEL.
{_PROOF}"""

_EPILOG: Final = """examples:
  curl -s $SIDECAR/v1/capabilities > before.json
  ... the load ...
  curl -s $SIDECAR/v1/capabilities > after.json
  orch facts {command} result.json --capabilities-before before.json \\
    --capabilities-after after.json --output tps_model_gpu.csv
  orch facts {command} result.json --engine 'vLLM 0.32.0' --precision BF16 --gpu H100 --gpu-count 1

exit code 1: something was refused; the rows of all else are written or printed"""


def add_commands(commands: Commands) -> None:
    """`from-vllm-bench` and `from-guidellm`."""
    _add(commands, "vllm-bench", "vllm bench serve", _VLLM_BENCH, vllm_bench.read)
    _add(commands, "guidellm", "GuideLLM", _GUIDELLM, guidellm.read)


def _add(commands: Commands, name: str, tool: str, description: str, read: Read) -> None:
    parser = commands.add_parser(
        f"from-{name}",
        help=f"rows from files of {tool}",
        description=description,
        epilog=_EPILOG.format(command=f"from-{name}"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE")
    add("--output", type=Path, metavar="CSV", help="append the rows here, but for those it has")
    add("--json", action="store_true", help="print them as JSON, not as CSV")
    add("--model-id", help="(the name in the file)")
    add("--model-name", help="in print (the last part of the id)")
    proof = parser.add_argument_group("what the engine said of itself, around one run")
    proof.add_argument("--capabilities-before", type=Path, metavar="FILE")
    proof.add_argument("--capabilities-after", type=Path, metavar="FILE")
    proof.add_argument("--pool", help="of several pools, the one that was measured")
    given = parser.add_argument_group("without that, what you say of it")
    given.add_argument("--engine", help="name and version, as 'vLLM 0.32.0'")
    given.add_argument("--precision")
    given.add_argument("--gpu", help="or 'CPU (model of the processor)'")
    given.add_argument("--gpu-count", type=int, help="0 without one")
    parser.set_defaults(run=lambda options: _run(options, read), usage=parser)


def _run(options: argparse.Namespace, read: Read) -> int:
    runs = [run for path in options.files for run in _runs(path, read)]
    known = _known(options, len(runs))
    rows: list[Row] = []
    refused = 0
    for tag, place, measured in runs:
        source = Source(tag, options.model_id, options.model_name)
        made = measured if isinstance(measured, Rejection) else _made(measured, known, source)
        if isinstance(made, Rejection):
            refused += 1
            print(f"{place}: {made}", file=sys.stderr)
        else:
            rows.append(made)
    _write(rows, options)
    return 1 if refused else 0


def _made(measured: MeasuredRun, known: Proof | Given, source: Source) -> Row | Rejection:
    """A row that `orch facts check` finds no fault with."""
    try:
        row = fact(measured, known, source)
    except ValueError as error:
        return Rejection("scenario_notes", measured.tool, str(error))
    if isinstance(row, Row):
        for fault in row_faults("", Record(1, row_fields(row), "")):
            return Rejection(fault.name, fault.value, fault.rule)
    return row


def _write(rows: Sequence[Row], options: argparse.Namespace) -> None:
    if options.output is not None and rows:
        added = append(options.output, rows)
        print(f"{options.output}: {added} added, {len(rows) - added} were there", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif options.output is None and rows:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([COLUMNS, *(row_fields(row) for row in rows)])


def _runs(path: Path, read: Read) -> Iterator[tuple[str, str, MeasuredRun | Rejection]]:
    """Each run of a file, with its source's tag and its place."""
    content = path.read_bytes()
    found = [run for document in _documents(path, content) for run in read(document)]
    tag = f"{path.name} sha256:{hashlib.sha256(content).hexdigest()[:12]}"
    for number, run in enumerate(found, 1):
        which = f"#{number}" if len(found) > 1 else ""
        yield f"{tag}{which}", f"{path}{which}", run


def _documents(path: Path, content: bytes) -> list[Any]:
    """The JSON documents in a file: one, or several (vLLM's --append-result). Raises Unreadable."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile(f"{path}: no UTF-8") from None
    documents: list[Any] = []
    at = 0
    while (rest := text[at:].lstrip()) or not documents:
        at = len(text) - len(rest)
        try:
            document, at = json_documents.part(text, at)
        except InvalidJson as error:
            raise UnreadableFile(f"{path}:{error}") from None
        documents.append(document)
    return documents


def _known(options: argparse.Namespace, runs: int) -> Proof | Given:
    """What is known of the engine; exits with 2 for flags that do not go together."""
    told = [options.capabilities_before, options.capabilities_after]
    said = [options.engine, options.precision, options.gpu, options.gpu_count]
    if any(told):
        if not all(told):
            options.usage.error("--capabilities-before and --capabilities-after go together")
        if any(each is not None for each in said):
            options.usage.error(
                "--engine, --precision, --gpu and --gpu-count are in the capabilities"
            )
        if runs != 1:
            options.usage.error(f"capabilities are of one run, and the files have {runs}")
        before, after = (_snapshot(path, options.pool) for path in told)
        return Proof(before, after)
    if any(each is None for each in said):
        options.usage.error(
            "either both --capabilities-..., or all of --engine, --precision, --gpu, --gpu-count"
        )
    return Given(*said)


def _snapshot(path: Path, pool: str | None) -> Snapshot:
    documents = _documents(path, path.read_bytes())
    if len(documents) != 1:
        raise UnreadableFile(
            f"{path}: has {len(documents)} documents, must be one of /v1/capabilities"
        )
    try:
        return parse_snapshot(documents[0], pool)
    except InvalidSnapshot as error:
        raise UnreadableFile(f"{path}: {error}") from None
