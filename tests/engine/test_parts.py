"""Requests for more sequences than there are slots: the answers that the engine gives directly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import engine_state, post, session, unknown_routes

WORDS = [f"{number} and {number + 1} are" for number in range(20)]
IDS = [[7, 8, number + 10] for number in range(5)]

BULK = {"X-Orch-Class": "bulk"}  # no SLO would be missed on a slow machine
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a list": ("completions", {"prompt": WORDS, "temperature": 0}),
    "n of a list": ("completions", {"prompt": IDS, "n": 3, "seed": 11}),
    "n of one": ("completions", {"prompt": [5, 6, 7], "n": 12, "seed": 5}),
    "n of a chat": (
        "chat",
        {"messages": [{"role": "user", "content": "Hi"}], "n": 10, "seed": 2**31},
    ),
}


@pytest.fixture(params=["home", "cloud"])
def stack(request: pytest.FixtureRequest) -> Stack:
    found: Stack = request.getfixturevalue(request.param)
    return found


def choices_of(data: bytes, *, stream: bool) -> tuple[dict[int, tuple[str, str]], Any]:
    """Text and finish reason by index, and the usage."""
    if not stream:
        document = json.loads(data)
        found = {
            each["index"]: (
                each["text"] if "text" in each else each["message"]["content"],
                each["finish_reason"],
            )
            for each in document["choices"]
        }
        assert [*found] == sorted(found)
        return found, document["usage"]
    *events, done, rest = data.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    found, usages = {}, []
    for document in (json.loads(event.removeprefix(b"data: ")) for event in events):
        if document.get("usage"):
            usages.append(document["usage"])
        for each in document["choices"]:
            text, reason = found.get(each["index"], ("", ""))
            more = each["text"] if "text" in each else each["delta"].get("content") or ""
            found[each["index"]] = text + more, each["finish_reason"] or reason
    [usage] = usages
    return dict(sorted(found.items())), usage


# Each engine in one of the ways; in the long run in the other one, too.
@pytest.mark.parametrize(
    ("stack", "stream"),
    [
        ("home", True),
        ("cloud", False),
        pytest.param("home", False, marks=pytest.mark.long),
        pytest.param("cloud", True, marks=pytest.mark.long),
    ],
    indirect=["stack"],
)
@pytest.mark.parametrize("kind", [*REQUESTS])
async def test_answer_is_that_of_the_engine(stack: Stack, kind: str, stream: bool) -> None:
    api, fields = REQUESTS[kind]
    body = {"model": "tiny", "max_tokens": 6, "ignore_eos": True, "stream": stream} | fields
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with session() as http:
        before = await engine_state(http, stack.url)
        ours = await post(http, stack.url, api, body, BULK)
        after = await engine_state(http, stack.url)
        directly = await post(http, stack.engine_url, api, body)  # above the slots, at home
    assert choices_of(ours.data, stream=stream) == choices_of(directly.data, stream=stream)
    violations = "oversubscription_violations_total"
    assert after[violations] == before[violations]
    assert ours.headers["x-measurement-type"] == after["measurement_type"]


def test_every_route_of_the_engine_is_served_or_has_a_reason_not_to_be(cloud: Stack) -> None:
    """Of one with the operators' routes."""
    assert unknown_routes(cloud) == set()


async def test_greedy_choices_are_the_engines_error(stack: Stack) -> None:
    body = {"model": "tiny", "prompt": "a", "n": 12, "temperature": 0}
    async with session() as http:
        ours, directly = [
            await post(http, url, "completions", body) for url in (stack.url, stack.engine_url)
        ]
    assert (ours.status, directly.status) == (400, 400)
    assert "n must be 1 when using greedy sampling" in json.loads(ours.data)["error"]["message"]
    assert "n must be 1 when using greedy sampling" in json.loads(directly.data)["error"]["message"]
