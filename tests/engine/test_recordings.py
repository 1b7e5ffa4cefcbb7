"""An engine that reads recordings, at home: one of any length takes one slot."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import aiohttp
import openai
import pytest
from openai import OpenAI

from orch_sidecar.tools.local.stack import Stack, get_json
from orch_sidecar.tools.local.up import tiny_model
from tests.engine.clients import engine_state, session, unknown_routes
from tests.engine.conftest import Stacks, make_plan
from tests.patience import HANG_S

# A start of its own: what the plugin does with clips is in tests/vllm_plugin/test_endpoint.py, how
# the sidecar reads a form in the tests of `api` and of all APIs.
pytestmark = pytest.mark.long

RATE = 16_000


def recording(seconds: int) -> bytes:
    """Noise, as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(random.Random(seconds).randbytes(2 * RATE * seconds))
    return file.getvalue()


SHORT, LONG = recording(5), recording(100)  # one clip, four clips

LIMIT = {"max_completion_tokens": "40"}  # for each clip


@pytest.fixture
def whisper(stacks: Stacks, logs: Path) -> Stack:
    directory = logs / "whisper-model"
    if not directory.exists():
        command = ["-m", "tests.engine.whisper_model", str(directory), str(tiny_model())]
        subprocess.run([sys.executable, *command], check=True)
    plan = make_plan("home", None, logs / "whisper")
    # A clip is read in one step, and of one slot vLLM derives fewer tokens for that.
    arguments = ("--enforce-eager", "--max-num-batched-tokens", "2048")
    return stacks.use("whisper", replace(plan, model=str(directory), engine_arguments=arguments))


@pytest.fixture
def client(whisper: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{whisper.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def text_of(client: OpenAI, content: bytes, **more: str) -> str:
    text: str = client.audio.transcriptions.create(
        model="tiny", file=("a.wav", content), language="en", extra_body=LIMIT | more
    ).text
    return text


def test_long_recordings_run_a_clip_at_a_time(whisper: Stack, client: OpenAI) -> None:
    """Without the plugin their clips wait inside the engine, or run beside each other."""
    with OpenAI(base_url=f"{whisper.engine_url}/v1", api_key="none") as engine:
        directly = [text_of(engine, each) for each in (SHORT, LONG)]
    assert all(directly)
    with ThreadPoolExecutor(4) as pool:
        ours = list(pool.map(lambda each: text_of(client, each), [SHORT, LONG] * 2))
    assert ours == directly * 2
    _, document = get_json(f"{whisper.url}/v1/capabilities", HANG_S)
    (state,) = document["engines"]
    assert state["supported_workloads"] == ["transcription", "translation"]
    assert (state["peak"], state["waiting"], state["leased"]) == (1, 0, 0)
    assert {*state["steps_by_batch"]} == {"1"}


def test_streamed_recording_is_the_whole_one(client: OpenAI) -> None:
    stream = client.audio.transcriptions.create(
        model="tiny", file=("a.wav", LONG), language="en", stream=True, extra_body=LIMIT
    )
    texts = [each.choices[0]["delta"]["content"] for each in stream]
    assert len(texts) > 4
    assert "".join(texts) == text_of(client, LONG)


async def test_translations_are_the_engines(whisper: Stack) -> None:
    texts = []
    async with session() as http:
        for url in (whisper.url, whisper.engine_url):
            form = aiohttp.FormData({"model": "tiny", "language": "de"} | LIMIT)
            form.add_field("file", io.BytesIO(LONG), filename="a.wav", content_type="audio/wav")
            async with http.post(f"{url}/v1/audio/translations", data=form) as response:
                assert response.status == 200, await response.text()
                texts.append((await response.json())["text"])
    assert texts[0] == texts[1]


def test_errors_are_the_engines_or_say_why(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="audio"):
        text_of(client, b"no recording")
    with pytest.raises(openai.BadRequestError, match="changing numbers of sequences"):
        text_of(client, SHORT, use_beam_search="true")


def test_every_route_is_served_or_has_a_reason_not_to_be(whisper: Stack) -> None:
    assert unknown_routes(whisper) == set()


async def test_nothing_is_above_the_slot(whisper: Stack, stacks: Stacks) -> None:
    async with session() as http:
        state = await engine_state(http, whisper.url)
    assert (state["oversubscription_violations_total"], state["leased"]) == (0, 0)
    stacks.stop("whisper")
