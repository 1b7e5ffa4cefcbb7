"""A batch on a real engine, by OpenAI's client, while its sidecar is killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import OpenAI

from orch_sidecar.tools.local.stack import Child, Stack, free_port
from tests.documents import ROOT
from tests.engine.sidecars import all_ready, sidecar
from tests.engine.test_measuring import orch, rows_of
from tests.patience import HANG_S

ROWS = 60


def row(number: int) -> dict[str, Any]:
    """Chat, completions, responses in turn; the tenth of a wrong model, the twentieth vectors,
    which this engine does not make."""
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "ignore_eos": True}
    url = "/v1/chat/completions"
    if number == 20:
        url, body = "/v1/embeddings", {"model": "tiny", "input": "text"}
    elif number % 3 == 1:
        url, body = "/v1/completions", body | {"prompt": f"Text {number}"}
    elif number % 3 == 2:
        url = "/v1/responses"
        body = {"model": "tiny", "input": f"Text {number}", "max_output_tokens": 40}
    else:
        body |= {"messages": [{"role": "user", "content": f"Text {number}"}]}
    body |= {"model": "unknown"} if number == 10 else {}
    return {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}


def written(rows: Iterable[dict[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return path


def test_each_row_is_answered_once_although_the_sidecar_is_killed(
    cloud: Stack, logs: Path, tmp_path: Path
) -> None:
    port = free_port()
    pool = {"name": "cloud", "url": cloud.engine_url, "profile": "cloud"}
    environ = {"ORCH_POOLS": json.dumps([pool]), "ORCH_BATCHES": str(tmp_path / "batches")}
    command = [sys.executable, "-m", "orch_sidecar", "sidecar", "--port", str(port)]

    def start() -> Child:
        return Child("batches", command, dict(os.environ) | environ, logs / "batches.log")

    running = start()
    url = f"http://127.0.0.1:{port}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=1000) as client:
        file = client.files.create(
            file=written(map(row, range(ROWS)), tmp_path / "requests.jsonl"), purpose="batch"
        )
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        for done in (10, 30):
            counts = batch.request_counts
            while counts is None or counts.completed < done:
                time.sleep(0.05)
                counts = client.batches.retrieve(batch.id).request_counts
            running.kill()
            running = start()
        deadline = time.monotonic() + HANG_S
        while batch.status not in ("completed", "failed"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
            batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed", batch.errors
        assert batch.output_file_id is not None
        assert batch.error_file_id is not None
        output, failures = (
            [json.loads(line) for line in client.files.content(name).text.splitlines()]
            for name in (batch.output_file_id, batch.error_file_id)
        )
    running.signal(signal.SIGTERM)
    assert running.stop(HANG_S) == 0, running.last_lines(30)
    found = Counter(each["custom_id"] for each in output + failures)
    assert found == Counter(f"row-{number}" for number in range(ROWS))
    assert {each["custom_id"] for each in failures} == {"row-10", "row-20"}
    for each in output:
        body = each["response"]["body"]
        usage = body["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) == 40, each
        assert body["model"] == "tiny"


def run_by_the_program(url: str, requests: Path) -> subprocess.CompletedProcess[str]:
    """Runs a batch as the how-to page does."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=1000) as client:
        client.files.list()  # it listens
    return subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / "run_batch.py"), str(requests)],
        env=os.environ | {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none"},
        capture_output=True, text=True, timeout=HANG_S, check=True,
    )  # fmt: skip


def test_program_of_the_how_to_page_prints_each_answer(
    cloud: Stack, logs: Path, tmp_path: Path
) -> None:
    requests = written(map(row, (0, 1)), tmp_path / "requests.jsonl")
    pool = {"name": "cloud", "url": cloud.engine_url, "profile": "cloud"}
    with sidecar(logs / "batch.log", pool, ORCH_BATCHES=str(tmp_path / "batches")) as url:
        done = run_by_the_program(url, requests)
    found = {json.loads(line)["custom_id"] for line in done.stdout.splitlines()}
    assert found == {"row-0", "row-1"}, done.stderr


async def idle_state(url: str, requests: int, tokens: int) -> dict[str, Any]:
    """The capabilities, once the engine is idle and has counted so many."""
    deadline, last = time.monotonic() + HANG_S, (-1, -1)
    async with aiohttp.ClientSession() as http:
        await all_ready(http, url)
        while True:
            async with http.get(f"{url}/v1/capabilities") as response:
                document: dict[str, Any] = await response.json()
            [engine] = document["engines"]
            counts = engine["requests_total"], engine["generated_tokens_total"]
            if counts == last and counts >= (requests, tokens) and not engine["leased"]:
                return document
            assert time.monotonic() < deadline, counts
            last = counts
            await asyncio.sleep(2)  # it reports each second


@pytest.mark.long
def test_batch_that_has_an_offline_engine_for_itself_is_a_measurement(
    offline: Stack, logs: Path, tmp_path: Path
) -> None:
    requests = written((row(3 * number + 30) for number in range(64)), tmp_path / "requests.jsonl")
    table = tmp_path / "facts.csv"
    pool = {"name": "offline", "url": offline.engine_url, "profile": "offline"}
    with sidecar(logs / "measured.log", pool, ORCH_BATCHES=str(tmp_path / "batches")) as url:
        before = asyncio.run(idle_state(url, 0, 0))
        batch = run_by_the_program(url, requests).stderr.partition(":")[0]
        engine = before["engines"][0]
        accepted, generated = engine["requests_total"], engine["generated_tokens_total"]
        after = asyncio.run(idle_state(url, accepted + 64, generated + 64 * 40))
        saved: list[str] = []
        for when, state in (("before", before), ("after", after)):
            path = tmp_path / f"{when}.json"
            path.write_text(json.dumps(state), encoding="utf-8")
            saved += [f"--capabilities-{when}", str(path)]
        orch("facts", "from-batch", batch, "--url", url, *saved, "--output", str(table))
    [made] = rows_of(table)
    assert (made["measurement_type"], made["output_tokens"]) == ("offline", "40")
    assert int(made["batch"]) > 1
