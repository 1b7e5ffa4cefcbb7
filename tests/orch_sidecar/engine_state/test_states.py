"""The outages of engines."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.api.refusal import Reason
from orch_sidecar.engine_state import states as engine_state
from orch_sidecar.engine_state.states import PoolState, outage_of
from vllm_plugin.contracts import profile
from vllm_plugin.contracts.lease_protocol import API_VERSION

CLOUD = profile.load("cloud")
ENGINE = "the engine at http://e"
READY: dict[str, Any] = {"profile": "cloud", "measurement_type": "batched_online"}


@pytest.mark.parametrize("document", [READY, READY | {"state": "ready", "message": ""}])
def test_engine_that_is_ready_has_no_outage(document: dict[str, Any]) -> None:
    assert outage_of(document, CLOUD, ENGINE) is None


@pytest.mark.parametrize("state", [state for state in PoolState if state != "ready"])
def test_every_other_state_is_an_outage_with_a_reason(state: PoolState) -> None:
    outage = outage_of(READY | {"state": state.value, "message": "by hand"}, CLOUD, ENGINE)
    assert outage is not None
    assert outage.state is state
    assert outage.reason.startswith("engine_")
    assert outage.message.startswith(ENGINE)
    assert outage.message.endswith(": by hand")


def test_unknown_state_counts_as_paused_and_is_shown_shortened() -> None:
    outage = outage_of(READY | {"state": "re" * 100, "message": "m" * 9999}, CLOUD, ENGINE)
    assert outage is not None
    assert (outage.state, outage.reason) == (PoolState.PAUSED, Reason.ENGINE_PAUSED)
    assert len(outage.message) < 600


def test_profile_mismatch_takes_precedence_over_the_state() -> None:
    document = READY | {"profile": "home", "state": "paused"}
    outage = outage_of(document, CLOUD, ENGINE)
    assert outage is not None
    assert outage.reason is Reason.PROFILE_MISMATCH
    assert "uses profile 'home' (batched_online), this sidecar 'cloud'" in outage.message


@pytest.mark.parametrize("version", ["0.9.0", "2.0.0", "11.0.0"])
def test_engine_of_another_major_version_is_unusable_whatever_else_it_reports(version: str) -> None:
    """Its other fields may have other meanings."""
    document = READY | {"profile": "home", "state": "paused", "api_version": version}
    outage = outage_of(document, CLOUD, ENGINE)
    assert outage is not None
    assert (outage.state, outage.reason) == (PoolState.UNUSABLE, Reason.API_VERSION_MISMATCH)
    assert f"{ENGINE}: its API version {version!r}" in outage.message
    assert f"not compatible with {API_VERSION!r}" in outage.message


@pytest.mark.parametrize("version", ["1", "1.0.0", "1.999.0", API_VERSION])
def test_engine_of_another_minor_version_is_ready(version: str) -> None:
    assert outage_of(READY | {"api_version": version}, CLOUD, ENGINE) is None


def test_engine_that_refuses_this_version_is_unusable_for_its_reason() -> None:
    text = "the sidecar's API version '1.1.0' is not compatible with '2.0.0'"
    outage = engine_state.refused(ENGINE, 409, text, CLOUD, tier=False)
    assert (outage.state, outage.reason) == (PoolState.UNUSABLE, Reason.API_VERSION_MISMATCH)
    assert text in outage.message


@pytest.mark.parametrize("tier", [False, True])
def test_engine_that_does_not_know_this_sidecar_says_which_setting_is_missing(tier: bool) -> None:
    outage = engine_state.refused(ENGINE, 403, "set ORCH_SIDECAR_KEY", CLOUD, tier=tier)
    assert outage.message == f"{ENGINE} does not accept this sidecar (403): set ORCH_SIDECAR_KEY"


@pytest.mark.parametrize(
    ("status", "tier", "state", "reason"),
    [
        (401, False, "unusable", "engine_refuses_key"),
        (403, True, "unusable", "engine_refuses_key"),
        (409, False, "unusable", "api_version_mismatch"),
        (409, True, "unusable", "api_version_mismatch"),
        (404, False, "unusable", "engine_without_plugin"),
        (404, True, "unusable", "engine_down"),
        (400, True, "unusable", "engine_down"),
        (400, False, "stale", "engine_stale"),
        (429, True, "stale", "engine_stale"),
        (500, False, "stale", "engine_stale"),
    ],
)
def test_status_other_than_200_is_an_outage(
    status: int, tier: bool, state: str, reason: str
) -> None:
    outage = engine_state.refused(ENGINE, status, "a message", CLOUD, tier=tier)
    assert (outage.state, outage.reason) == (state, reason)


def test_engine_that_rejects_the_api_key_says_where_it_is_set() -> None:
    outage = engine_state.refused(ENGINE, 401, "no key", CLOUD, tier=False)
    assert "api_key_file" in outage.message


def test_engine_that_has_never_answered_is_starting_and_a_known_one_is_down() -> None:
    assert engine_state.unreachable(ENGINE, "no", known=False).state == "starting"
    assert engine_state.unreachable(ENGINE, "no", known=True).state == "down"
