"""`orch facts check`, `merge`, `publish` and `verify`: what is wrong with tables, and what their
evidence is worth, without the engine."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.commands.terminal import Commands, add_command, sound_rows
from orch_sidecar.tools.facts.signing.evidence_file import SUFFIX, digest
from orch_sidecar.tools.facts.signing.recompute import client_measured
from orch_sidecar.tools.facts.signing.trusted import TrustedKeys, parse_trusted
from orch_sidecar.tools.facts.signing.verdict import ReadEvidence, Verdict, Verified, Verifier
from orch_sidecar.tools.facts.tables.check import (
    LocatedRow,
    check,
    header_fault,
    merge,
    migrate,
    valid_rows,
)
from orch_sidecar.tools.facts.tables.files import locked, read, write
from orch_sidecar.tools.facts.tables.notes import EVIDENCE, LOADED, SETTING_NAMES, UNKNOWN
from orch_sidecar.tools.facts.tables.row import MEASUREMENT, TYPES, Label, Row
from orch_sidecar.tools.facts.tables.table import Table
from orch_sidecar.tools.terminal import escaped, print_json
from vllm_plugin.contracts.lease_protocol import timestamp

_CHECK: Final = """Reports the faults of tables of facts by line and column.

They are of the header, of the number of fields of a row, of each field, of fields and notes that
must agree, and of rows of one run or measurement.

--migrate-legacy rewrites the rows of an older file before that: the labels aggregate and
per_user_stream become to_be_confirmed, and notes in free text get the required ones, which follow
from the row. A row with any other fault stays as it is. Both are reported."""

_MERGE: Final = f"""Merges tables of facts into one, in the given order.

A row that several files contain is written once. Nothing is written if a file has a fault, if
rows of one run have different labels, or if two different rows have the same measurement, which
are these columns and notes:

  {" ".join(MEASUREMENT)}
  {" ".join(SETTING_NAMES)}"""

_PUBLISH: Final = """Describes a table for others as a package of Frictionless Data.

It is datapackage.json beside the table: its columns, and the evidence that rows name as further
resources, each with its size and SHA-256. The table must be without faults, and its evidence beside
it."""

_VERIFY: Final = """Verifies the signed evidence of facts, offline.

Each FILE is a table, whose evidence lies beside it (<sha256>.json, as the note `evidence` names
it), or one such file. KEYS has the trusted public keys with the time for which each is valid, as
`orch key --evidence` prints them; without it no signer is known. The verdicts:

  verified                an engine certified by a trusted key signed what the row states
  intact, signer unknown  nothing was changed, but no trusted key vouches for the engine
  not fresh               without a nonce: made of traces, or asked for without one
  unverified              the row has no evidence, or none of the model that ran
  failed                  the evidence or the row was changed, or the row does not follow from it,
                          or it was signed at a time that this machine's clock has not reached

