"""Changes the sidecar: reloads settings and profiles, changes API keys, drains pools."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from tests.benchmarks.soak.keys import Key, Keys
from tests.benchmarks.soak.processes import Engine, SidecarProcess
from tests.benchmarks.soak.report import Report
from tests.benchmarks.soak.responses import ask
from tests.benchmarks.soak.scenes import Scene
from tests.benchmarks.soak.trouble import Kind, Trouble
from tests.benchmarks.soak.verdict import QUEUE_TIMEOUT_S
from tests.patience import HANG_S

_PROFILES: Final = Path(__file__).parents[3] / "profiles"


class Configuration:
    """The files that the sidecar is configured by."""

    def __init__(self, directory: Path, scene: Scene, engines: list[Engine], keys: Keys) -> None:
        self.path = directory / "sidecar.yaml"
        self._directory = directory
        self._fixed: dict[str, Any] = {
            "api_keys_file": str(keys.path),
            "engine_silence_s": 3.0,
            "client_stall_s": 20.0,
            "body_timeout_s": 5.0,
            "connect_timeout_s": 2.0,
            "drain_timeout_s": 2.0,
            "max_body_bytes": 2**20,
        }
        if scene.single:
            self._fixed |= {
                "engine_url": engines[0].url,
                "profile": self._profile(scene.pools[0].profile),
            }
        else:
            self._fixed["pools"] = [
                {
                    "name": engine.plan.name,
                    "url": engine.url,
                    "profile": self._profile(engine.plan.profile),
                    "on_request": engine.plan.on_request,
                }
                for engine in engines
            ]
        self._profiles = {plan.profile for plan in scene.pools}
        self.write(Random(0))

    def _profile(self, name: str) -> str:
        return str(self._directory / f"{name}.yaml")

    def write(self, chance: Random) -> None:
        """Settings and profiles, with other values in what can be reloaded."""
        settings = self._fixed | {
            "queue_capacity": chance.choice((16, 64, 512)),
            "queue_timeout_s": QUEUE_TIMEOUT_S + chance.choice((0.0, 2.0, 5.0)),
            "max_json_depth": chance.choice((32, 64)),
        }
        for name in self._profiles:
            profile = yaml.safe_load((_PROFILES / f"{name}.yaml").read_text())
            rules = profile["admission"]
            rules["full_queue"] = chance.choice(("reject", "drop-lru"))
            rules["aging_s"] = chance.choice((1, 5, 10, None))
            if name == "cloud":
                rules["coalescing"] = chance.random() < 0.8
                rules["bulk_share"] = chance.choice((0.0, 0.1, 0.5))
                rules["reclaim"] = chance.random() < 0.8
                rules["interactive"]["batch"] = {"least": 2, "most": chance.choice((4, 8, 16))}
            Path(self._profile(name)).write_text(yaml.safe_dump(profile))
        self.path.write_text(yaml.safe_dump(settings))

    def spoil(self, chance: Random) -> None:
        """Writes what cannot be read: nothing of it may take effect."""
        self.path.write_text(
            chance.choice(("port: [", "queue_capacity: never\n", "unknown: 1\n", "- a list\n"))
        )


class Changes:
    """Changes the configuration of a running sidecar, one thing after another."""

    def __init__(
        self,
        scene: Scene,
        configuration: Configuration,
        keys: Keys,
        sidecar: SidecarProcess,
        trouble: Trouble,
        report: Report,
        chance: Random,
    ) -> None:
        self._scene = scene
        self._configuration = configuration
        self._keys = keys
        self._sidecar = sidecar
        self._trouble = trouble
        self._report = report
        self._chance = chance

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then everything is as it should be."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._reload, self._reload_spoiled, self._turn_key, self._turn_key, self._spoil_keys,
            self._drain,
        ]  # fmt: skip
        async with asyncio.TaskGroup() as self._settling:
            while not stop.is_set():
                await asyncio.sleep(self._chance.uniform(0.3, 2.5))
                await self._chance.choice(kinds)()

    async def _readiness(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            (await ask(self._sidecar.port, "GET", "/readyz")).body
        )
        return document

    async def _becomes(self, holds: Callable[[dict[str, Any]], object], breach: str) -> None:
        """Waits until what /readyz shows is so."""
        document: dict[str, Any] = {}
        try:
            async with asyncio.timeout(HANG_S):
                # Another process is looked at: it sets no event.
                while not holds(document := await self._readiness()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self._report.breach(breach, json.dumps(document))

    async def _reload(self) -> None:
        self._report.faults["reload"] += 1
        before = (await self._readiness())["generation"]
        self._configuration.write(self._chance)
        self._sidecar.reload()
        await self._becomes(
            lambda document: document["generation"] > before and not document["last_reload_error"],
            "a reload without effect",
        )

    async def _reload_spoiled(self) -> None:
        self._report.faults["spoiled settings"] += 1
        before = (await self._readiness())["generation"]
        self._configuration.spoil(self._chance)
        self._sidecar.reload()
        await self._becomes(
            lambda document: document["last_reload_error"], "spoiled settings go unnoticed"
        )
        if (await self._readiness())["generation"] != before:
            self._report.breach("spoiled settings took effect", str(before))
        await self._reload()

    async def _turn_key(self) -> None:
        key = self._keys.turn()
        self._report.faults["key added" if key.known else "key revoked"] += 1
        self._settling.create_task(self._settle(key, key.changes))

    async def _settle(self, key: Key, changes: int) -> None:
        """Notes when the sidecar knows of the last change of a key. On a busy machine that can take
        several times as long as it waits between two looks at the file."""
        header, known = f"Authorization: Bearer {key.value}\r\n", None
        try:
            async with asyncio.timeout(HANG_S):
                while key.changes == changes and known is not key.known:
                    await asyncio.sleep(0.1)
                    answer = await ask(self._sidecar.port, "GET", "/v1/capabilities", header)
                    known = answer.status != 401
        except TimeoutError:
            self._report.breach("a changed key goes unnoticed", key.name)
        if key.changes == changes:
            key.settled_at = time.monotonic()

    async def _spoil_keys(self) -> None:
        self._report.faults["spoiled keys"] += 1
        self._keys.spoil()
        await self._becomes(
            lambda document: document["last_reload_error"], "spoiled keys go unnoticed"
        )
        self._keys.mend()
        await self._becomes(
            lambda document: not document["last_reload_error"], "mended keys go unnoticed"
        )

    async def _drain(self) -> None:
        self._report.faults["drain"] += 1
        pool = self._chance.choice(self._scene.pools).name
        interval = self._trouble.begin(pool, Kind.AWAY)
        for action in ("drain", "resume"):
            answer = await ask(self._sidecar.admin_port, "POST", f"/v1/pools/{pool}/{action}")
            if answer.status != 200:
                self._report.breach(f"a wrong answer to {action}", f"{answer.status}")
            if action == "drain":
                await asyncio.sleep(self._chance.uniform(0.1, 0.8))
        self._trouble.end(interval)
