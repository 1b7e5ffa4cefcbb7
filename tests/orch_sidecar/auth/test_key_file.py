"""A key file that is created, changed and removed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.auth.key_file import KeyFile
from orch_sidecar.auth.keys import MAX_FILE_BYTES, InvalidKeyFile, Keys, entry_of, new_key
from tests.patience import HANG_S

ALICE, BOB = entry_of(new_key(b"a" * 32), "alice"), entry_of(new_key(b"b" * 32), "bob")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def again(file: KeyFile) -> Keys | None:
    """What has changed since it was looked at last."""
    inspection = file.inspect_if_changed()
    return None if inspection is None else file.accept(inspection)


def names(keys: Keys | None) -> list[str] | None:
    return None if keys is None else [each.name for each in keys]


def test_missing_file_is_an_error_that_names_path_rule_and_the_way_out(path: Path) -> None:
    with pytest.raises(InvalidKeyFile) as wrong:
        KeyFile(path).read_at_start()
    message = str(wrong.value)
    assert message.startswith(f"api_keys_file {path} does not exist: ")
    assert "set api_keys_required to false (ORCH_API_KEYS_REQUIRED)" in message
    assert "\n" not in message


def test_missing_file_means_no_keys_where_none_is_required_and_each_start_warns(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert KeyFile(path, required=False).read_at_start() is None
    for record in caplog.records:
        assert record.levelname == "WARNING"
        assert f"api_keys_file {path} does not exist" in record.message
        assert "every client is served without an API key" in record.message
    assert len(caplog.records) == 2


def test_file_is_read_again_only_when_it_has_changed(path: Path) -> None:
    path.write_text(ALICE)
    file = KeyFile(path)
    assert names(file.read_at_start()) == ["alice"]
    assert again(file) is None
    path.write_text(ALICE + BOB)
    assert names(again(file)) == ["alice", "bob"]
    assert again(file) is None


def test_changed_link_is_a_changed_file(tmp_path: Path, path: Path) -> None:
    """As a kubelet lays out a Secret, and changes it: file -> ..data/file -> ..version/file."""

    def lay_out(version: str, text: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys.yaml").write_text(text)
        os.utime(tmp_path / version / "keys.yaml", ns=(10**18, 10**18))
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    same_size = BOB.replace("bob", "bobby")
    assert len(same_size) == len(ALICE)
    lay_out("..1", ALICE)
    path.symlink_to("..data/keys.yaml")
    file = KeyFile(path)
    assert names(file.read_at_start()) == ["alice"]
    lay_out("..2", same_size)
    assert names(again(file)) == ["bobby"]


def test_file_created_later_is_found(path: Path) -> None:
    file = KeyFile(path, required=False)
    assert file.read_at_start() is None
    assert again(file) is None
    path.write_text(ALICE)
    assert names(again(file)) == ["alice"]


@pytest.mark.parametrize("required", [True, False])
def test_removed_file_is_an_error(path: Path, required: bool) -> None:
    path.write_text(ALICE)
    file = KeyFile(path, required=required)
    file.read_at_start()
    path.unlink()
    with pytest.raises(InvalidKeyFile, match="no longer exists"):
        again(file)
    assert again(file) is None, "it is reported once"
    with pytest.raises(InvalidKeyFile, match="no longer exists"):
        file.accept(file.inspect())
    path.write_text(ALICE)
    assert names(again(file)) == ["alice"]


def test_invalid_file_is_reported_once_and_read_when_it_changes(path: Path) -> None:
    path.write_text(ALICE)
    file = KeyFile(path)
    file.read_at_start()
    path.write_text("[]")
    with pytest.raises(InvalidKeyFile, match="contains no key"):
        again(file)
    assert again(file) is None
    path.write_text(BOB)
    assert names(again(file)) == ["bob"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "contains no key"),
        (b"\xff\xfe", "is not valid UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), f"is larger than {MAX_FILE_BYTES} bytes"),
        (b"- {}", "entry 1"),
    ],
)
def test_error_of_an_invalid_file_names_its_path(path: Path, content: bytes, expected: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidKeyFile) as wrong:
        KeyFile(path).read_at_start()
    assert str(wrong.value).startswith(f"api_keys_file {path} ")
    assert expected in str(wrong.value)


def test_anything_but_a_regular_file_is_an_error(tmp_path: Path, path: Path) -> None:
    with pytest.raises(InvalidKeyFile, match="is a directory, but must be a regular file"):
        KeyFile(tmp_path).read_at_start()
    path.symlink_to("nowhere")
    for required in (True, False):
        with pytest.raises(InvalidKeyFile, match="is a broken link"):
            KeyFile(path, required=required).read_at_start()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidKeyFile, match="is a FIFO, but must be a regular file"):
        KeyFile(tmp_path / "fifo").read_at_start()
    (tmp_path / "file").write_text(ALICE)
    with pytest.raises(InvalidKeyFile, match="cannot be read: Not a directory"):
        KeyFile(tmp_path / "file" / "keys.yaml").read_at_start()


def test_unreadable_path_is_reported_and_read_once_it_is_readable(
    tmp_path: Path, path: Path
) -> None:
    there, away = tmp_path / "there", tmp_path / "away"
    there.mkdir()
    (there / "keys.yaml").write_text(ALICE)
    file = KeyFile(there / "keys.yaml")
    file.read_at_start()
    there.rename(away)
    there.write_text("no directory")
    with pytest.raises(InvalidKeyFile, match="cannot be read: Not a directory"):
        again(file)
    there.unlink()
    away.rename(there)
    assert names(again(file)) == ["alice"], "the same file, after it was unreadable"


# A file system that does not respond.


class Hanging:
    """Has every file that is opened wait for `over`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.over = threading.Event()
        self.waiting = 0
        opens = os.open

        def wait(*arguments: Any) -> int:
            self.waiting += 1
            self.over.wait(30)
            return opens(*arguments)

        monkeypatch.setattr("orch_sidecar.auth.key_file.os.open", wait)
        monkeypatch.setattr("orch_sidecar.config.file_reader.MAX_READ_S", 0.05)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hanging = Hanging(monkeypatch)
    yield hanging
    hanging.over.set()


def test_hanging_file_system_prevents_the_start(path: Path, hanging: Hanging) -> None:
    path.write_text(ALICE)
    with pytest.raises(
        InvalidKeyFile, match=r"keys.yaml cannot be read within 0.05 s: the file system"
    ):
        KeyFile(path).read_at_start()


async def test_hanging_read_times_out_and_is_not_repeated_until_it_ends(
    path: Path, hanging: Hanging
) -> None:
    file = KeyFile(path)
    path.write_text(ALICE)  # noqa: ASYNC240 (nothing else runs)
    for _ in range(3):
        with pytest.raises(InvalidKeyFile, match="the file system does not respond"):
            await file.read_if_changed()
    assert hanging.waiting == 1
    hanging.over.set()

    async def read() -> Keys | None:
        while True:
            try:
                return await file.read_if_changed()
            except InvalidKeyFile:  # it has yet to end
                await asyncio.sleep(0.01)

    keys = await asyncio.wait_for(read(), HANG_S)
    assert names(keys) == ["alice"], "what the late one found is not lost"
    assert await file.read_if_changed() is None
