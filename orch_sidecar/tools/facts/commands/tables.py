"""`orch facts check` and others: checks tables, verifies, compares and prices their rows."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.arguments import PLOT, Unavailable, positive, share
from orch_sidecar.tools.drawing.picture import drawn, require
from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.commands.terminal import Commands, add_command
from orch_sidecar.tools.facts.comparison import compare, cost
from orch_sidecar.tools.facts.labels.documents import named
from orch_sidecar.tools.facts.signing.files import SUFFIX, TrustedKeys, digest, parse_trusted
from orch_sidecar.tools.facts.signing.recompute import client_measured
from orch_sidecar.tools.facts.signing.verdict import ReadEvidence, Verdict, Verified, Verifier
from orch_sidecar.tools.facts.tables.files import locked, read, write
from orch_sidecar.tools.facts.tables.notes import EVIDENCE, LOADED, SETTING_NAMES, UNKNOWN
from orch_sidecar.tools.facts.tables.row import MEASUREMENT, TYPES, Label
from orch_sidecar.tools.facts.tables.table import (
    LocatedRow,
    Table,
    check,
    header_fault,
    merge,
    migrate,
    valid_rows,
)
from orch_sidecar.tools.terminal import escaped, print_error, print_json
from vllm_plugin.contracts.lease_protocol import timestamp

_CHECK: Final = """Reports the faults of tables of facts by line and column.

They are of the header, of the number of fields of a row, of each field, of fields and notes that
must agree, and of rows of one run or measurement: docs/reference/facts.md."""

_MERGE: Final = f"""Merges tables of facts into one, in the given order.

A row that several files contain is written once. Nothing is written if a file has a fault, if
rows of one run have different labels, or if two different rows have the same measurement, which
are these columns and notes:

  {" ".join(MEASUREMENT)}
  {" ".join(SETTING_NAMES)}"""

_PUBLISH: Final = """Describes a table for others as a package of Frictionless Data.

It is datapackage.json beside the table: its columns, and the evidence that rows name as further
resources. The table must be without faults, and its evidence beside it."""

_VERIFY: Final = """Verifies the signed evidence of facts, offline.

Each FILE is a table, whose evidence lies beside it (<sha256>.json, as the note `evidence` names
it), or one such file. KEYS has trusted public keys, as `orch key --evidence` prints them; without
it no signer is known. A host that holds a trusted key can state anything: this verifies who stated
it. docs/reference/evidence.md has the verdicts, and what is compared with what.

