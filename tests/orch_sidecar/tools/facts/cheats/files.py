"""Whole files: encodings, line ends, headers, and numbers that are none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.table import check
from tests.orch_sidecar.tools.facts.cheats import Cheat, Gate
from tests.orch_sidecar.tools.facts.rows import HEADER, fields

LINE = ",".join(fields())
TEXT = f"{HEADER}\n{LINE}\n"


def file(name: str, content: bytes, fault: str = "") -> Cheat:
    """A file, and the first fault, or the error, that is expected."""
    return Cheat(name, {Gate.CHECK: fault} if fault else {}, partial(said, content))


def said(content: bytes) -> Mapping[Gate, str]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(content)
        try:
            found = [str(fault) for fault in check(read(path))]
        except ValueError as error:
            found = [str(error)]
    return {Gate.CHECK: found[0] if found else ""}


def altered_line(old: str, new: str) -> bytes:
    assert old in LINE
    return f"{HEADER}\n{LINE.replace(old, new)}\n".encode()


CHEATS = [
    file("LF", TEXT.encode()),
    file("CRLF", TEXT.replace("\n", "\r\n").encode()),
    file("CR", TEXT.replace("\n", "\r").encode()),
    file("a byte order mark", f"\ufeff{TEXT}".encode()),
    file("two byte order marks", f"\ufeff\ufeff{TEXT}".encode(), ":1:1: model_id '\\ufeff"),
    file("a byte order mark inside", TEXT.replace("H100", "\ufeffH100").encode(), ":2:5: gpu "),
    file("UTF-16", TEXT.encode("utf-16"), ":1: the text is not UTF-8"),
    file("UTF-16 without a mark", TEXT.encode("utf-16-le"), "U+0000 NULL"),
    file("Latin-1", TEXT.replace("Llama 3.1 8B", "Modèle").encode("latin-1"), ":2: the text is"),
    file("another header", TEXT.replace("precision", "dtype").encode(), ":1:4: precision 'dtype'"),
    file("swapped columns", TEXT.replace("gpu,gpu_count", "gpu_count,gpu").encode(), ":1:5: gpu "),
    file("semicolons", TEXT.replace(";", '";"').replace(",", ";").encode(), "separated by commas"),
    file("units", altered_line("2461.67", "2461.67 tok/s"), ":2:10: throughput"),
    file("a decimal comma", altered_line("2461.67", '"2461,67"'), ":2:10: throughput"),
    file("a thousands separator", altered_line("2461.67", '"2,461.67"'), ":2:10: thro"),
    file("other digits", altered_line("2461.67", "\u0662\u0664"), ":2:10: throughput"),
    file("NaN", altered_line("2461.67", "NaN"), ":2:10: throughput"),
    file("infinity", altered_line("2461.67", "inf"), ":2:10: throughput"),
    file("1e400", altered_line("2461.67", "1e400"), ":2:10: throughput"),
    file("400 digits", altered_line("2461.67", "9" * 400), ":2:10: throughput"),
    file("negative", altered_line("2461.67", "-2461.67"), ":2:10: throughput"),
    file("a look-alike label", altered_line("batched_online", "b\u0430tched_online"),
         ":2:11: measurement_type"),
    file("a label in full width", altered_line("batched_online", "\uff42atched_online"),
         ":2:11: measurement_type"),
    file("a label in capitals", altered_line("batched_online", "Batched_Online"),
         ":2:11: measurement_type"),
    file("a label with an invisible end", altered_line("_online", "_online\u200b"),
         ":2:11: measurement_type 'batched_online\\u200b': must not contain U+200B"),
    file("notes in capitals", altered_line("batching=on", "Batching=off"), ":2:12: scen"),
    file("a note twice", altered_line("batching=on", "batching=on; batching=off"),
         "the note 'batching' occurs twice"),
]  # fmt: skip
