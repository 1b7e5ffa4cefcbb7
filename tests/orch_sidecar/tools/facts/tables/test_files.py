"""Reading, writing and appending to tables on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.facts.tables.files import (
    append,
    check_appendable,
    check_writable,
    locked,
    read,
    write,
)
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import check
from tests.orch_sidecar.tools.facts.rows import HEADER, fact, fields

LINE = ",".join(fields())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tps_model_gpu.csv"


def alone(path: Path) -> bool:
    """Returns whether the folder contains nothing else."""
    return [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("exists", [False, True])
def test_append_makes_a_file_with_a_header(path: Path, *, exists: bool) -> None:
    if exists:
        path.touch()
    assert append(path, [fact()]) == 1
    assert path.read_bytes() == f"{HEADER}\n{LINE}\n".encode()
    assert check(read(path)) == []
    assert alone(path)


def test_append_of_nothing_makes_a_table_without_rows(path: Path) -> None:
    assert append(path, []) == 0
    assert path.read_text() == f"{HEADER}\n"


@pytest.mark.parametrize("last", ["", "\r\n"])
def test_append_keeps_every_byte_that_was_there(path: Path, last: str) -> None:
    quoted = ",".join(f'"{value}"' for value in fields(throughput_tokens_per_sec="92.720"))
    before = f"\ufeff{HEADER}\r\n{quoted}{last}"
    path.write_bytes(before.encode())
    append(path, [fact(source_tag="a,b")])
    added = ",".join(fields(source_tag='"a,b"'))
    assert path.read_bytes().decode() == f"{before.removesuffix(last)}\r\n{added}\r\n"


def test_append_does_not_repeat_an_existing_row(path: Path) -> None:
    assert append(path, [fact(), fact()]) == 1
    before = path.read_bytes()
    assert append(path, [fact()]) == 0
    assert path.read_bytes() == before
    assert append(path, [fact(), fact(source_tag="run-2")]) == 1


def test_append_leaves_faults_of_other_rows_alone(path: Path) -> None:
    before = f"{HEADER}\na,b\n\n{LINE.replace('32,', '~32,', 1)}\n"
    path.write_text(before)
    append(path, [fact()])
    assert path.read_text() == f"{before}{LINE}\n"


@pytest.mark.parametrize(
    ("before", "rule"),
    [
        (f'{HEADER}\n{LINE}\nm/x,x,"vLLM', r":3: invalid CSV: unexpected end"),
        (HEADER.replace("batch,", "") + "\n", r":1:7: batch 'input_tokens': the head"),
    ],
)
def test_file_that_is_no_table_is_not_appended_to(path: Path, before: str, rule: str) -> None:
    path.write_text(before)
    with pytest.raises(ValueError, match=rf"tps_model_gpu\.csv{rule}"):
        append(path, [fact(source_tag="run-2")])
    with pytest.raises(ValueError, match=rule):
        check_appendable(path)
    assert path.read_text() == before
    assert alone(path)


def test_row_that_contradicts_an_existing_one_is_not_added(path: Path) -> None:
    append(path, [fact()])
    before = path.read_bytes()
    other = fact(throughput_tokens_per_sec=99.5)
    expected = r"2461\.67' for the same measurement"
    with pytest.raises(Unavailable, match=f"per_sec '99.5': .*csv:2:10 has '{expected}"):
        append(path, [fact(source_tag="run-2"), other])
    with pytest.raises(Unavailable, match=r"has '99\.5' for the same"):
        append(path, [replace(other, source_tag="run-3"), fact(source_tag="run-3")])
    assert path.read_bytes() == before


def test_check_for_a_writable_file_leaves_nothing_behind(path: Path) -> None:
    check_writable(path)
    check_appendable(path)
    assert not path.exists()
    append(path, [fact()])
    before = path.read_bytes()
    check_writable(path)
    check_appendable(path)
    assert path.read_bytes() == before
    assert alone(path)


def test_append_rejects_rows_with_faults_and_writes_none(path: Path) -> None:
    wrong = fact(Label.SINGLE_STREAM, batch=8)
    with pytest.raises(ValueError, match="batch '8': must be 1 for single_stream"):
        append(path, [fact(), wrong])
    assert not path.exists()


def test_new_file_has_default_permissions_and_an_old_one_keeps_its_own(path: Path) -> None:
    plain = path.with_name("plain")
    plain.touch()
    append(path, [fact()])
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    append(path, [fact(source_tag="run-2")])
    assert path.stat().st_mode & 0o777 == 0o640


def test_link_stays_a_link(path: Path) -> None:
    real = path.with_name("real.csv")
    append(real, [fact()])
    path.symlink_to(real.name)
    append(path, [fact(source_tag="run-2")])
    assert path.is_symlink()
    assert len(read(real).rows) == 2


@pytest.mark.parametrize(
    ("to", "rule"),
    [
        ("pipe", "regular file"),
        (".", "regular file"),
        ("none/t.csv", "no such folder: '.*/none'"),
        ("/sys/t.csv", ": '/sys'$"),  # nobody may write there, root neither
    ],
)
def test_file_that_cannot_be_written_is_named(path: Path, to: str, rule: str) -> None:
    os.mkfifo(path.with_name("pipe"))
    for attempt in (check_writable, partial(write, content="text")):
        with pytest.raises(OSError, match=rule):
            attempt(path.parent / to)
    assert path.with_name("pipe").is_fifo()


def test_write_that_fails_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(path, [fact()])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        append(path, [fact(source_tag="run-2")])
    assert path.read_bytes() == before
    assert alone(path)


def test_processes_that_append_at_once_lose_no_row(path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from orch_sidecar.tools.facts.tables.files import append\n"
        "from tests.orch_sidecar.tools.facts.rows import fact\n"
        "for number in range(20):\n"
        "    append(Path(sys.argv[1]), [fact(source_tag=f'{sys.argv[2]}-{number}')])\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("a", "b", "c")
    ]
    assert [process.wait() for process in started] == [0, 0, 0]
    found = read(path)
    assert check(found) == []
    tags = {record.fields[-1] for record in found.rows}
    assert tags == {f"{name}-{number}" for name in ("a", "b", "c") for number in range(20)}


def test_lock_is_held_until_its_end(path: Path) -> None:
    order = []

    def second() -> None:
        with locked(path):
            order.append("second")

    with locked(path):
        other = threading.Thread(target=second)
        other.start()
        other.join(timeout=0.2)
        assert other.is_alive()
        order.append("first")
    other.join()
    assert order == ["first", "second"]
