"""Watches one engine: reads its state stream and reports its state to the gate.

Fails closed: while the stream is broken or silent, nothing is admitted. The plugin sends an event
at least every second; 3 s after the last valid event the state is stale. That timeout is measured
here and not by the HTTP client, which may wait for ever on broken framing. A child sidecar is
watched like an engine: its stream has the same form.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

import aiohttp

from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import EngineReport
from orch_sidecar.api.refusal import Refusal, error_text
from orch_sidecar.engine_state import document as state_document
from orch_sidecar.engine_state import report, states
from orch_sidecar.engine_state.document import Document, InvalidReport
from orch_sidecar.engine_state.states import ANSWERING_STATES, OUTAGE_FIELDS, Outage, PoolState
from orch_sidecar.pools.engine_calls import RECONCILE_EVERY_S, ClaimSender, LeaseReconciler
from orch_sidecar.pools.stream_timeout import StreamTimeout
from orch_sidecar.wire.event_stream import EventStream
from vllm_plugin.contracts.lease_protocol import (
    API_VERSION,
    CHANGE,
    CHANGES_EVERY_MS,
    CHANGES_EVERY_S,
    ENDED,
    HEARTBEAT,
    HEARTBEAT_EVERY_S,
    OFFER,
    STALE_AFTER_S,
    STATE,
    cost_of,
    knows_idle,
)
from vllm_plugin.contracts.profile import Profile

logger = logging.getLogger("orch.engine")

# Four attempts in the second within which a restarted engine must be in use again.
RECONNECT_S: Final = 0.25
# An event contains all leases and step counts of the engine: about 100 bytes per slot.
EVENT_BYTES: Final = 2**20

_ADMISSION_FIELDS: Final = report.FIELDS | {"state", "message"}
# A stream is opened again when it should ask for changes so many times less often.
_REOPEN_FACTOR: Final = 2.0
_CLAIM_FIELDS: Final = {"claim", "waits", "claimed"}


class EngineWatcher:
    """Watches one engine for its gate. Belongs to one event loop."""

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
        child_pool: str | None = None,
        changes_every_s: Callable[[], float] = float,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """`keeps_queue`: requests stay queued while the engine is unavailable; else they are
        refused, because another engine may serve them. `tier`: the upstream is a sidecar, and
        `child_pool` the name of its pool, which is required if it has several.
        `changes_every_s`: the least time between two changes that the engine is asked for.
        `on_ready`: called when the engine begins to take requests."""
        self._session = session
        self._url = url
        self._engine = "the engine"  # in messages to clients; the log names the address
        self._headers = headers
        self._gate = gate
        self._profile = profile
        self._keeps_queue = keeps_queue
        self._tier = tier
        self._changes_every_s = changes_every_s
        self._on_ready = on_ready
        self._params = {"instance": gate.instance, "api_version": API_VERSION}
        if child_pool is not None:
            self._params["pool"] = child_pool
        self._reconciler = LeaseReconciler(session, url, headers, gate)
        self.claim_sender = ClaimSender(session, url, headers, gate, child_pool)
        self._loop = asyncio.get_running_loop()
        self.heard_at: float | None = None  # loop time of the last valid event
        self.beat_at: float | None = None  # loop time of the last event with the engine's counts
        self._reported: EngineReport | None = None
        self._busy: tuple[float, float] | None = None  # loop time, busy_seconds_total
        self.busy_ratio: float | None = None  # of the time between two heartbeats
        self.models: Collection[str] | None = None  # in the engine's order
        self.adapters: frozenset[str] = frozenset()  # those of the models that are LoRA adapters
        self.resident: frozenset[str] = frozenset()  # those in use, or used last
        self._most_adapters = 0
        self.ctx_max: int | None = None
        self.unserved: frozenset[str] = frozenset()  # workloads, as long as it is ready
        self.document: Document | None = None
        self.failed = False  # to read its stream, at least once
        self.state = PoolState.STARTING
        self.since_s = time.time()  # it has been ready, or not ready; of the wall clock
        self.message = f"waiting for {self._engine}"
        self._detail = ""

    @property
    def ready(self) -> bool:
        return self.state is PoolState.READY

    @property
    def reads_pairs(self) -> bool:
        """Whether a model that scores does so from both texts of a pair together."""
        return "classification" in (self.document or {}).get("supported_workloads", ())

    @property
    def knows_idle(self) -> bool:
        """Whether a child sidecar has the class of idle requests: to others they are bulk ones."""
        return knows_idle((self.document or {}).get("api_version", ""))

    async def watch(self) -> None:
        """Reads the stream, and reconnects after every end of it, until cancelled."""
        while True:
            try:
                outage = await self._outage()
                if outage is None:
                    continue
                self._unavailable(outage)
            # A fault while an outage is reported: the next attempt reports it again.
            except Exception:
                logger.exception("watching the engine at %s failed", self._url)
            self.failed = True
            await asyncio.sleep(RECONNECT_S)

    async def reconcile(self) -> None:
        """Reconciles the leases at intervals, until cancelled."""
        while True:
            await asyncio.sleep(RECONCILE_EVERY_S)
            try:
                await self._reconciler.reconcile(engine_answers=self.state in ANSWERING_STATES)
            # A fault of one look must not keep the leases of all later requests from ending.
            except Exception:
                logger.exception("reconciling the leases of the engine at %s failed", self._url)

    async def _outage(self) -> Outage | None:
        """Reads the stream once; returns why it ended. None: to be opened again at once."""
        limit = StreamTimeout(STALE_AFTER_S)
        try:
            async with limit:
                return await self._stream(limit)
        except aiohttp.ClientConnectorError as error:
            known = self.document is not None
            return states.unreachable(self._engine, error_text(error), known=known)
        except InvalidReport as error:
            return states.stale(f"the report of {self._engine} is invalid: {error}")
        # No error of one attempt may end the watching.
        except Exception as error:  # noqa: BLE001
            if limit.expired:
                text = f"{self._engine} has sent no valid event for {STALE_AFTER_S:g} s"
                return states.stale(text)
            text = f"the state stream of {self._engine} broke"
            return states.stale(text, error_text(error))

    async def _stream(self, limit: StreamTimeout) -> Outage | None:
        asked_s = max(CHANGES_EVERY_S, self._changes_every_s())
        params = self._params
        if asked_s > CHANGES_EVERY_S:
            asked_s = min(asked_s, HEARTBEAT_EVERY_S)
            params = {**params, CHANGES_EVERY_MS: str(round(1000 * asked_s))}
        response = await self._session.get(
            f"{self._url}/v1/capabilities/stream",
            params=params,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
            allow_redirects=False,
        )
        try:
            if response.status != 200:
                return states.refused(
                    self._engine,
                    response.status,
                    await _error_message(response),
                    self._profile,
                    tier=self._tier,
                )
            events, begun = EventStream(EVENT_BYTES), False
            async for piece in response.content.iter_any():
                for name, data in events.feed(piece):
                    begun = self._event(name, state_document.parsed(data), begun=begun)
                    self.heard_at = self._loop.time()
                    limit.reset()
                    if name == HEARTBEAT and self._reads_too_often(asked_s):
                        return None
        finally:
            response.close()  # without reading the rest
        raise ConnectionError("the engine ended it")

    def _event(self, name: str, data: Document, *, begun: bool) -> bool:
        """Applies an event. `begun`: this stream has sent the whole state before. Returns whether
        it has now. Raises InvalidReport, and then nothing has changed."""
        if name == ENDED:
            self._gate.leases_ended(state_document.ended(data))
            return begun
        if name == OFFER:
            self._gate.offered(*state_document.offered(data))
            return begun
        whole = name == STATE
        if not whole and name not in (CHANGE, HEARTBEAT):
            names = f"{STATE}, {CHANGE}, {HEARTBEAT}, {ENDED} or {OFFER}"
            raise InvalidReport(f"an event is named {name[:80]!r}: it must be {names}")
        if not whole and not begun:
            raise InvalidReport(f"a {name} came before the first state")
        state_document.checked(data, whole=whole, before=None if whole else self.document)
        document = data if whole or self.document is None else self.document | data
        concerns_admission = whole or not _ADMISSION_FIELDS.isdisjoint(data)
        new = self._read(document, None if whole else data) if concerns_admission else None
        self.document = document
        if "lora" in data:
            self.adapters = frozenset(data["lora"]["adapters"])
            self.resident = frozenset(data["lora"].get("resident", ()))
            most = document.get("features", {}).get("max_loras")
            self._most_adapters = most if type(most) is int else 0
        if "models" in data:
            self.models = dict.fromkeys(report.models_of(document) or ()).keys() or None
        if name != CHANGE:
            self._measure_busy(document, first=whole)
        # Requests may have reached this engine under the epoch of its predecessor.
        ours = [(lease, cost_of(lease)) for lease in data.get("leases", [])]
        if new is not None:
            self._report(new, tuple(ours))
        if whole:
            for lease, cost in ours:
                self._gate.ledger.adopt(lease, cost)  # also while the engine is not ready
            self._reconciler.stream_restarted()
            self._gate.ledger.observe_peak(document["peak"], since_before=True)
        elif "peak" in data:
            self._gate.ledger.observe_peak(data["peak"])
        if not _CLAIM_FIELDS.isdisjoint(data):
            self.claim_sender.reported(*report.claim_of(document))
        self._gate.notify()
        return True

    @property
    def has_room(self) -> bool:
        """Whether there is room for one more LoRA adapter beside those that are resident."""
        return len(self.resident) < self._most_adapters

    def expect_adapter(self, adapter: str) -> None:
        """Expects this LoRA adapter in the engine: a request for it is about to go there."""
        if adapter not in self.resident:
            self.resident |= {adapter}

    def _reads_too_often(self, asked_s: float) -> bool:
        """Whether far more streams are read now than when this one was opened."""
        return min(self._changes_every_s(), HEARTBEAT_EVERY_S) > _REOPEN_FACTOR * asked_s

    def _read(self, document: Document, changed: Document | None) -> EngineReport | Outage:
        """Returns what the document reports. `changed`: its fields that differ from the document
        before; None: it is another state. Raises InvalidReport."""
        before = None if changed is None else self._reported
        if before is None or not OUTAGE_FIELDS.isdisjoint(changed or ()):
            outage = states.outage_of(document, self._profile, self._engine)
            if outage is not None:
                return outage
        return report.report_of(document, before, changed or ())

    def _report(self, new: EngineReport | Outage, leases: tuple[tuple[str, int], ...]) -> None:
        """Reports changes to the gate. `leases`: those of this sidecar in the engine, and costs."""
        if isinstance(new, Outage):
            self._unavailable(new)
            return
        if new == self._reported and not leases:
            return
        begins = self.state is not PoolState.READY
        if begins:
            logger.info(
                "engine ready: profile %s, %d slots, epoch %s",
                self._profile.name,
                new.slots_total,
                new.epoch,
            )
            self.since_s = time.time()
            self.unserved = report.unserved_of(self.document or {})
        self.state, self.message = PoolState.READY, ""
        self.ctx_max, self._reported = new.ctx_max, new
        before = self._gate.controller.constraints.batch.limits.out_of_reach
        self._gate.engine_reports(new._replace(leases=leases) if leases else new)
        if self._gate.controller.constraints.batch.limits.out_of_reach is not before:
            text = "can be kept again" if before else "cannot be kept, not even by a batch of one"
            logger.warning("engine at %s: the SLO per token %s", self._url, text)
        if begins and self._on_ready is not None:
            self._on_ready()

    def _measure_busy(self, document: Document, *, first: bool) -> None:
        busy_s, now = document.get("busy_seconds_total"), self._loop.time()
        self.beat_at = now
        before, self._busy = self._busy, None if busy_s is None else (now, busy_s)
        if first or before is None or busy_s is None or now <= before[0]:
            self.busy_ratio = None
        else:
            self.busy_ratio = min(1.0, max(0.0, (busy_s - before[1]) / (now - before[0])))

    def _unavailable(self, outage: Outage) -> None:
        state, message, detail = outage.state, outage.message, outage.detail
        if (state, message, detail) != (self.state, self.message, self._detail):
            shown = f"{message}: {detail}" if detail else message
            logger.warning("engine at %s %s: %s", self._url, state, shown)
        if self.ready:
            self.since_s = time.time()
        self._detail, self.unserved = detail, frozenset()
        self.state, self.message, self._reported = state, message, None
        refusal = Refusal(outage.reason, message)
        self._gate.engine_unavailable(refusal, expected=outage.expected_back)
        if not self._keeps_queue:
            self._gate.refuse_queued(refusal)


async def _error_message(response: aiohttp.ClientResponse) -> str:
    """Returns the message of an error response; any version may have sent it."""
    try:
        message = json.loads(await response.read())["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError, aiohttp.ClientError):
        return "the response contains no reason"
    return str(message)[:400]
