"""The sidecar's reading of a body against the request models of the installed vLLM.

Whenever both accept a body they must agree on how many sequences it becomes: a request that
costs more in the engine than it was admitted for would break the slots.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orch_sidecar.api.body_outline import Outline
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.generation import GenerationRequest
from tests.fuzz import examples
from tests.orch_sidecar import apis

pytestmark = pytest.mark.engine

# Everything that decides how many sequences there are, and whether the answer is a stream.
DECISIVE = ("n", "prompt", "prompt_embeds", "stream", "use_beam_search", "kv_transfer_params")


@dataclass(frozen=True)
class Engine:
    """vLLM's own models and its own way of counting prompts."""

    models: dict[Endpoint, Any]
    prompt_to_seq: Any
    refusals: tuple[type[Exception], ...]

    def sequences(self, api: Endpoint, request: Any) -> int:
        """As `OnlineRenderer.preprocess_completion` and `SamplingParams.from_optional` do."""
        n = 1 if request.n is None else int(request.n)
        if api is apis.CHAT:
            return n
        prompts: list[Any] = []
        if request.prompt_embeds is not None:
            prompts.extend(self.prompt_to_seq(request.prompt_embeds))
        if request.prompt is not None:
            prompts.extend(self.prompt_to_seq(request.prompt))
        return n * len(prompts)


@pytest.fixture(scope="module")
def engine() -> Engine:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, at import
        from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
        from vllm.exceptions import VLLMValidationError
        from vllm.renderers.inputs.preprocess import prompt_to_seq

    models = {
        apis.CHAT: ChatCompletionRequest,
        apis.COMPLETIONS: CompletionRequest,
        apis.RESPONSES: ResponsesRequest,
        apis.MESSAGES: AnthropicMessagesRequest,
    }
    return Engine(models, prompt_to_seq, (ValidationError, VLLMValidationError))


TOKEN = st.integers(-1, 99) | st.sampled_from((1.0, 1.5, True, "1", None, 2**70))
TEXT = st.sampled_from(("", "a", "8", "true"))
PROMPT = (
    TEXT
    | st.none()
    | st.lists(TOKEN, max_size=4)
    | st.lists(TEXT, max_size=4)
    | st.lists(st.lists(st.integers(0, 99), max_size=3), max_size=4)
    | st.lists(st.lists(TOKEN, max_size=3) | TEXT | TOKEN, max_size=4)
    | st.lists(st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2), max_size=2)
    | st.sampled_from((1, 1.5, True, {"prompt": "a"}, {}))
)
EMBEDS = TEXT | st.none() | st.lists(TEXT | st.none(), max_size=3) | st.sampled_from((1, {}, True))
NUMBER: st.SearchStrategy[Any] = st.integers(-2, 9) | st.sampled_from(
    ("8", " 8 ", "8.0", 8.0, 8.5, True, False, None, 10**9, 10**30, "", [], [8], {}, float("nan"))
)
FLAG: st.SearchStrategy[Any] = st.sampled_from(
    (True, False, None, "true", "false", "yes", "on", "1", 1, 0, 1.0, "", [])
)

COMPLETION = st.fixed_dictionaries(
    {"prompt": PROMPT},
    optional={
        "n": NUMBER,
        "stream": FLAG,
        "prompt_embeds": EMBEDS,
        "use_beam_search": FLAG,
        "kv_transfer_params": st.none() | st.just({}) | st.just({"do_remote_decode": True}),
        "best_of": NUMBER,
        "max_tokens": NUMBER,
        "echo": FLAG,
    },
)
CHAT = st.fixed_dictionaries(
    {"messages": st.just([{"role": "user", "content": "hi"}])},
    optional={
        "n": NUMBER,
        "stream": FLAG,
        "prompt": PROMPT,
        "use_beam_search": FLAG,
        "kv_transfer_params": st.none() | st.just({}),
        "max_tokens": NUMBER,
        "max_completion_tokens": NUMBER,
    },
)

# The text of a body, so that duplicate keys can be in it.
TWICE = st.tuples(st.sampled_from(("n", "stream", "prompt")), NUMBER | FLAG)


def body_of(fields: dict[str, Any], twice: tuple[str, Any] | None) -> bytes:
    text = json.dumps({"model": "m"} | fields)
    if twice is not None:
        text = f"{text[:-1]}, {json.dumps(twice[0])}: {json.dumps(twice[1])}}}"
    return text.encode()


