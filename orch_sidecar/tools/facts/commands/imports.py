"""`orch facts from-vllm-bench`, `from-guidellm` and others: rows from files of other tools."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from orch_sidecar.tools.facts.commands.terminal import (
    add_command,
    add_row_options,
    print_error,
    write_rows,
)
from orch_sidecar.tools.facts.evidence import (
    aiperf,
    guidellm,
    mlperf_endpoints,
    vllm_bench,
)
from orch_sidecar.tools.facts.evidence.imported import ImportedRun, Rejection, read_run
from orch_sidecar.tools.facts.evidence.run_row import Source, to_row
from orch_sidecar.tools.facts.labels.documents import parse_all
from orch_sidecar.tools.facts.labels.measured import Engine
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.labels.snapshot import InvalidSnapshot, Snapshot, parse_snapshot
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.tables.table import UnreadableFile

if TYPE_CHECKING:
    from orch_sidecar.tools.facts.commands.terminal import Commands

_PROOF: Final = """
A file proves nothing about the engine. Save GET /v1/capabilities before the first request and
after the last answer, with the engine idle for two seconds both times, and give both: the row then
has the label of the file (or of the engine, where the file claims none), or the file is rejected
because the engine did something else, or did it at another time. Without them the row is
to_be_confirmed, and --engine, --precision, --gpu and --gpu-count are required instead."""

Read = Callable[[object], list[ImportedRun | Rejection]]


class _Tool(NamedTuple):
    """A tool whose files become rows. `command`: `from-` and this; `name`, and what reads a parsed
    file; `files`: completes `Makes rows from`, with how to write them and to claim a label."""

    command: str
    name: str
    read: Read
    files: str


_TOOLS: Final = (
    _Tool(
        "vllm-bench",
        "vllm bench serve",
        vllm_bench.read,
        """files of `vllm bench serve --save-result`.

Use --save-detailed if possible: the figures are then computed from every request, as those of
`orch bench` are, instead of from vLLM's own duration. A label is claimed with
--metadata measurement_type=LABEL.""",
    ),
    _Tool(
        "guidellm",
        "GuideLLM",
        guidellm.read,
        """reports of GuideLLM 0.7 or 0.8, one for each benchmark.

Write the report with --output kind=json,path=FILE. A label is claimed with
--label measurement_type=LABEL.""",
    ),
    _Tool(
        "aiperf",
        "AIPerf",
        aiperf.read,
        """summaries of AIPerf (profile_export_aiperf.json).

Run it with --export-level records: the summary then has the tokens that the engine reported. Its
own count of tokens is of the text, tokenized again. It claims no label.""",
    ),
    _Tool(
        "mlperf-endpoints",
        "MLPerf endpoints",
        mlperf_endpoints.read,
        """summaries of MLPerf endpoints (performance/result_summary.json).

Its tokens are of the text, tokenized again: those of the row are the engine's, which has to be
idle before and after. The file does not name the model: give --model-id. It claims no label.""",
    ),
)

_EPILOG: Final = """examples:
  curl -s $SIDECAR/v1/capabilities > before.json
  ... the load ...
  curl -s $SIDECAR/v1/capabilities > after.json
  orch facts {command} result.json --capabilities-before before.json \\
    --capabilities-after after.json --output tps_model_gpu.csv
  orch facts {command} result.json --engine 'vLLM 0.32.0' --precision BF16 --gpu H100 --gpu-count 1

exit code 1: a run was rejected; the rows of all others are written or printed"""


def add_commands(commands: Commands) -> None:
    """Adds a command for each tool."""
    for tool in _TOOLS:
        _add(commands, tool)


def _add(commands: Commands, tool: _Tool) -> None:
    command, summary = f"from-{tool.command}", f"make rows from files of {tool.name}"
    description = f"Makes rows from {tool.files}\n{_PROOF}"
    parser = add_command(commands, command, summary, description, _EPILOG.format(command=command))
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help=f"files of {tool.name}")
    id_help = "id of the model: one that the engine serves or has loaded, if its state is given"
    id_help += " (default: the name in the file)"
    add_row_options(parser, "the engine, without its state", id_help)
    proof = parser.add_argument_group("the state of the engine before and after a single run")
    saved = "GET /v1/capabilities, as JSON"
    proof.add_argument("--capabilities-before", type=Path, metavar="FILE", help=saved)
    proof.add_argument("--capabilities-after", type=Path, metavar="FILE", help=saved)
    proof.add_argument("--pool", help="the measured pool, if there are several")
    parser.set_defaults(run=lambda options: _run(options, tool.read))


def _run(options: argparse.Namespace, read: Read) -> int:
    runs = [run for path in options.files for run in _runs(path, read)]
    known = _known(options, len(runs))
    rows: list[Row] = []
    for tag, place, run in runs:
        source = Source(tag, options.model_id, options.model_name)
        made = run if isinstance(run, Rejection) else read_run(partial(to_row, run, known, source))
        if isinstance(made, Rejection):
            print_error(f"{place}: {made}")
        else:
            rows.append(made)
    write_rows(options, rows, lambda added: [asdict(row) for row in rows])
    return 1 if len(rows) < len(runs) else 0


def _runs(path: Path, read: Read) -> Iterator[tuple[str, str, ImportedRun | Rejection]]:
    """Yields the runs of a file, each with the tag of its source and its place."""
    content = path.read_bytes()
    found = [run for _, document in parse_all(str(path), content) for run in read(document)]
    tag = f"{path.name} sha256:{hashlib.sha256(content).hexdigest()[:12]}"
    for number, run in enumerate(found, 1):
        which = f"#{number}" if len(found) > 1 else ""
        yield f"{tag}{which}", f"{path}{which}", run


def _known(options: argparse.Namespace, runs: int) -> States | Engine:
    """Returns what the options state about the engine; exits with 2 if they contradict."""
    saved = [options.capabilities_before, options.capabilities_after]
    declared = [options.engine, options.precision, options.gpu, options.gpu_count]
    if any(saved):
        if not all(saved):
            options.usage.error("--capabilities-before and --capabilities-after go together")
        if any(each is not None for each in declared):
            options.usage.error(
                "--engine, --precision, --gpu and --gpu-count are part of the capabilities: "
                "omit them"
            )
        if runs != 1:
            options.usage.error(f"capabilities require files with a single run, not {runs}")
        before, after = (_snapshot(path, options.pool) for path in saved)
        return States(before, after)
    if any(each is None for each in declared):
        options.usage.error(
            "give either both --capabilities-before and --capabilities-after, or all of --engine, "
            "--precision, --gpu and --gpu-count"
        )
    return Engine(*declared)


def _snapshot(path: Path, pool: str | None) -> Snapshot:
    documents = parse_all(str(path), path.read_bytes())
    if len(documents) != 1:
        count = len(documents)
        raise UnreadableFile(f"{path}: has {count} documents, must be one of /v1/capabilities")
    try:
        return parse_snapshot(documents[0][1], pool)
    except InvalidSnapshot as error:
        raise UnreadableFile(f"{path}: {error}") from None