examples:
  orch facts verify tps_model_gpu.csv --trusted trusted.yaml
  orch facts verify facts/*.csv --trusted trusted.yaml --json

exit code: 0 only if every row is verified"""

_COMPARE: Final = """Compares the throughput of facts by their batch.

A set has rows of one model, engine, accelerator, settings of the engine and kind of work. In it the
ways of batching stand side by side, and nothing is averaged over them. A batch is the mean number
of sequences per decode step; speed-up and efficiency are relative to the smallest one of the same
way. Rows that are to_be_confirmed are excluded. docs/reference/facts.md has each rule.

examples:
  orch facts compare tps_model_gpu.csv
  orch facts compare facts/*.csv --plot batches.svg --report batches.html
  orch facts compare tps_model_gpu.csv --trusted trusted.yaml --json"""

_COST: Final = """Prices rows: what a million tokens cost, by label.

You pay the whole hour of an accelerator with its share of the host, or of a machine without one.
Its tokens are those of the share that is used, for rows that are batched_online those of requests
within the SLO. The evidence beside the table splits the price into input and output.
docs/how-to/cost.md has each rule.

examples:
  orch facts cost tps_model_gpu.csv --per-hour 2.50 --json
  orch facts cost home.csv --per-hour 0.12 --electricity 0.30/kWh --watts 350"""


def add_commands(commands: Commands) -> None:
    """Adds the commands that read tables."""
    files = "tables of facts"
    add = add_command(commands, "check", _check, _CHECK, files=files).add_argument
    add("--migrate-legacy", action="store_true", help="first migrate the rows of an older file")
    add("--output", type=Path, metavar="FILE", help="write the migrated table here")
    add = add_command(commands, "merge", _merge, _MERGE, files=files).add_argument
    add("-o", "--output", type=Path, metavar="OUT", required=True, help="the file to write")
    add = add_command(commands, "publish", _publish, _PUBLISH).add_argument
    add("file", type=Path, metavar="FILE", help="a table of facts")
    evidence = f"{files}, or the evidence of single rows"
    add = add_command(commands, "verify", _verify, _VERIFY, files=evidence).add_argument
    add("--trusted", type=Path, metavar="KEYS", help="YAML with the public keys of operators")
    add("--json", action="store_true", help="print the verdicts as JSON")
    add = add_command(commands, "compare", _compare, _COMPARE, files=files).add_argument
    add("--plot", type=PLOT, metavar="FILE", help="draw tokens/s, TTFT and speed-up (.png or .svg)")
    add("--report", type=Path, metavar="HTML", help="write a page with the tables and pictures")
    add("--json", action="store_true", help="print the comparison as JSON")
    add("--trusted", type=Path, metavar="KEYS", help="the keys by which evidence is verified")
    add = add_command(commands, "cost", _cost, _COST, files=files).add_argument
    text = "price of an accelerator's hour: rent, or purchase over the hours of its life"
    add("--per-hour", type=positive, required=True, metavar="PRICE", help=text)
    text = "if the hour does not include it, such as 0.30/kWh"
    add("--electricity", type=_per_kwh, default=0.0, metavar="PRICE/kWh", help=text)
    add("--watts", type=positive, help="measured draw of an accelerator that works, host included")
    add("--idle-watts", type=positive, help="the same while it does not work")
    add("--used", type=share, default=1.0, metavar="SHARE", help="share of the hours at work (1)")
    add("--json", action="store_true", help="print the costs as JSON")


def _check(options: argparse.Namespace) -> int:
    legacy, several = options.migrate_legacy, len(options.files) > 1
    if legacy != (options.output is not None) or (legacy and several):
        raise ValueError("--migrate-legacy takes one FILE, and --output")
    if legacy:
        with locked(options.output):
            table, steps = migrate(read(options.files[0]))
            write(options.output, table.text)
        print(*steps, sep="\n")
        options.files = [options.output]
    code = 0
    for table in map(read, options.files):
        faults = check(table)
        labels = [located.row.measurement_type for located in valid_rows(table)]
        summary = f"{_summary(table, labels)}, {counted(len(faults), 'fault')}"
        print(*faults, summary, sep="\n")
        code = max(code, 1 if faults else 0)
    return code


def _summary(table: Table, kinds: Sequence[Label] | Sequence[Verdict]) -> str:
    """Counts the rows, and those of each kind in its order."""
    counts = Counter(kinds)
    texts = [f"{counts[each]} {each}" for each in (*Label, *Verdict) if counts[each]]
    of_each = f" ({', '.join(texts)})" if texts else ""
    return f"{table.name}: {counted(len(table.rows), 'row')}{of_each}"


def _merge(options: argparse.Namespace) -> int:
    with locked(options.output):
        tables = [read(path) for path in options.files]
        merged = merge(tables)
        if isinstance(merged, list):
            print(*merged, sep="\n")
            print(f"{counted(len(merged), 'fault')}: {options.output} is not written")
            return 1
        write(options.output, merged.text)
    repeated = sum(len(table.rows) for table in tables) - len(merged.rows)
    omitted = f" ({repeated} repeated omitted)" if repeated else ""
    print(f"{options.output}: {counted(len(merged.rows), 'row')}{omitted}")
    return 0


def _sound_rows(paths: Sequence[Path], done: str) -> list[LocatedRow]:
    """Returns the rows of tables. Where these have faults it prints them, and raises Unavailable
    with what is not `done` then. Raises OSError and ValueError."""
    tables = [*map(read, paths)]
    if faults := [str(fault) for table in tables for fault in check(table)]:
        print_error("\n".join(faults))
        raise Unavailable(f"files with faults are not {done}: fix them")
    return [located for table in tables for located in valid_rows(table)]


def _publish(options: argparse.Namespace) -> int:
    path: Path = options.file
    rows, read_evidence = _sound_rows([path], "published"), beside(path)
    # What the columns mean says `docs/reference/tps_model_gpu.csv-metadata.json`, by W3C's CSV on
    # the Web: it is the same for each table.
    types = {int: "integer", float: "number"}
    fields = [
        {"name": name, "type": types.get(kind, "string"), "constraints": {"required": True}}
        for name, kind in TYPES.items()
    ]
    table = _resource(path.name, path.read_bytes(), "text/csv")
    table |= {"type": "table", "encoding": "utf-8", "schema": {"fields": fields}}
    resources = {path.name: table}
    for note in filter(None, (located.row.notes.get(EVIDENCE) for located in rows)):
        name = note.removeprefix("sha256:")
        content = read_evidence(name)
        if content is None or digest(content) != name:
            lacks = "is not beside it" if content is None else "was changed: its SHA-256 is another"
            raise Unavailable(f"{path} is not published: its evidence {name}{SUFFIX} {lacks}")
        resources[name] = _resource(f"{name}{SUFFIX}", content, "application/json")
    document = {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": table["name"],
        "title": "Throughput of language models, by how the engine was batching",
        "resources": [*resources.values()],
    }
    package = path.with_name("datapackage.json")
    write(package, json.dumps(document, indent=2) + "\n")
    print(package)
    return 0


def _resource(file_name: str, content: bytes, media_type: str) -> dict[str, Any]:
    """Describes a file. Its name has lower case letters, digits, `.`, `-` and `_`."""
    return {
        "name": re.sub(r"[^a-z0-9._-]", "-", file_name.lower().rpartition(".")[0]),
        "path": file_name,
        "mediatype": media_type,
        "bytes": len(content),
        "hash": f"sha256:{digest(content)}",
    }


def read_trusted(path: Path | None) -> TrustedKeys:
    """Reads a file of trusted keys; none without a file. Raises OSError and ValueError."""
    if path is None:
        return {}
    _require_cryptography()
    with named(f"{path}: "):  # also of another encoding
        return parse_trusted(path.read_text(encoding="utf-8"))


def _require_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise ValueError("signatures need the package cryptography: install it")


def beside(*paths: Path) -> ReadEvidence:
    """Returns what reads the evidence files beside tables, by their digest."""

    def read_evidence(name: str) -> bytes | None:
        found = (path.resolve().with_name(f"{name}{SUFFIX}") for path in paths)
        return next((path.read_bytes() for path in found if path.is_file()), None)

    return read_evidence


def _verify(options: argparse.Namespace) -> int:
    _require_cryptography()
    trusted = read_trusted(options.trusted)
    tables = [read(path) for path in options.files if path.suffix != SUFFIX]
    for fault in filter(None, map(header_fault, tables)):
        raise Unavailable(str(fault))
    verdicts = verdicts_of(tables, trusted)
    for path in options.files:
        if path.suffix == SUFFIX:
            verifier = Verifier({path.stem: path.read_bytes()}.get, trusted, time.time())
            verdicts[str(path), None] = verifier.evidence(path.stem)
    documents = [_document(*place, found) for place, found in verdicts.items()]
    # Text of a file cannot pass for a line of its own.
    lines = [escaped(line) for each in documents for line in _lines(each)]
    for table in tables:
        of_table = [each.verdict for (file, _), each in verdicts.items() if file == table.name]
        lines.append(_summary(table, of_table))
    _print(options, documents, "\n".join(lines))
    return 0 if {found.verdict for found in verdicts.values()} == {Verdict.VERIFIED} else 1


def verdicts_of(
    tables: Sequence[Table], trusted: TrustedKeys
) -> dict[tuple[str, int | None], Verified]:
    """Returns the verdicts on rows, by file and line; the evidence of a single row has no line. A
    row with a fault has failed, whatever its evidence.

    One run makes one row, whichever table it is in; a copy in another table is the same row.
    """
    rows = [located for table in tables for located in valid_rows(table)]
    read_evidence = beside(*(Path(table.name) for table in tables))
    verdicts = Verifier(read_evidence, trusted, time.time()).rows(rows)
    found: dict[tuple[str, int | None], Verified] = {}
    for table in tables:
        lines = {each.record.line: verdicts[each.row] for each in valid_rows(table)}
        for line, faults in groupby(check(table), lambda fault: fault.record.line):
            lines[line] = Verified(Verdict.FAILED, [fault.text for fault in faults])
        found |= {(table.name, record.line): lines[record.line] for record in table.rows}
    return found


def _document(file: str, line: int | None, verified: Verified) -> dict[str, Any]:
    """Returns a verdict as JSON. `signed`: the engine's statements about itself and the run;
    `engine`: the figures by its clock and counters; `given`: by hand, and to which tool."""
    row, proof = verified.row, verified.proof
    found: dict[str, Any] = {
        "file": file,
        "line": line,
        **{name: getattr(verified, name) for name in ("verdict", "reasons", "signer", "evidence")},
        "signed": None,
        "engine": None,
        "client_measured": [],
        "given": {},
    }
    if row is None or proof is None:
        return found
    state, batches = proof.after.snapshot, proof.states.batches
    found["signed"] = {
        "from": timestamp(proof.before.wall_s),
        "to": timestamp(proof.after.wall_s),
        "models": list(state.models),
        "weights_sha256": proof.after.digests.get("weights", {}).get("sha256"),
        "loaded": state.conditions.get(LOADED, UNKNOWN),
        "statements": 1 + proof.after.sequence - proof.before.sequence,
    }
    found["engine"] = {
        "tokens_per_s": proof.totals.tokens_per_s,
        "window_s": proof.totals.window_s,
        "sequences": len(proof.leaves),
        "generated_tokens": proof.totals.output_tokens,
        "batch_mean": batches.mean,
        "batch_max": batches.largest,
        "prefix_hit_ratio": proof.states.prefix_hit_ratio,
    }
    found["client_measured"] = client_measured(row)
    if row.notes.given:
        values = {name: getattr(row, name) for name in row.notes.given}
        tool = row.notes.get("tool", row.source_tag.partition(":")[0])
        found["given"] = {"to": tool, "values": values}
    return found


def _lines(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a verdict: what is not the engine's word stands beside it."""
    place = ":".join(str(verdict[name]) for name in ("file", "line") if verdict[name] is not None)
    words = [f"{place}: {verdict['verdict']}"]
    if verdict["signer"] is not None:
        words[0] += f" (key {verdict['signer']})"
    if verdict["client_measured"]:
        words.append(f"client-measured: {', '.join(verdict['client_measured'])}")
    if given := verdict["given"]:
        values = ", ".join(f"{name} {value!r}" for name, value in given["values"].items())
        words.append(f"given by hand to {given['to']}: {values}")
    yield "; ".join(words)
    yield from (f"  {reason}" for reason in verdict["reasons"])
    for part in ("signed", "engine"):
        if verdict[part] is not None:
            texts = (f"{name} {_text(value)}" for name, value in verdict[part].items())
            yield f"  {part}: {', '.join(texts)}"


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _compare(options: argparse.Namespace) -> int:
    if options.plot is not None or options.report is not None:
        require()
    rows, trusted = _sound_rows(options.files, "compared"), read_trusted(options.trusted)
    verifier = Verifier(beside(*options.files), trusted, time.time())
    verdicts = verifier.rows(rows if trusted else ())
    verified = [row for row, each in verdicts.items() if each.verdict is Verdict.VERIFIED]
    found = compare.compare(rows, verified)
    page = compare.as_page(found)
    _print(options, asdict(found), page.plain)
    if not found.sets:
        raise Unavailable("the files have no row that can be compared")
    if options.plot is not None:
        write(options.plot, drawn(options.plot.suffix, found.headings[0], compare.charts_of(found)))
    if options.report is not None:
        write(options.report, page.html)
    return 0


def _per_kwh(text: str) -> float:
    price, unit, _ = text.lower().partition("/kwh")
    if not unit:
        raise argparse.ArgumentTypeError(f"{text!r} must be a price for a kWh, such as 0.30/kWh")
    return positive(price)


def _cost(options: argparse.Namespace) -> int:
    given = (options.per_hour, options.used, options.electricity, options.watts, options.idle_watts)
    prices = cost.Prices(*given)
    rows = _sound_rows(options.files, "priced")
    found = cost.priced(rows, prices, beside(*options.files))
    _print(options, asdict(found), cost.as_page(found).plain)
    if not found.costs:
        raise Unavailable("the files have no row that can be priced")
    return 0


def _print(options: argparse.Namespace, document: object, text: str) -> None:
    """Prints what was found, in one of its forms."""
    if options.json:
        print_json(document)
    else:
        print(text)