def check(engine: Engine, api: Endpoint, body: bytes) -> bool:
    """Compares the readings, as it is and by its outline, with the engine's. Whether there was
    something to compare."""
    demand = api.read(body, max_depth=64, ctx_max=None)
    outlined = api.read(outline_of(body), max_depth=64, ctx_max=None, outlined=True)
    try:
        request = engine.models[api].model_validate(json.loads(body))
    except engine.refusals:
        return False  # whatever was admitted: the engine refuses it, and it becomes nothing
    assert isinstance(outlined, GenerationRequest) == isinstance(demand, GenerationRequest)
    for each in (demand, outlined):
        if not isinstance(each, GenerationRequest):
            return False
        assert each.cost == engine.sequences(api, request)
        assert each.stream == bool(request.stream)
    assert not request.use_beam_search
    assert request.kv_transfer_params is None
    return True


def outline_of(body: bytes) -> bytes:
    """Its outline, in slices that end anywhere."""
    outline = Outline()
    for at in range(0, len(body), 5):
        outline.feed(body[at : at + 5])
    return outline.result()


RELAXED = settings(max_examples=examples(600), deadline=None)


@RELAXED
@given(COMPLETION, st.none() | TWICE)
@example({"prompt": ["a", "b"], "n": 2, "stream": True}, None)
@example({"prompt": "a", "prompt_embeds": ["AAAA", "BBBB"], "n": 2}, None)
@example({"prompt": [[]]}, None)
@example({"prompt": []}, None)
@example({"prompt": "a"}, ("n", 8))
def test_completions_are_counted_alike(
    engine: Engine, fields: dict[str, Any], twice: tuple[str, Any] | None
) -> None:
    check(engine, apis.COMPLETIONS, body_of(fields, twice))


@RELAXED
@given(CHAT, st.none() | TWICE)
@example({"messages": [], "n": 3, "stream": True}, None)
def test_chats_are_counted_alike(
    engine: Engine, fields: dict[str, Any], twice: tuple[str, Any] | None
) -> None:
    check(engine, apis.CHAT, body_of(fields, twice))


@pytest.mark.parametrize(
    ("fields", "sequences"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt_embeds": ["AAAA", "BBBB"]}, 2),
        ({"prompt": "a", "prompt_embeds": "AAAA"}, 2),
    ],
)
def test_plain_completions_are_accepted_by_both(
    engine: Engine, fields: dict[str, Any], sequences: int
) -> None:
    """The comparison above is not an empty one."""
    body = body_of(fields, None)
    assert check(engine, apis.COMPLETIONS, body)
    demand = apis.COMPLETIONS.read(body, max_depth=64, ctx_max=None)
    assert isinstance(demand, GenerationRequest)
    assert demand.cost == sequences


@pytest.mark.parametrize("api", [apis.CHAT, apis.COMPLETIONS, apis.RESPONSES, apis.MESSAGES])
def test_decisive_fields_have_no_other_spelling(engine: Engine, api: Endpoint) -> None:
    """An alias in the engine's model would be a way around the reading."""
    for name, field in engine.models[api].model_fields.items():
        if name in (*DECISIVE, "background"):
            assert field.alias is None
            assert field.validation_alias is None
        else:
            assert field.alias not in DECISIVE


@pytest.mark.parametrize("api", [apis.RESPONSES, apis.MESSAGES])
def test_response_and_message_have_nothing_that_multiplies(engine: Engine, api: Endpoint) -> None:
    fields = set(engine.models[api].model_fields)
    assert not fields & {"n", "best_of", "prompts", "prompt_embeds", "use_beam_search"}


@pytest.mark.parametrize("api", [apis.RESPONSES, apis.MESSAGES])
@settings(max_examples=examples(60), deadline=None)
@given(stream=FLAG, background=FLAG)
def test_streams_of_responses_and_messages_are_seen_alike(
    engine: Engine, api: Endpoint, stream: Any, background: Any
) -> None:
    fields: dict[str, Any] = {"model": "m", "stream": stream}
    if api is apis.RESPONSES:
        fields |= {"input": "hi", "background": background}
    else:
        fields |= {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    body = json.dumps(fields).encode()
    demand = api.read(body, max_depth=64, ctx_max=None)
    try:
        request = engine.models[api].model_validate(json.loads(body))
    except engine.refusals:
        return
    if isinstance(demand, GenerationRequest):
        assert demand.stream == bool(request.stream)
        assert not getattr(request, "background", False)
