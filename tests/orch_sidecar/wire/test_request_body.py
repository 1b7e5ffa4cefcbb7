"""Outlining large bodies neither blocks the event loop nor is blocked by it."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from orch_sidecar.api.body_outline import SLICE_BYTES, WHOLE_BYTES, Outline
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.wire.request_body import BodyReader

SLICES = 256
BODY = b'{"prompt": "%b"}' % (b"x" * (SLICES * SLICE_BYTES - 32))
NUMBERS = b'{"prompt": [%b1]}' % ((b"1" * 255 + b",") * (SLICES * SLICE_BYTES // 256 - 1))


@pytest.mark.parametrize(("slice_ms", "least", "most"), [(0.1, 10, 20), (5.0, SLICES, SLICES + 8)])
async def test_event_loop_runs_between_slices(
    monkeypatch: pytest.MonkeyPatch, slice_ms: float, least: int, most: int
) -> None:
    clock = count()
    monkeypatch.setattr(
        "orch_sidecar.wire.request_body.time.perf_counter", lambda: next(clock) * slice_ms / 1000
    )
    reader = BodyReader(SidecarSettings())
    outlining = asyncio.create_task(reader.read_large(NUMBERS, read))
    turns = 0
    while not outlining.done():
        await asyncio.sleep(0)
        turns += 1
    assert await outlining
    assert least <= turns <= most


class Arriving:
    """A request whose body arrives part by part."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        protocol: Any = BaseProtocol(loop)
        protocol.transport = self  # it is connected
        self.content = StreamReader(protocol, 2**20, loop=loop)
        self.content_length, self.headers = None, dict[str, str]()
        self.http: Any = self
        self.reserved_bytes = 0


def read(body: bytes, outlined: bool) -> bytes | None:
    """The outline of a body that is not read as it is."""
    return body if outlined else None


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_large_body_is_outlined_while_the_rest_of_it_has_not_arrived() -> None:
    reader, arriving, outline = BodyReader(SidecarSettings()), Arriving(), Outline()
    reading = asyncio.create_task(reader.read_rest(arriving, outline))
    body, seen = BODY[: 2 * WHOLE_BYTES] + b'"}', []
    for at in range(0, len(body), WHOLE_BYTES // 2):
        arriving.content.feed_data(body[at : at + WHOLE_BYTES // 2])
        await settled()
        seen.append(outline.read_bytes / WHOLE_BYTES)
    # A body that ends within what is parsed directly needs no outline.
    assert seen == [0, 0, 1.5, 2, len(body) / WHOLE_BYTES]
    arriving.content.feed_eof()
    assert await reading == body
    assert await reader.read_large(body, read, outline) == (
        b'{"prompt": "string 2, of %d bytes"}' % (len(body) - 14)
    )


async def test_body_with_many_texts_is_read_as_it_is_if_that_takes_little_time() -> None:
    reader, texts = BodyReader(SidecarSettings()), b'{"prompt": [%b""]}' % (b'"text",' * 40_000)
    assert await reader.read_large(texts, lambda body, outlined: body) == texts
    assert await reader.read_large(texts, read) == texts.replace(b"text", b"")
    longer = texts + b" " * WHOLE_BYTES
    assert await reader.read_large(longer, lambda body, outlined: outlined)


@pytest.mark.parametrize("first", [1, 3, WHOLE_BYTES])
@pytest.mark.parametrize(("encoding", "why"), [("utf-8", "digits"), ("utf-16-le", "UTF-8")])
async def test_large_body_that_cannot_be_read_is_refused_before_all_of_it_has_arrived(
    first: int, encoding: str, why: str
) -> None:
    """An engine reads another encoding as that, and would see other fields."""
    reader, arriving = BodyReader(SidecarSettings()), Arriving()
    reading = asyncio.create_task(reader.read_rest(arriving, Outline()))
    body = ('{"a": ' + "9" * (WHOLE_BYTES + 1)).encode(encoding)
    for part in (body[:first], body[first:]):
        arriving.content.feed_data(part)
        await settled()
    refusal = await reading
    assert isinstance(refusal, Refusal)
    assert why in refusal.message


async def test_bodies_share_the_time_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    monkeypatch.setattr(
        "orch_sidecar.wire.request_body.time.perf_counter", lambda: next(clock) / 1000
    )
    reader, outlines = BodyReader(SidecarSettings()), [Outline(), Outline()]
    tasks = [asyncio.create_task(reader.read_large(NUMBERS, read, each)) for each in outlines]
    await asyncio.sleep(0)  # the first slice of each does not wait
    for _ in range(16):
        before = sum(each.read_bytes for each in outlines)
        await asyncio.sleep(0)
        assert 0 < sum(each.read_bytes for each in outlines) - before <= 3 * SLICE_BYTES
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
