"""Endpoints: what a row of the table is enough for."""

from __future__ import annotations

import json

import pytest

from orch_sidecar.api.body import Document, InvalidBody
from orch_sidecar.api.endpoints import (
    ENDPOINTS,
    UNKNOWN,
    WITHOUT_KEY,
    Endpoint,
    ResourcePath,
    match_resource,
    why_not,
)
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.control.endpoints import ADMIN, PUBLIC


def pairs(document: Document, ctx_max: int | None) -> GenerationRequest:
    """The cost function of an endpoint that vLLM does not have."""
    given = document.get("pairs")
    if not isinstance(given, list) or not given:
        raise InvalidBody("pairs must be a list", "pairs")
    return GenerationRequest(len(given), False, "m", ctx_max)


def test_row_with_a_cost_function_is_an_endpoint_that_takes_slots() -> None:
    row = Endpoint("/pairs", "POST", "/v2/pairs", generation=pairs)
    assert row.admitted
    assert row.line == b"POST /v2/pairs HTTP/1.1"
    request = row.read(b'{"pairs": [1, 2]}', 8, 64, True)
    assert isinstance(request, GenerationRequest)
    assert (request.cost, request.max_tokens, request.coalescing_key) == (2, 64, None)
    refusal = row.read(b'{"pairs": []}', 8, None)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.param) == (Reason.INVALID_REQUEST, "pairs")
    assert json.loads(row.error_format.body(refusal))["error"]["param"] == "pairs"


def test_endpoint_without_a_cost_function_takes_no_slots() -> None:
    assert not Endpoint("/tokens", "GET", "/tokens").admitted
    assert not UNKNOWN.admitted


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS.values() if each.admitted])
def test_endpoint_that_takes_slots_is_forwarded_and_authenticated(
    endpoint: Endpoint,
) -> None:
    assert endpoint.upstream is not None
    assert endpoint.path not in WITHOUT_KEY


@pytest.mark.parametrize("resource", ResourcePath)
def test_resource_paths_contain_one_name(resource: ResourcePath) -> None:
    assert resource in {**PUBLIC, **ADMIN}

    def path(name: str) -> str:
        return resource.format(name=name, model=name)

    if "{" not in resource:  # of all files, or batches
        assert match_resource(resource) == (resource, "")
        return
    assert match_resource(path("a-1")) == (resource, "a-1")
    nested = match_resource(path("a/b"))
    assert nested == ((resource, "a/b") if resource is ResourcePath.MODEL else None)
    # Without a name it is none of them; a slash at the end of a collection's path is ignored.
    assert match_resource(path("")) in (None, (path("").rstrip("/"), ""))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/chat/completions", "it is /v1/chat/completions. The base URL of OpenAI's clients ends"),
        ("/models/", "it is /v1/models. "),
        ("/v1/v1/messages", "it is /v1/messages. "),
        ("/v1/pools/home/drain", "operators have a listener of their own"),
        ("/sleep", "its operator calls it at the engine"),
    ],
)
def test_path_that_is_not_served_says_what_was_meant_or_why(path: str, text: str) -> None:
    assert f"there is no {path} here: {text}" in why_not(path)


def test_path_that_is_like_none_is_not_explained() -> None:
    assert why_not("/api/chat") == "there is no /api/chat here"
