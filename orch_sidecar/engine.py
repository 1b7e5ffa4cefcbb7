"""Follows one engine: its state, pushed by the plugin.

Fails closed: whenever the stream is broken or silent, nothing is admitted on a guess. The
plugin sends an event at least every second; after 3 s of silence the state is stale. A sidecar
below this one is followed like an engine: its stream has the same form.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

import aiohttp

from orch_sidecar import report
from orch_sidecar.admission.ask import EngineReport
from orch_sidecar.admission.gate import Gate
from orch_sidecar.confirm import Confirmation
from orch_sidecar.reasons import Reason, Refusal
from vllm_plugin.profile import Profile

logger = logging.getLogger("orch.engine")

SILENCE_S: Final = 3.0
# "Serves again within a second" after a restart: four looks in that second.
RECONNECT_S: Final = 0.25
# One line holds all leases and steps of the engine: about 100 bytes per slot.
LINE_BYTES: Final = 2**20


class EngineState(StrEnum):
    """What the sidecar knows of its engine."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STALE = "stale"
    STALLED = "stalled"  # it answers, but what is in it makes no progress
    DOWN = "down"
    UNUSABLE = "unusable"  # it answers, but not as an engine that this sidecar can serve


# In these it is heard of all the time, and answers questions.
ANSWERING: Final = frozenset({EngineState.READY, EngineState.DRAINING, EngineState.STALLED})


# What an engine says of its own state, besides that it is ready.
_SAID: Final = {
    "starting": (EngineState.STARTING, Reason.ENGINE_STARTING),
    "draining": (EngineState.DRAINING, Reason.ENGINE_DOWN),
    "stalled": (EngineState.STALLED, Reason.ENGINE_STALLED),
    "down": (EngineState.DOWN, Reason.ENGINE_DOWN),
    "unusable": (EngineState.UNUSABLE, Reason.ENGINE_DOWN),
}
_MATTERS: Final = report.FIELDS | {"state"}