A host that holds a trusted key can state anything: this verifies who stated it. What is compared
with what is in docs/reference/evidence.md."""

_VERIFY_EPILOG: Final = """examples:
  orch facts verify tps_model_gpu.csv --trusted trusted.yaml
  orch facts verify facts/*.csv --trusted trusted.yaml --json

exit code: 0 only if every row is verified"""


_PACKAGE_PROFILE: Final = "https://datapackage.org/profiles/2.0/datapackage.json"
_PACKAGE_TITLE: Final = "Throughput of language models, by how the engine was batching"
_FIELD_TYPES: Final = {int: "integer", float: "number"}


def add_commands(commands: Commands) -> None:
    """Adds `check`, `merge`, `publish` and `verify`."""
    add = add_command(commands, "check", _check, _CHECK, files="tables of facts").add_argument
    help = "migrate the rows of an older file, which are written to --output, first"
    add("--migrate-legacy", action="store_true", help=help)
    add("--output", type=Path, metavar="FILE", help="write the migrated table here")
    add = add_command(commands, "merge", _merge, _MERGE, files="tables of facts").add_argument
    add("-o", "--output", type=Path, metavar="OUT", required=True, help="the file to write")
    add = add_command(commands, "publish", _publish, _PUBLISH).add_argument
    add("file", type=Path, metavar="FILE", help="a table of facts")

    files = "tables of facts, or the evidence of single rows"
    add = add_command(
        commands, "verify", _verify, _VERIFY, _VERIFY_EPILOG, files=files
    ).add_argument
    add("--trusted", type=Path, metavar="KEYS", help="YAML with the public keys of operators")
    add("--json", action="store_true", help="print the verdicts as JSON")


def _check(options: argparse.Namespace) -> int:
    if options.migrate_legacy != (options.output is not None) or (
        options.migrate_legacy and len(options.files) > 1
    ):
        options.usage.error("--migrate-legacy takes one FILE, and --output")
    code = 0
    for path in options.files:
        table = _migrated(path, options.output) if options.migrate_legacy else read(path)
        faults = check(table)
        labels = [located.row.measurement_type for located in valid_rows(table)]
        summary = f"{_summary(table, labels)}, {counted(len(faults), 'fault')}"
        print(*faults, summary, sep="\n")
        code = max(code, 1 if faults else 0)
    return code


def _migrated(path: Path, target: Path) -> Table:
    """Writes the migrated table of a file to another, or the same, and returns it."""
    with locked(target):
        table, steps = migrate(read(path))
        write(target, table.text)
    print(*steps, sep="\n")
    return read(target)


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


def _publish(options: argparse.Namespace) -> int:
    path: Path = options.file
    rows = sound_rows([path], f"{path} has faults and is not published")
    read_evidence = beside(path)
    evidence: dict[str, bytes] = {}
    for note in filter(None, (located.row.notes.get(EVIDENCE) for located in rows)):
        name = note.removeprefix("sha256:")
        content = read_evidence(name)
        if content is None or digest(content) != name:
            lacks = "is not beside it" if content is None else "was changed: its SHA-256 is another"
            raise Unavailable(f"{path} is not published: its evidence {name}{SUFFIX} {lacks}")
        evidence[f"{name}{SUFFIX}"] = content
    package = path.with_name("datapackage.json")
    document = _package(path.name, path.read_bytes(), evidence)
    write(package, json.dumps(document, indent=2) + "\n")
    print(package)
    return 0


# What the columns mean says `docs/reference/tps_model_gpu.csv-metadata.json`, by W3C's CSV on the
# Web: it is the same for each table.
def _package(file_name: str, content: bytes, evidence: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns the content of `datapackage.json`. `evidence`: the content of each file that supports
    a row, by its name."""
    fields = [
        {"name": name, "type": _FIELD_TYPES.get(kind, "string"), "constraints": {"required": True}}
        for name, kind in TYPES.items()
    ]
    table = _resource(file_name, content, "text/csv")
    table |= {"type": "table", "encoding": "utf-8", "schema": {"fields": fields}}
    files = [_resource(*each, "application/json") for each in evidence.items()]
    name, resources = _name(file_name), [table, *files]
    return {
        "$schema": _PACKAGE_PROFILE,
        "name": name,
        "title": _PACKAGE_TITLE,
        "resources": resources,
    }


def _resource(file_name: str, content: bytes, media_type: str) -> dict[str, Any]:
    return {
        "name": _name(file_name),
        "path": file_name,
        "mediatype": media_type,
        "bytes": len(content),
        "hash": f"sha256:{digest(content)}",
    }


def _name(file_name: str) -> str:
    """Returns the identifier of a file: lower case letters, digits, `.`, `-` and `_`."""
    return re.sub(r"[^a-z0-9._-]", "-", file_name.lower().rpartition(".")[0])


def read_trusted(path: Path | None) -> TrustedKeys:
    """Reads a file of trusted keys; none without a file. Raises OSError and ValueError."""
    if path is None:
        return {}
    _require_cryptography()
    try:
        return parse_trusted(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also of another encoding
        raise ValueError(f"{path}: {error}") from None


def _require_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise ValueError("signatures need the package cryptography: install it")


def beside(*paths: Path) -> ReadEvidence:
    """Returns what reads the evidence files beside tables, by their digest."""
    folders = dict.fromkeys(path.resolve().parent for path in paths)

    def read_evidence(name: str) -> bytes | None:
        found = (folder / f"{name}{SUFFIX}" for folder in folders)
        return next((path.read_bytes() for path in found if path.is_file()), None)

    return read_evidence


def verified_rows(rows: Sequence[LocatedRow], read: ReadEvidence, trusted: TrustedKeys) -> set[Row]:
    """Returns the rows that are verified; none without trusted keys."""
    verdicts = Verifier(read, trusted, time.time()).rows(rows if trusted else ())
    return {row for row, each in verdicts.items() if each.verdict is Verdict.VERIFIED}


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
    if options.json:
        print_json(documents)
    else:
        for each in documents:
            # Text of a file cannot pass for a line of its own.
            print(*map(escaped, _lines(each)), sep="\n")
        for table in tables:
            of_table = [each.verdict for (file, _), each in verdicts.items() if file == table.name]
            print(_summary(table, of_table))
    return 0 if {found.verdict for found in verdicts.values()} == {Verdict.VERIFIED} else 1


# By file and line; the evidence of a single row has no line.
_Verdicts = dict[tuple[str, int | None], Verified]


def verdicts_of(tables: Sequence[Table], trusted: TrustedKeys) -> _Verdicts:
    """Returns the verdicts on rows. A row with a fault has failed, whatever its evidence.

    One run makes one row, whichever table it is in; a copy in another table is the same row.
    """
    rows = [located for table in tables for located in valid_rows(table)]
    read_evidence = beside(*(Path(table.name) for table in tables))
    verdicts = Verifier(read_evidence, trusted, time.time()).rows(rows)
    found: _Verdicts = {}
    for table in tables:
        lines = {each.record.line: verdicts[each.row] for each in valid_rows(table)}
        for line, faults in groupby(check(table), lambda fault: fault.line):
            lines[line] = Verified(Verdict.FAILED, [fault.text for fault in faults])
        found |= {(table.name, record.line): lines[record.line] for record in table.rows}
    return found


def _document(file: str, line: int | None, verified: Verified) -> dict[str, Any]:
    """Returns a verdict as JSON. `signed`: the engine's statements about itself and the run;
    `engine`: the figures by its clock and counters; `given`: by hand, and to which tool."""
    found: dict[str, Any] = {
        "file": file,
        "line": line,
        "verdict": verified.verdict,
        "reasons": list(verified.reasons),
        "signer": verified.signer,
        "evidence": verified.evidence,
        "signed": None,
        "engine": None,
        "client_measured": [] if verified.row is None else client_measured(verified.row),
        "given": {},
    }
    if (proof := verified.proof) is not None:
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
    row = verified.row
    if row is not None and row.notes.given:
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
