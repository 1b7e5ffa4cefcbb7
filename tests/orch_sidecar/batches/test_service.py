"""A storage that cannot be used is refused at the start, in a sentence."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from orch_sidecar.app.sidecar import _open_storage
from orch_sidecar.config.settings import SidecarSettings


def opened(**settings: Any) -> Any:
    return _open_storage(SidecarSettings(**settings))


def test_without_settings_there_is_none() -> None:
    assert opened() is None


def test_directory_is_made_for_this_user_alone(tmp_path: Path) -> None:
    place = tmp_path / "new" / "batches"
    database, _ = opened(batches=str(place))
    database.close()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert (place / "batches.sqlite").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batches_database": "sqlite:///x"}, r"batches \(ORCH_BATCHES\) is not"),
        ({"batches": "memory://files"}, "set batches_database, too"),
        ({"batches": "nothing://files"}, "cannot be used|Protocol not known"),
        ({"batches": "{here}", "batches_database": "no url"}, "no URL of a database"),
        ({"batches": "{here}", "batches_database": "mysql://host/name"}, "it must begin with"),
        ({"batches": "{here}", "batches_database": "postgresql://127.0.0.1:1/x"}, "its database"),
        ({"batches": "/proc/nowhere/files"}, "which cannot be used"),
    ],
)
def test_what_cannot_be_used_is_said(
    settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    given = {name: value.format(here=tmp_path) for name, value in settings.items()}
    with pytest.raises(ValueError, match=message):
        opened(**given)


def test_password_of_the_database_is_in_no_error(tmp_path: Path) -> None:
    url = "postgresql://orch:secret@127.0.0.1:1/x"
    with pytest.raises(ValueError, match="its database cannot be used") as refused:
        opened(batches=str(tmp_path), batches_database=url)
    assert "secret" not in str(refused.value)


def test_server_that_is_gone_without_a_word_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the system sends again for a quarter of an hour, and nobody reads batches."""
    given: dict[str, Any] = {}

    def connect(*_: object, **options: Any) -> None:
        given.update(options)
        raise psycopg.OperationalError("gone")

    monkeypatch.setattr("psycopg.connect", connect)
    with pytest.raises(ValueError, match="gone"):
        opened(batches=str(tmp_path), batches_database="postgresql://host/x")
    assert (given["connect_timeout"], given["tcp_user_timeout"]) == (30, 30_000)


def test_missing_extra_is_named(tmp_path: Path) -> None:
    """In a process of its own: what is imported here stays."""
    code = "import sys; sys.modules['sqlalchemy'] = None; from orch_sidecar.cli import main; main()"
    command = [sys.executable, "-c", code, "sidecar", f"--batches={tmp_path}", "--port=0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs the extra `batch`: pip install '.[batch]' in a checkout" in done.stderr
    assert "Traceback" not in done.stderr
