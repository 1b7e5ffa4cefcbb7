"""Injects faults into the engines: each kind in turn, in random order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from tests.benchmarks.soak.processes import Engine, SidecarProcess
from tests.benchmarks.soak.report import Report
from tests.benchmarks.soak.trouble import Kind, Trouble
from tests.patience import HANG_S
from vllm_plugin.contracts.lease_protocol import timestamp

_FRAMING: Final = (
    "zz\r\n", "-1\r\n", "5\nabcde\n", "\0\0\0\0", "event: change\ndata: {}\n\n", "5\r\nabcdefgh",
    "ffffffffff\r\n", "\r\n\r\n",
)  # fmt: skip
_EVENTS: Final = (
    "event: state\ndata: {not json\n\n",
    "event: state\ndata: []\n\n",
    "event: state\ndata: {}\n\n",
    "event: change\ndata: null\n\n",
    'event: ended\ndata: {"leases": 5}\n\n',
    'event: ended\ndata: {"leases": ["x", "0.0.1"]}\n\n',
    "event: ended\ndata: {}\n\n",
    "event: nothing\ndata: {}\n\n",
    "data\n\n",
    ": a comment\n\n",
    "event: change\ndata: \xff\xfe\n\n",
)
_NUMBERS: Final[tuple[dict[str, Any], ...]] = (
    {"slots_total": 0},
    {"slots_total": -1},
    {"slots_total": 10**400},
    {"slots_total": float("nan")},
    {"slots_total": "8"},
    {"slots_total": None},
    {"foreign": -1},
    {"foreign": 10**400},
    {"foreign": float("inf")},
    {"running": 10**400, "waiting": -5},
    {"peak": "many"},
    {"kv_cache_usage": float("nan"), "kv_tokens_total": -1},
    {"step_time": {"quality": "good", "t0_ms": float("inf"), "c_ms": -1, "alpha": 1e308}},
    {"epoch": None},
)


class Faults:
    """The faults of one scene. `bag`: the kinds that are still to come, shared by all scenes."""

    def __init__(
        self,
        engines: list[Engine],
        sidecar: SidecarProcess,
        trouble: Trouble,
        report: Report,
        chance: Random,
        bag: list[str],
    ) -> None:
        self._engines = engines
        self._sidecar = sidecar
        self._trouble = trouble
        self._report = report
        self._chance = chance
        self._bag = bag
        self._kinds: dict[str, tuple[Kind | None, Callable[[Engine], Awaitable[None]]]] = {
            "engine killed": (Kind.DOWN, self._kill),
            "engine stopped": (Kind.DOWN, self._stop),
            "engine restarted": (Kind.DOWN, self._restart),
            "engine hung": (Kind.DOWN, self._hang),
            "engine going": (None, self._going),
            "state silent": (Kind.AWAY, self._silence),
            "state badly framed": (Kind.AWAY, self._bad_framing),
            "state unreadable": (Kind.AWAY, self._bad_event),
            "state with absurd numbers": (Kind.AWAY, self._absurd),
            "state refused": (Kind.AWAY, self._refuse_state),
            "state of an engine that drains": (Kind.AWAY, self._drains),
            "ends not reported": (None, self._lose_ends),
            "ends reported late": (None, self._delay_ends),
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then all engines are well."""
        while not stop.is_set():
            await asyncio.sleep(self._chance.uniform(0.3, 2.5))
            several = self._chance.random() < 0.15
            engines = self._engines if several else [self._chance.choice(self._engines)]
            await asyncio.gather(*(self._one(engine) for engine in engines))

    async def _one(self, engine: Engine) -> None:
        if not self._bag:
            self._bag += self._kinds
            self._chance.shuffle(self._bag)
        name = self._bag.pop()
        kind, fault = self._kinds[name]
        self._report.faults[name] += 1
        self._report.remember(f"{engine.plan.name}: {name}")
        interval = None if kind is None else self._trouble.begin(engine.plan.name, kind)
        await fault(engine)
        await self._back(engine, name)
        if interval is not None:
            self._trouble.end(interval)
        self._report.remember(f"{engine.plan.name}: over")

    async def _back(self, engine: Engine, fault: str) -> None:
        """Waits until the sidecar takes requests for the engine again, by a report that the engine
        made when the fault was over: on a busy machine both are seconds behind."""
        await engine.count()  # behind all commands
        over, began = timestamp(time.time()), time.monotonic()
        while True:
            state, reported = await self._sidecar.pool(engine.plan.name)
            if state in ("ready", "draining") and reported >= over:
                return
            if time.monotonic() - began > HANG_S:
                detail = f"{engine.plan.name} is {state} {HANG_S:g} s after: {fault}"
                self._report.breach("a pool does not come back", detail)
                return
            await asyncio.sleep(0.05)

    async def _must_go_stale(self, engine: Engine, fault: str) -> None:
        """The last good event came just now: the pool must not stay ready."""
        began = time.monotonic()
        while (await self._sidecar.pool(engine.plan.name))[0] == "ready":
            if time.monotonic() - began > HANG_S:
                detail = f"{engine.plan.name} is ready {HANG_S:g} s after: {fault}"
                self._report.breach("a state stream that is broken goes unnoticed", detail)
                return
            await asyncio.sleep(0.05)

    async def _lasts(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self._chance.uniform(least_s, most_s))

    # Engines.

    async def _kill(self, engine: Engine) -> None:
        await engine.kill()
        await self._lasts(0.0, 1.0)
        await engine.start()

    async def _stop(self, engine: Engine) -> None:
        engine.signal(signal.SIGSTOP)
        await self._lasts(0.1, 5.0)
        engine.signal(signal.SIGCONT)

    async def _restart(self, engine: Engine) -> None:
        for _ in range(self._chance.randrange(1, 4)):
            engine.do("restart")
            await self._lasts(0.0, 0.3)

    async def _hang(self, engine: Engine) -> None:
        engine.do("flow", False)
        await self._lasts(0.3, 4.0)
        engine.do("flow", True)

    async def _going(self, engine: Engine) -> None:
        """Its API server turns requests away untouched: they wait, and nobody is refused."""
        engine.do("faults", {"gone": True})
        await self._lasts(0.1, 0.6)
        engine.do("faults", {"gone": False})

    # State streams.

    async def _silence(self, engine: Engine) -> None:
        engine.do("faults", {"mute": True})
        if self._chance.random() < 0.5:
            await self._must_go_stale(engine, "silence")
        else:
            await self._lasts(0.2, 3.0)
        engine.do("faults", {"mute": False})

    async def _bad_framing(self, engine: Engine) -> None:
        text = self._chance.choice(_FRAMING)
        engine.do("faults", {"mute": True})
        engine.do("state_bytes", text)
        if self._chance.random() < 0.7:
            await self._must_go_stale(engine, f"framing {text!r}")
        else:
            await self._lasts(0.1, 1.0)
        followed = (await engine.count())["followed"]
        engine.do("faults", {"mute": False})
        engine.do("state_reset")
        # Behind such bytes an end may not be seen either: then the stream is dropped as silent.
        began = time.monotonic()
        while (await engine.count())["followed"] == followed:
            if time.monotonic() - began > HANG_S:
                detail = f"{engine.plan.name}, {HANG_S:g} s after: framing {text!r}"
                self._report.breach("an engine is not followed anew", detail)
                return
            await asyncio.sleep(0.05)

    async def _bad_event(self, engine: Engine) -> None:
        text = self._chance.choice(_EVENTS)
        engine.do("state_bytes", f"{len(text):x}\r\n{text}\r\n")
        await self._lasts(0.1, 1.0)

    async def _absurd(self, engine: Engine) -> None:
        numbers = self._chance.choice(_NUMBERS)
        engine.do("report_state", numbers)
        await self._lasts(0.2, 1.5)
        # Reported state is replaced by the real one: a new stream begins with the whole state.
        engine.do("clear_state_fields")
        engine.do("state_reset")

    async def _refuse_state(self, engine: Engine) -> None:
        engine.do("faults", {"stream_status": self._chance.choice((401, 404, 500, 503))})
        engine.do("state_reset")
        await self._lasts(0.3, 2.0)
        engine.do("faults", {"stream_status": 200})

    async def _drains(self, engine: Engine) -> None:
        engine.do(
            "report_state",
            {"state": self._chance.choice(("draining", "stalled", "starting", "odd"))},
        )
        await self._lasts(0.3, 1.5)
        engine.do("clear_state_fields")
        engine.do("state_reset")

    async def _lose_ends(self, engine: Engine) -> None:
        engine.do("faults", {"reports_ended": False})
        await self._lasts(0.5, 2.0)
        engine.do("faults", {"reports_ended": True})

    async def _delay_ends(self, engine: Engine) -> None:
        engine.do("faults", {"ended_delay_s": self._chance.uniform(0.01, 0.4)})
        await self._lasts(0.5, 2.0)
        engine.do("faults", {"ended_delay_s": 0.0})
