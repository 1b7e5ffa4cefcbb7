"""What is known of vLLM's request fields for coalescing, against the models of the installed one.

A field that coalescing compares must be one of vLLM's, and one that it ignores must not matter
to vLLM; what null means is vLLM's to say.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from orch_sidecar.api import coalescing_key

pytestmark = pytest.mark.engine

BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0},
    "completions": {"model": "m", "prompt": "hi", "temperature": 0},
}
KEYS = {"chat": coalescing_key.chat, "completions": coalescing_key.completions}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, at import
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return {"chat": ChatCompletionRequest, "completions": CompletionRequest}


@pytest.mark.parametrize("api", BODIES)
def test_fields_that_are_compared_are_the_engines(models: dict[str, Any], api: str) -> None:
    assert coalescing_key._DECISIVE_FIELDS[api] <= set(models[api].model_fields)


@pytest.mark.parametrize("api", BODIES)
def test_ignored_fields_are_unknown_to_the_engine_or_known_to_be_harmless(
    models: dict[str, Any], api: str
) -> None:
    known = coalescing_key._IGNORED_FIELDS & set(models[api].model_fields)
    assert known == {"user", "request_id", "priority"}


def read(model: Any, body: dict[str, Any]) -> dict[str, Any] | None:
    """The fields as vLLM reads them. None: it refuses the body."""
    try:
        request = model.model_validate(body)
    except Exception:  # noqa: BLE001 (vLLM has several for that, and its checks stumble over null)
        return None
    return dict(vars(request))  # asking for a deprecated one would warn


@pytest.mark.parametrize("api", BODIES)
def test_null_that_the_engine_refuses_is_never_taken_for_absence(
    models: dict[str, Any], api: str
) -> None:
    for field in models[api].model_fields:
        body = BODIES[api] | {field: None}
        if read(models[api], body) is None:
            assert KEYS[api](body) is None, field


@pytest.mark.parametrize("api", BODIES)
def test_null_is_the_default_or_as_good_as_that(models: dict[str, Any], api: str) -> None:
    """False, an empty list and one choice are what vLLM makes of null further on."""
    plain = read(models[api], BODIES[api])
    assert plain is not None
    for field in models[api].model_fields:
        body = BODIES[api] | {field: None}
        fields = read(models[api], body)
        if fields is None or field in BODIES[api] or KEYS[api](body) is None:
            continue
        null, default = fields[field], plain[field]
        assert null == default or (null is None and default in (False, [], 1)), field
