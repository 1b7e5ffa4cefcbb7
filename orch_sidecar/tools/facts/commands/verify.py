"""`orch facts verify`: verifies the signed evidence of rows, without the engine."""

from __future__ import annotations

import argparse
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_sidecar.tools.facts.commands.terminal import add_command, counted, print_error
from orch_sidecar.tools.facts.signing.evidence_file import SUFFIX
from orch_sidecar.tools.facts.signing.trusted import (
    InvalidTrustedKeys,
    TrustedKeys,
    parse_trusted,
)
from orch_sidecar.tools.facts.signing.verdict import (
    Verdict,
    Verified,
    verified_places,
    verify_evidence,
    verify_table,
)
from orch_sidecar.tools.facts.tables.check import (
    LocatedRow,
    check,
    header_fault,
    valid_rows,
)
from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.table import Table, UnreadableFile

if TYPE_CHECKING:
    from orch_sidecar.tools.facts.commands.terminal import Commands

_DESCRIPTION: Final = """Verifies the evidence of facts, offline: signatures, the certificate of the
engine's key by a trusted key, both hash chains, and that the row follows from them.

FILE is a table, whose evidence lies beside it (<sha256>.json, as the note `evidence` names it), or
one such file. KEYS has the trusted public keys with the time for which each is valid, as `orch key
--evidence` prints them; without it no signer is known. The verdicts:

  verified               an engine certified by a trusted key signed what the row states
  intact, signer unknown  nothing was changed, but no trusted key vouches for the engine
  not fresh              without a nonce: made of traces, or asked for without one
  unverified             the row has no evidence
  failed                 the evidence or the row was changed, or the row does not follow from it

Throughput is recomputed from the engine's finished sequences, from their first arrival to their
last end by its clock; a row may not exceed it by more than 2 %. Latencies are client-measured. A
host that holds a trusted key can state anything: this verifies who stated it."""

_EPILOG: Final = """examples:
  orch facts verify tps_model_gpu.csv --trusted trusted.yaml

exit code: 0 only if every row is verified"""


def add_commands(commands: Commands) -> None:
    """Adds `verify`."""
    summary = "verify the signed evidence of rows"
    parser = add_command(commands, "verify", summary, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a table of facts, or the evidence of one row")
    add("--trusted", type=Path, metavar="KEYS", help="YAML with the public keys of operators")
    parser.set_defaults(run=_verify)


def read_trusted(path: Path | None) -> TrustedKeys:
    """Reads a file of trusted keys; none without a file. Raises OSError and UnreadableFile."""
    if path is None:
        return {}
    _require_cryptography()
    try:
        return parse_trusted(path.read_text(encoding="utf-8"))
    except (InvalidTrustedKeys, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{path}: {error}") from None


def _require_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise UnreadableFile("signatures need the package cryptography: install it")


def beside(table: Path) -> Callable[[str], bytes | None]:
    """Returns what reads the evidence files beside a table."""

    def read_evidence(name: str) -> bytes | None:
        path = table.resolve().parent / f"{name}{SUFFIX}"
        return path.read_bytes() if path.is_file() else None

    return read_evidence


def verifier_of(tables: Iterable[Table], trusted: TrustedKeys) -> Callable[[LocatedRow], bool]:
    """Returns a test of whether a row of these tables is verified, by the evidence beside them."""
    verified: set[str] = set()
    for table in tables if trusted else ():  # without keys none is
        verified |= verified_places(valid_rows(table), beside(Path(table.name)), trusted)
    return lambda located: located.place in verified


def _verify(options: argparse.Namespace) -> int:
    _require_cryptography()
    path, trusted = options.file, read_trusted(options.trusted)
    if path.suffix == SUFFIX:
        verdict = verify_evidence(path.stem, path.read_bytes(), trusted)
        print(*_lines(str(path), verdict), sep="\n")
        return 0 if verdict.verdict is Verdict.VERIFIED else 1
    table = read(path)
    if (fault := header_fault(table)) is not None:
        print_error(fault)
        return 1
    verdicts = _verdicts(table, trusted)
    for line, verdict in verdicts.items():
        print(*_lines(f"{path}:{line}", verdict), sep="\n")
    counts = Counter(verdict.verdict for verdict in verdicts.values())
    text = ", ".join(f"{counts[each]} {each}" for each in Verdict if counts[each])
    print(f"{path}: {counted(len(verdicts), 'row')}{f' ({text})' if text else ''}")
    return 0 if verdicts and set(counts) == {Verdict.VERIFIED} else 1


def _verdicts(table: Table, trusted: TrustedKeys) -> dict[int, Verified]:
    """Returns the verdicts by line. A row with a fault has failed, whatever its evidence."""
    verified = verify_table(valid_rows(table), beside(Path(table.name)), trusted)
    found = {located.record.line: verdict for located, verdict in verified}
    for fault in check(table):
        found[fault.line] = Verified(Verdict.FAILED, (fault.text,))
    return dict(sorted(found.items()))


def _lines(place: str, verdict: Verified) -> list[str]:
    """Returns the verdict as lines. Text of a file in it cannot pass for a line of its own."""
    signer = f" (key {verdict.signer})" if verdict.signer is not None else ""
    lines = [f"{place}: {verdict.verdict}{signer}"]
    lines += [f"  {reason}" for reason in verdict.reasons]
    if (found := verdict.found) is not None:
        lines.append(
            f"  by the engine: {found.tokens_per_s:.6g} tokens/s over {found.window_s:.6g} s, "
            f"{counted(found.sequences, 'sequence')}, batch mean {found.batch_mean:.6g}, "
            f"max {found.batch_max}"
        )
    if verdict.only_client:
        lines.append(f"  client-measured: {', '.join(verdict.only_client)}")
    return [_escaped(line) for line in lines]


def _escaped(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
