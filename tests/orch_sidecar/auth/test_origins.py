"""Which pages of other origins a browser lets use the sidecar."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict
from pydantic import ValidationError

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.origins import AllowedOrigins
from orch_sidecar.config.settings import SidecarSettings

PAGE = "https://chat.example"


def asked(origin: str | None, **more: str) -> CIMultiDict[str]:
    headers = CIMultiDict({name.replace("_", "-"): value for name, value in more.items()})
    if origin is not None:
        headers["Origin"] = origin
    return headers


@pytest.mark.parametrize(
    "origin",
    [None, "", "null", "http://chat.example", "https://chat.example:8443", "https://chat.example.evil",
     "https://CHAT.example", "https://chat.example/", "https://a.chat.example"],
)  # fmt: skip
def test_other_origins_are_granted_nothing(origin: str | None) -> None:
    assert AllowedOrigins([PAGE]).fields(asked(origin)) == {"Vary": "Origin"}
    question = asked(origin, Access_Control_Request_Method="POST")
    refusal = AllowedOrigins([PAGE]).preflight("OPTIONS", question)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.FORBIDDEN
    assert "ORCH_ALLOWED_ORIGINS" in refusal.message


def test_page_may_send_what_it_asks_for_and_read_all_headers() -> None:
    question = asked(
        PAGE,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type",
    )
    assert AllowedOrigins([PAGE]).preflight("OPTIONS", question) == {
        "Access-Control-Allow-Origin": PAGE,
        "Access-Control-Expose-Headers": "*",
        "Vary": "Origin",
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": "authorization,content-type",
        "Access-Control-Max-Age": "600",
    }


def test_only_the_question_of_a_browser_is_one() -> None:
    origins = AllowedOrigins([PAGE])
    assert origins.preflight("OPTIONS", asked(PAGE)) is None
    assert origins.preflight("POST", asked(PAGE, Access_Control_Request_Method="POST")) is None


@pytest.mark.parametrize(
    "origin", ["*", "chat.example", "https://chat.example/", "https://*.example", "HTTPS://a", ""]
)
def test_setting_takes_exact_origins(origin: str) -> None:
    with pytest.raises(ValidationError, match="must be an origin as browsers send it"):
        SidecarSettings(allowed_origins=[origin])
    SidecarSettings(allowed_origins=[PAGE, "http://localhost:3000", "app://obsidian.md"])
