"""Follows one engine: its state, pushed by the plugin.

Fails closed: whenever the stream is broken or silent, nothing is admitted on a guess. The
plugin sends an event at least every second; 3 s after the last good one (complete, understood and
possible) the state is stale. That time is measured here and not by the HTTP client, whose reading
may wait for ever where the framing is broken. A sidecar below this one is followed like an engine:
its stream has the same form.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import aiohttp

from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import EngineReport
from orch_sidecar.api.redaction import error_text
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.engine_state import document as state_document
from orch_sidecar.engine_state import report
from orch_sidecar.engine_state import states as engine_state
from orch_sidecar.engine_state.document import Document, InvalidReport
from orch_sidecar.engine_state.states import ANSWERING, EngineState, Outage
from orch_sidecar.pools.lease_reconciler import LeaseReconciler
from orch_sidecar.wire.event_stream import EventStream
from orch_sidecar.wire.stream_timeout import StreamTimeout
from vllm_plugin.profile import Profile

logger = logging.getLogger("orch.engine")

SILENCE_S: Final = 3.0
# "Serves again within a second" after a restart: four looks in that second.
RECONNECT_S: Final = 0.25
# One event holds all leases and steps of the engine: about 100 bytes per slot.
EVENT_BYTES: Final = 2**20

_MATTERS: Final = report.FIELDS | {"state", "message"}


class EngineWatcher:
    """Reports the engine's state to the gate."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: dict[str, str],
        gate: Gate,
        profile: Profile,
        *,
        keeps_queue: bool = True,
        tier: bool = False,
        below: str | None = None,
    ) -> None:
        """`keeps_queue`: queued requests go on waiting while the engine is away; else they are
        refused, because another engine may serve them. `tier`: it is a sidecar, and `below`
        the name of its pool that is meant, which is needed where it has several."""
        self._session = session
        self._url = url
        self._engine = "the engine"  # to clients; where it is, the log says
        self._headers = headers
        self._gate = gate
        self._profile = profile
        self._keeps_queue = keeps_queue
        self._tier = tier
        self._params = {"instance": gate.instance}
        if below is not None:
            self._params["pool"] = below
        self._confirmation = LeaseReconciler(session, url, headers, gate)
        self._loop = asyncio.get_running_loop()
        self._heard_at: float | None = None
        self._reported: EngineReport | None = None
        self._busy: tuple[float, float] | None = None  # loop time, busy_seconds_total
        self.busy_ratio: float | None = None  # of the time between two heartbeats
        self.models: Collection[str] | None = None  # in the engine's order
        self.ctx_max: int | None = None
        self.document: Document | None = None
        self.failed = False  # to follow it, once at least
        self.state = EngineState.STARTING
        self.message = f"waiting for {self._engine}"
        self._detail = ""

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def age_ms(self) -> int | None:
        """Milliseconds since the last good event of the engine."""
        return None if self._heard_at is None else int((self._loop.time() - self._heard_at) * 1e3)

    async def follow(self) -> None:
        """Follows the stream, and again after every end of it, until cancelled."""
        while True:
            try:
                self._unavailable(await self._outage())
            # A fault while the engine's absence is noted: the next attempt notes it again.
            except Exception:
                logger.exception("following the engine at %s failed", self._url)
            self.failed = True
            await asyncio.sleep(RECONNECT_S)

    async def confirm(self) -> None:
        """Asks, until cancelled, for leases whose end the stream has not reported in time."""
        await self._confirmation.run(lambda: self.state in ANSWERING)

    async def _outage(self) -> Outage:
        """Follows the stream once; returns why it ended."""
        silence = StreamTimeout(SILENCE_S)
        try:
            async with silence:
                return await self._stream(silence)
        except aiohttp.ClientConnectorError as error:
            known = self.document is not None
            return engine_state.unreachable(self._engine, str(error), known=known)
        except InvalidReport as error:
            return engine_state.stale(f"the report of {self._engine} is refused: {error}")
        # Whatever it is: it must not end the following.
        except Exception as error:  # noqa: BLE001
            if silence.expired:
                text = f"{self._engine} has sent no valid event for {SILENCE_S:g} s"
                return engine_state.stale(text)
            text = f"the state stream of {self._engine} broke"
            return engine_state.stale(text, error_text(error))

    async def _stream(self, silence: StreamTimeout) -> Outage:
        response = await self._session.get(
            f"{self._url}/v1/capabilities/stream",
            params=self._params,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            if response.status != 200:
                return engine_state.refused(
                    self._engine,
                    response.status,
                    await _objection(response),
                    self._profile,
                    tier=self._tier,
                )
            events, begun = EventStream(EVENT_BYTES), False
            async for piece in response.content.iter_any():
                for name, data in events.feed(piece):
                    begun = self._event(name, state_document.parsed(data), begun=begun)
                    self._heard_at = self._loop.time()
                    silence.broken()
        finally:
            response.close()  # what may still come on it is not waited for
        raise ConnectionError("the engine ended it")

    def _event(self, name: str, data: Document, *, begun: bool) -> bool:
        """Takes an event in. `begun`: whether this stream has sent the whole state before.
        Returns whether it has by now. Raises InvalidReport, and then nothing has changed."""
        if name == "ended":
            self._gate.engine_ended(state_document.ended(data))
            return begun
        whole = name == "state"
        if not whole and name not in ("change", "heartbeat"):
            raise InvalidReport(f"an event is named {name[:80]!r}")
        if not whole and not begun:
            raise InvalidReport(f"a {name} came before the first state")
        state_document.checked(data, whole=whole)
        document = data if whole or self.document is None else self.document | data
        new = self._read(document)
        self.document = document
        if "models" in data:
            self.models = dict.fromkeys(report.models_of(document) or ()).keys() or None
        if name != "change":
            self._measure_busy(document, begins=whole)
        # A request may have reached this engine under its predecessor's epoch.
        ours = [(lease, int(lease.rpartition(".")[2])) for lease in data.get("leases", [])]
        if whole or not _MATTERS.isdisjoint(data):
            self._report(new, tuple(ours))
        ledger = self._gate.core.ledger
        if whole:
            for lease, cost in ours:
                ledger.adopt(lease, cost)  # those of one that is not ready, too
            self._confirmation.overdue()
            ledger.engine_held(document["peak"], since_before=True)
        elif "peak" in data:
            ledger.engine_held(data["peak"])
        self._gate.tell()
        return True

    def _read(self, document: Document) -> EngineReport | Outage:
        """What the document reports. Raises InvalidReport."""
        outage = engine_state.outage_of(document, self._profile, self._engine)
        return report.report_of(document) if outage is None else outage

    def _report(self, new: EngineReport | Outage, leases: tuple[tuple[str, int], ...]) -> None:
        """Tells the gate, if something that matters to it has changed.

        `leases`: those of this sidecar that the engine has, with their costs.
        """
        if isinstance(new, Outage):
            self._unavailable(new)
            return
        if new == self._reported and not leases:
            return
        if self.state is not EngineState.READY:
            logger.info(
                "engine ready: profile %s, %d slots, epoch %s",
                self._profile.name,
                new.slots_total,
                new.epoch,
            )
        self.state, self.message = EngineState.READY, ""
        self.ctx_max, self._reported = new.ctx_max, new
        self._gate.engine_reports(replace(new, leases=leases))

    def _measure_busy(self, document: Document, *, begins: bool) -> None:
        busy_s, now = document.get("busy_seconds_total"), self._loop.time()
        before, self._busy = self._busy, None if busy_s is None else (now, busy_s)
        if begins or before is None or busy_s is None or now <= before[0]:
            self.busy_ratio = None
        else:
            self.busy_ratio = min(1.0, max(0.0, (busy_s - before[1]) / (now - before[0])))

    def _unavailable(self, outage: Outage) -> None:
        state, message, detail = outage.state, outage.message, outage.detail
        if (state, message, detail) != (self.state, self.message, self._detail):
            shown = f"{message}: {detail}" if detail else message
            logger.warning("engine at %s %s: %s", self._url, state, shown)
        self._detail = detail
        self.state, self.message, self._reported = state, message, None
        refusal = Refusal(outage.reason, message)
        self._gate.engine_unavailable(refusal)
        if not self._keeps_queue:
            self._gate.dismiss(refusal)


async def _objection(response: aiohttp.ClientResponse) -> str:
    """The message of an error answer, which may be another version's."""
    try:
        message = json.loads(await response.read())["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError, aiohttp.ClientError):
        return "it gives no reason"
    return str(message)[:400]
