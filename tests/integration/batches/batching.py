"""Batches by OpenAI's client: their input, and what comes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import openai
from openai.types import Batch

from tests.integration.client import CHAT, body_of
from tests.patience import HANG_S

WINDOW: Any = "24h"
ENDED = ("completed", "failed", "expired", "cancelled")
SHORT_LOOKS_S = 0.05


def row(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """A row of an input file; `body`: more of its body, or other."""
    document = body_of(url) | body
    if url == "/v1/embeddings":
        document = {"model": "tiny", "input": "say something"} | body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": document}


def lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in rows)


def some(count: int, url: str = CHAT, **body: Any) -> bytes:
    """An input file with this many rows: `row-0` and so on, each with a body of its own."""
    return lines(row(f"row-{number}", url, seed=number, **body) for number in range(count))


class Batches:
    """A client, and what tests ask of it again and again."""

    def __init__(self, port: int, key: str = "any") -> None:
        self.client = openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0
        )

    async def upload(self, content: bytes) -> str:
        file = await self.client.files.create(file=("in.jsonl", content), purpose="batch")
        name: str = file.id
        return name

    async def create(self, content: bytes, endpoint: Any = CHAT, window: Any = WINDOW) -> Batch:
        return await self.client.batches.create(
            input_file_id=await self.upload(content), endpoint=endpoint, completion_window=window
        )

    async def until(self, batch: Batch, *statuses: str) -> Batch:
        """Waits until the batch has one of these, or an ended, statuses."""
        async with asyncio.timeout(HANG_S):
            while batch.status not in (*statuses, *ENDED):
                await asyncio.sleep(SHORT_LOOKS_S)
                batch = await self.client.batches.retrieve(batch.id)
        return batch

    async def ended(self, content: bytes, **options: Any) -> Batch:
        return await self.until(await self.create(content, **options))

    async def rows_of(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a file, none without one."""
        if file_id is None:
            return []
        content = await self.client.files.content(file_id)
        return [json.loads(line) for line in content.text.splitlines()]

    async def output(self, batch: Batch) -> list[dict[str, Any]]:
        return await self.rows_of(batch.output_file_id)

    async def failures(self, batch: Batch) -> list[dict[str, Any]]:
        return await self.rows_of(batch.error_file_id)

    async def ids(self, batch: Batch) -> list[str]:
        """The custom_ids of both files."""
        return [each["custom_id"] for each in await self.output(batch) + await self.failures(batch)]


def ids(count: int) -> list[str]:
    """Those of `some`."""
    return [f"row-{number}" for number in range(count)]


def counts(batch: Batch) -> tuple[int, int, int]:
    """Total, completed and failed."""
    found = batch.request_counts
    assert found is not None
    return found.total, found.completed, found.failed
