"""The thread that writes lines: in order, to a file that may move away, and never in the way."""

from __future__ import annotations

import errno
import logging
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from orch_sidecar.observability.request_log.writer import Line, LineWriter


def lines(*texts: str) -> list[Line]:
    return [partial(str.encode, text) for text in texts]


def read(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("before\n")
    writer = LineWriter(str(path))
    writer.write(lines("1", "2"))
    writer.write(lines("3"))
    writer.close(10.0)
    assert read(path) == ["before", "1", "2", "3"]
    assert writer.dropped == 0


def test_file_that_was_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path, moved = tmp_path / "requests.jsonl", tmp_path / "requests.jsonl.1"
    writer, written = LineWriter(str(path)), threading.Event()
    writer.write([*lines("1"), lambda: written.set() or b"2"])  # type: ignore[func-returns-value]
    assert written.wait(10.0)
    while not path.read_text().endswith("2\n"):
        pass
    path.rename(moved)
    writer.write(lines("3"))
    writer.close(10.0)
    assert (read(moved), read(path)) == (["1", "2"], ["3"])


def test_new_file_is_its_owners_alone_and_one_that_is_there_keeps_its_mode(
    tmp_path: Path,
) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.touch(0o640)
    for path in (there, new):
        LineWriter(str(path)).close(10.0)
    assert [path.stat().st_mode & 0o777 for path in (there, new)] == [0o640, 0o600]


def test_lines_beyond_the_bound_are_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    writer, go = LineWriter(str(path), most=3), threading.Event()
    writer.write([lambda: (go.wait() and b"1") or b""])  # the thread is blocked
    writer.write(lines("2", "3", "4", "5"))
    writer.write(lines("6"))
    assert writer.dropped == 3
    go.set()
    writer.close(10.0)
    assert read(path) == ["1", "2", "3"]


def test_lines_that_cannot_be_written_are_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "requests.jsonl"
    writer = LineWriter(str(path))
    path.unlink()
    folder.rmdir()
    writer.write(lines("1"))
    writer.write(lines("2"))
    while writer.dropped < 2:
        pass
    folder.mkdir()
    writer.write(lines("3"))
    writer.close(10.0)
    assert read(path) == ["3"]
    assert caplog.text.count("the request log cannot be written") == 1


def test_line_that_cannot_be_made_costs_no_other_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "requests.jsonl"
    writer = LineWriter(str(path))
    writer.write([*lines("1"), lambda: b"%d" % cast_error(), *lines("2")])
    writer.write(lines("3"))
    writer.close(10.0)
    assert (read(path), writer.dropped) == (["1", "2", "3"], 1)
    assert "could not be made: ValueError('a fault')" in caplog.text
    assert "Traceback" not in caplog.text


def cast_error() -> int:
    raise ValueError("a fault")


def test_file_that_cannot_be_opened_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"ORCH_REQUEST_LOG.*give a file that can be written"):
        LineWriter(str(tmp_path / "nowhere" / "requests.jsonl"))


def test_standard_output_is_one_of_the_places(capfd: pytest.CaptureFixture[str]) -> None:
    writer = LineWriter("-")
    writer.write(lines("1"))
    writer.close(10.0)
    assert capfd.readouterr().out == "1\n"


def test_line_that_was_cut_by_a_full_disk_does_not_spoil_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "requests.jsonl", os.write
    calls: list[bytes] = []

    def on_a_full_disk(fd: int, data: bytes) -> int:
        calls.append(bytes(data))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:6] if len(calls) == 1 else data)

    monkeypatch.setattr(os, "write", on_a_full_disk)
    writer = LineWriter(str(path))
    writer.write(lines("111", "222", "333"))
    while writer.dropped < 2:
        pass
    writer.write(lines("444"))
    writer.close(10.0)
    assert (read(path), writer.dropped) == (["111", "22", "444"], 2)
