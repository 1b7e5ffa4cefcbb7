"""The state stream of a scripted engine: what the plugin's endpoint sends, and when."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from tests.integration.wire import Answer
from vllm_plugin.contracts.lease_protocol import HEARTBEAT_EVERY_S, changes_every_s, timestamp
from vllm_plugin.contracts.slot_claims import Subscriber

if TYPE_CHECKING:
    from tests.integration.scripted_engine import ScriptedEngine


async def state_stream(engine: ScriptedEngine, answer: Answer) -> None:
    """Sends the state, and its changes until the reader leaves."""
    instance = parse_qs(answer.request.query).get("instance", [None])[0]
    engine_state, loop = engine.engine_state, asyncio.get_running_loop()
    woken = asyncio.Event()
    subscriber = Subscriber(instance, woken.set)
    engine_state.subscribe(subscriber)
    try:
        answer.head(headers=[("content-type", "text/event-stream")])
        sent = engine_state.look(subscriber)
        leases = {"leases": sorted(engine_state.leases.of(instance))}
        sent_fields = dict(engine.state_fields)
        _send_event(answer, "state", engine_state.document(instance) | leases | sent_fields)
        if engine.faults.stream is not None:
            await engine.faults.stream(answer)
            return
        beat_at = loop.time()
        while not subscriber.replaced:
            with suppress(TimeoutError):
                ticks_s = (engine_state.ticks_at() or float("inf")) - time.time()
                rest_s = beat_at + HEARTBEAT_EVERY_S - loop.time()
                async with asyncio.timeout(max(0, min(rest_s, ticks_s + 0.001))):
                    await woken.wait()
            if engine.faults.mute:
                await asyncio.sleep(0.01)
                continue
            woken.clear()
            engine_state.tick()
            if subscriber.ended:
                ended, subscriber.ended = subscriber.ended, []
                _send_event(answer, "ended", {"leases": ended})
            if loop.time() >= beat_at + HEARTBEAT_EVERY_S or sent_fields != engine.state_fields:
                beat_at, sent_fields = loop.time(), dict(engine.state_fields)
                _send_event(answer, "heartbeat", sent_fields | engine_state.claim_fields(instance))
            now = engine_state.look(subscriber)
            if change := {k: v for k, v in now.items() if sent[k] != v}:
                sent = now
                _send_event(answer, "change", change)
            offers, subscriber.offers = subscriber.offers, []
            for offer in offers:
                _send_event(answer, "offer", {"cost": offer.slots, "number": offer.number})
            if change:
                await _pause(subscriber, woken, changes_every_s(engine_state.claims.sidecars))
        answer.end()
    finally:
        engine_state.unsubscribe(subscriber)


async def _pause(subscriber: Subscriber, woken: asyncio.Event, seconds: float) -> None:
    """Returns when the next change may be sent, or before that for an offer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not subscriber.offers:
                woken.clear()
                await woken.wait()
    woken.set()


def _send_event(answer: Answer, name: str, data: dict[str, Any]) -> None:
    if name not in ("ended", "offer"):
        data = data | {"observed_at": timestamp(time.time())}
    answer.chunk(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