class EngineFollower:
    """Keeps the gate told of what the engine says."""

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
        """`keeps_queue`: who waits goes on waiting while the engine is away; else they are
        refused, because another engine may serve them. `tier`: it is a sidecar, and `below`
        the name of the pool there that is meant, which must be said if it has several."""
        self._session = session
        self._url = url
        self._headers = headers
        self._gate = gate
        self._profile = profile
        self._keeps_queue = keeps_queue
        self._tier = tier
        self._params = {"instance": gate.instance}
        if below is not None:
            self._params["pool"] = below
        self._confirmation = Confirmation(session, url, headers, gate)
        self._loop = asyncio.get_running_loop()
        self._heard_at: float | None = None
        self._reported: EngineReport | None = None
        self._busy: tuple[float, float] | None = None  # loop time, busy_seconds_total
        self.busy_ratio: float | None = None  # of the time between two heartbeats
        self.models: frozenset[str] | None = None
        self.ctx_max: int | None = None
        self.document: dict[str, Any] | None = None
        self.state = EngineState.STARTING
        self.message = f"waiting for the engine at {url}"

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def age_ms(self) -> int | None:
        """Milliseconds since the engine was last heard of."""
        return None if self._heard_at is None else int((self._loop.time() - self._heard_at) * 1e3)

    async def follow(self) -> None:
        """Follows the stream, and again after every end of it, until cancelled."""
        while True:
            try:
                await self._follow_once()
            # A fault while the engine's absence is noted: the next attempt notes it again.
            except Exception:
                logger.exception("following the engine at %s failed", self._url)
            await asyncio.sleep(RECONNECT_S)

    async def _follow_once(self) -> None:
        """Until the stream ends."""
        try:
            await self._stream()
        except aiohttp.ClientConnectorError as error:
            self._down(str(error))
        except TimeoutError:
            self._stale(f"the engine at {self._url} has sent no event for {SILENCE_S:g} s")
        # Whatever it is, also a state of another version of the plugin: it must not end this.
        except Exception as error:  # noqa: BLE001
            self._stale(f"the state stream of the engine at {self._url} broke: {error!r}")

    async def confirm(self) -> None:
        """Asks, until cancelled, for leases whose end the stream has not told of in time."""
        await self._confirmation.run(lambda: self.state in ANSWERING)

    async def _stream(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
        async with self._session.get(
            f"{self._url}/v1/capabilities/stream",
            params=self._params,
            headers=self._headers,
            timeout=timeout,
            read_bufsize=LINE_BYTES,
        ) as response:
            if response.status != 200:
                self._unusable(response.status, await _objection(response))
                return
            name = ""
            async for raw in response.content:
                line = raw.decode().rstrip("\r\n")
                if line.startswith("event:"):
                    name = line[6:].strip()
                elif line.startswith("data:"):
                    self._heard_at = self._loop.time()
                    await self._event(name, json.loads(line[5:]))
        raise ConnectionError("the engine ended it")

    async def _event(self, name: str, data: dict[str, Any]) -> None:
        if not isinstance(data, dict):
            raise ValueError(f"event {name!r} is no object")
        if name == "ended":
            self._gate.engine_ended(data["leases"])
            return
        whole = name == "state"
        if whole:
            self.document = data
            self.models = report.texts(data, "models") or None
        elif self.document is not None:
            self.document |= data
        else:
            raise ValueError(f"event {name!r} before the first state")
        if name != "change":
            self._measure_busy(self.document, begins=whole)
        if whole or not _MATTERS.isdisjoint(data):
            # A request may have reached this engine under its predecessor's epoch.
            ours = [(lease, int(lease.rpartition(".")[2])) for lease in data.get("leases", [])]
            self._report(self.document, tuple(ours))
        ledger = self._gate.core.ledger
        if whole:
            for lease, cost in ours:
                ledger.adopt(lease, cost)  # those of one that is not ready, too
            self._confirmation.overdue()
            ledger.engine_held(self.document["peak"], since_before=True)
        elif "peak" in data:
            ledger.engine_held(data["peak"])
        self._gate.tell()

    def _report(self, document: dict[str, Any], leases: tuple[tuple[str, int], ...]) -> None:
        """Tells the gate, if something that matters to it has changed.

        `leases`: those of this sidecar that the engine has, with their costs.
        """
        theirs = (document["profile"], document["measurement_type"])
        ours = (self._profile.name, self._profile.measurement_type.value)
        if theirs != ours:
            self._unavailable(
                EngineState.UNUSABLE,
                Reason.PROFILE_MISMATCH,
                f"the engine obeys profile {theirs[0]!r} ({theirs[1]}), this sidecar has "
                f"{ours[0]!r} ({ours[1]}): give both the same ORCH_PROFILE",
            )
            return
        said = document.get("state", "ready")
        if said != "ready":
            self._not_ready(str(said), document.get("message"))
            return
        new = report.report_of(document)
        if new == self._reported and not leases:
            return
        if self.state is not EngineState.READY:
            logger.info(
                "engine ready: profile %s, %d slots, epoch %s",
                theirs[0],
                new.slots_total,
                new.epoch,
            )
        self.state, self.message = EngineState.READY, ""
        self.ctx_max, self._reported = new.ctx_max, new
        self._gate.engine_reports(replace(new, leases=leases))

    def _not_ready(self, said: str, message: Any) -> None:
        """The engine can be heard, and says that it cannot serve."""
        state, reason = _SAID.get(said, (EngineState.STALE, Reason.ENGINE_STALE))
        if state is EngineState.STALLED:
            text = f"the engine at {self._url} has work and makes no progress"
        else:
            text = f"the engine at {self._url} says that it is {said[:40]}"
        more = f": {message[:400]}" if isinstance(message, str) and message else ""
        self._unavailable(state, reason, text + more)

    def _measure_busy(self, document: dict[str, Any], *, begins: bool) -> None:
        busy_s, now = report.number(document, "busy_seconds_total"), self._loop.time()
        before, self._busy = self._busy, None if busy_s is None else (now, busy_s)
        if begins or before is None or busy_s is None or now <= before[0]:
            self.busy_ratio = None
        else:
            self.busy_ratio = min(1.0, max(0.0, (busy_s - before[1]) / (now - before[0])))

    def _down(self, error: str) -> None:
        if self.document is None:
            self._unavailable(
                EngineState.STARTING,
                Reason.ENGINE_STARTING,
                f"waiting for the engine at {self._url}: {error}",
            )
        else:
            self._unavailable(
                EngineState.DOWN,
                Reason.ENGINE_DOWN,
                f"the engine at {self._url} is down: {error}",
            )

    def _unusable(self, status: int, objection: str) -> None:
        if status in (401, 403):
            self._unavailable(
                EngineState.UNUSABLE,
                Reason.ENGINE_REFUSES_KEY,
                f"the engine at {self._url} refuses this sidecar's key ({status}): "
                "set ORCH_ENGINE_API_KEY to the engine's --api-key",
            )
        elif self._tier and status in (400, 404):
            self._unavailable(
                EngineState.UNUSABLE,
                Reason.ENGINE_DOWN,
                f"the sidecar at {self._url} does not tell of a pool ({status}): {objection}",
            )
        elif status == 404:
            self._unavailable(
                EngineState.UNUSABLE,
                Reason.ENGINE_WITHOUT_PLUGIN,
                f"the engine at {self._url} runs without the orch plugin: install orch-sidecar "
                f"in its environment, set ORCH_PROFILE={self._profile.name} there (and, if "
                "VLLM_PLUGINS is set, add orch to it), and restart it",
            )
        else:
            self._stale(f"the engine at {self._url} answered {status} for its state")

    def _stale(self, message: str) -> None:
        self._unavailable(EngineState.STALE, Reason.ENGINE_STALE, message)

    def _unavailable(self, state: EngineState, reason: Reason, message: str) -> None:
        if (state, message) != (self.state, self.message):
            logger.warning("engine %s: %s", state, message)
        self.state, self.message, self._reported = state, message, None
        refusal = Refusal(reason, message)
        self._gate.engine_unavailable(refusal)
        if not self._keeps_queue:
            self._gate.dismiss(refusal)


async def _objection(response: aiohttp.ClientResponse) -> str:
    """What an answer says against what was asked; it comes from another version, perhaps."""
    try:
        said = json.loads(await response.read())["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError, aiohttp.ClientError):
        return "it does not say why"
    return str(said)[:400]
