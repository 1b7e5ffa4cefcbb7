"""Follows one engine: its state, pushed by the plugin; and the end of leases it must confirm.

Fails closed: whenever the stream is broken or silent, nothing is admitted on a guess. The
plugin sends an event at least every second; after 3 s of silence the state is stale.
"""

from __future__ import annotations

import asyncio
import json
import logging
from enum import StrEnum
from typing import Any, Final

import aiohttp

from orch_sidecar.admission.gate import Gate
from orch_sidecar.reasons import Reason, Refusal
from vllm_plugin.profile import Profile

logger = logging.getLogger("orch.engine")

SILENCE_S: Final = 3.0
# "Serves again within a second" after a restart: four looks in that second.
RECONNECT_S: Final = 0.25
CONFIRM_EVERY_S: Final = 1.0
# One line holds all leases and steps of the engine: about 100 bytes per slot.
LINE_BYTES: Final = 2**20


class EngineState(StrEnum):
    """What the sidecar knows of its engine."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STALE = "stale"
    DOWN = "down"
    UNUSABLE = "unusable"  # it answers, but not as an engine that this sidecar can serve


class EngineFollower:
    """Keeps the gate told of what the engine says."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: dict[str, str],
        gate: Gate,
        profile: Profile,
    ) -> None:
        self._session = session
        self._url = url
        self._headers = headers
        self._gate = gate
        self._profile = profile
        self._loop = asyncio.get_running_loop()
        self._heard_at: float | None = None
        self._unconfirmed: set[str] = set()
        self.document: dict[str, Any] | None = None
        self.state = EngineState.STARTING
        self.message = f"waiting for the engine at {url}"

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def ctx_max(self) -> int | None:
        return None if self.document is None else self.document.get("ctx_max")

    @property
    def age_ms(self) -> int | None:
        """Milliseconds since the engine was last heard of."""
        return None if self._heard_at is None else int((self._loop.time() - self._heard_at) * 1e3)

    async def follow(self) -> None:
        """Follows the stream, and again after every end of it, until cancelled."""
        while True:
            try:
                await self._stream()
            except aiohttp.ClientConnectorError as error:
                self._down(str(error))
            except TimeoutError:
                self._unavailable(
                    EngineState.STALE,
                    Reason.ENGINE_STALE,
                    f"the engine at {self._url} has sent no event for {SILENCE_S:g} s",
                )
            # Whatever it is, also a state of another version of the plugin: it must not end this.
            except Exception as error:  # noqa: BLE001
                self._unavailable(
                    EngineState.STALE,
                    Reason.ENGINE_STALE,
                    f"the state stream of the engine at {self._url} broke: {error!r}",
                )
            await asyncio.sleep(RECONNECT_S)

    async def confirm(self) -> None:
        """Asks, until cancelled, for leases whose end the stream has not told of in time."""
        while True:
            await asyncio.sleep(CONFIRM_EVERY_S)
            closing = set(self._gate.core.ledger.closing())
            overdue = sorted(closing & self._unconfirmed)
            self._unconfirmed = closing
            if self.ready:
                try:
                    await self._revoke(overdue)
                # It must go on whatever the engine answers: nobody else gives these back.
                except Exception:
                    logger.exception("leases could not be confirmed; trying again")

    async def _stream(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
        async with self._session.get(
            f"{self._url}/v1/capabilities/stream",
            params={"instance": self._gate.instance},
            headers=self._headers,
            timeout=timeout,
            read_bufsize=LINE_BYTES,
        ) as response:
            if response.status != 200:
                self._unusable(response.status)
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
        if name == "state":
            self.document = data
        elif self.document is not None:
            self.document |= data
        else:
            raise ValueError(f"event {name!r} before the first state")
        if name == "state" or "foreign" in data:
            self._report()
        ledger = self._gate.core.ledger
        if name == "state":
            # A request may have reached this engine under its predecessor's epoch.
            for lease in data.get("leases", []):
                ledger.adopt(lease, int(lease.rpartition(".")[2]))
            # Their ends may have been told while nobody listened.
            self._unconfirmed.update(ledger.closing())
            ledger.engine_held(self.document["peak"], since_before=True)
        elif "peak" in data:
            ledger.engine_held(data["peak"])

    def _report(self) -> None:
        document = self.document
        assert document is not None
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
        if self.state is not EngineState.READY:
            logger.info(
                "engine ready: profile %s, %d slots, epoch %s",
                theirs[0],
                document["slots_total"],
                document["epoch"],
            )
        self.state, self.message = EngineState.READY, ""
        self._gate.engine_reports(document["epoch"], document["slots_total"], document["foreign"])

    async def _revoke(self, leases: list[str]) -> None:
        for lease in leases:
            try:
                async with self._session.delete(
                    f"{self._url}/v1/capabilities/leases/{lease}",
                    headers=self._headers,
                    timeout=aiohttp.ClientTimeout(total=SILENCE_S),
                ) as response:
                    if response.status == 200 and (await response.json())["ended"]:
                        self._gate.engine_ended([lease])
                    else:
                        logger.warning(
                            "lease %s: still in the engine (%d)", lease[:24], response.status
                        )
            except (aiohttp.ClientError, TimeoutError) as error:
                logger.warning("lease %s: its end could not be confirmed: %r", lease[:24], error)
                return  # the engine does not answer; the stream will say so, and this runs again

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

    def _unusable(self, status: int) -> None:
        if status in (401, 403):
            self._unavailable(
                EngineState.UNUSABLE,
                Reason.ENGINE_REFUSES_KEY,
                f"the engine at {self._url} refuses this sidecar's key ({status}): "
                "set ORCH_ENGINE_API_KEY to the engine's --api-key",
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
            self._unavailable(
                EngineState.STALE,
                Reason.ENGINE_STALE,
                f"the engine at {self._url} answered {status} for its state",
            )

    def _unavailable(self, state: EngineState, reason: Reason, message: str) -> None:
        if (state, message) != (self.state, self.message):
            logger.warning("engine %s: %s", state, message)
        self.state, self.message = state, message
        self._gate.engine_unavailable(Refusal(reason, message))
