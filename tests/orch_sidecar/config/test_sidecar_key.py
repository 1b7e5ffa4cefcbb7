"""The key by which engines know a sidecar."""

from __future__ import annotations

import pytest

from orch_sidecar import cli

pytestmark = pytest.mark.usefixtures("no_settings_in_the_environment")


def test_first_of_several_keys_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the engine, which accepts all, and its sidecar can have one and the same value."""
    monkeypatch.setenv("ORCH_SIDECAR_KEY", "new,old")
    settings = cli.read_settings([])
    assert settings.sidecar_key is not None
    assert settings.sidecar_key.get_secret_value() == "new"


@pytest.mark.parametrize("keys", ["", "secret,", "secret, older"])
def test_invalid_keys_are_rejected_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setenv("ORCH_SIDECAR_KEY", keys)
    with pytest.raises(cli.InvalidSettings, match="ORCH_SIDECAR_KEY") as raised:
        cli.read_settings([])
    assert "secret" not in str(raised.value)
