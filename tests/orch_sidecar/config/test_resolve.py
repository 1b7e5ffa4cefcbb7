"""Who may be a parent, and the keys of pools that are in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_sidecar import cli
from orch_sidecar.config.pool_settings import PoolSettings
from orch_sidecar.config.resolve import load_pools
from orch_sidecar.config.settings import SidecarSettings


def loaded(**key: object) -> PoolSettings:
    pool = {"name": "a", "url": "http://a:1", "profile": "cloud"} | key
    [(found, _)] = load_pools(SidecarSettings(pools=[PoolSettings.model_validate(pool)]))
    return found


def test_parents_need_keys_unless_the_setting_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cli.read_settings([]).parents == "keys"
    monkeypatch.setenv("ORCH_PARENTS", "open")
    assert cli.read_settings([]).parents == "open"
    with pytest.raises(cli.InvalidSettings, match="parents"):
        cli.read_settings(["--parents", "closed"])


def test_key_of_a_pool_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(" secret\n")
    found = loaded(api_key_file=path)
    assert found.api_key is not None
    assert found.api_key.get_secret_value() == "secret"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (b"", "it is empty, but must contain a key"),
        (b" \n", "it is empty, but must contain a key"),
        (b"two words", "must consist of printable ASCII characters without spaces"),
        (b"\xff\xfe", "must consist of printable ASCII characters without spaces"),
    ],
)
def test_unusable_file_is_an_error_of_one_line_with_its_path_and_the_rule(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=problem) as caught:
        loaded(api_key_file=path)
    assert f"pool a: api_key_file {path}: " in str(caught.value)
    assert "two words" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_key_and_its_file_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has api_key and api_key_file") as caught:
        loaded(api_key="secret", api_key_file=tmp_path / "key")
    assert "secret" not in str(caught.value)
