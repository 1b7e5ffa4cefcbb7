"""Runs clients with waits of milliseconds for minutes, with and without injected faults.

    python -m tests.benchmarks.short_waits [--seconds 60]

Runs on uvloop and on asyncio, in front of a cloud and of a home engine. Prints statuses, injected
faults, and the seconds until the last lease was released. Exits with 1 if a lease was not released,
or if a load without faults got a status other than 200 and 429.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter
from contextlib import nullcontext

import uvloop

from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.impatient import faults, short_waits, short_work
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine


async def measure(profile: str, slots: int, seconds: float, share: float) -> bool:
    """One load; True if all of it was as it should be."""
    engine = ScriptedEngine(slots=slots, profile=profile)
    engine.answer = short_work
    await engine.start()
    sidecar = Sidecar(
        SidecarSettings(engine_url=engine.url, profile=profile, port=0, drain_timeout_s=1)
    )
    running = Running(sidecar, await sidecar.start())
    await running.ready()
    with faults(running, share, seed=slots) if share else nullcontext(Counter[str]()) as raised:
        statuses = await short_waits(running.port, 48, seconds)
    ended = time.monotonic()
    try:
        await running.idle(within_s=5.0)
        back = f"{time.monotonic() - ended:.2f} s"
    except AssertionError:
        back = f"never: {running.ledger.leased} of {slots} slots leased"
    fine = not back.startswith("never") and (bool(share) or set(statuses) <= {200, 429})
    print(
        f"{type(asyncio.get_running_loop()).__module__:22} {profile:6} "
        f"{dict(sorted(statuses.items()))}, {raised.total()} faults, "
        f"{running.pool.gate.orphans} orphans, peak {engine.peak} of {slots}, "
        f"leases back after {back}",
        flush=True,
    )
    await running.stop()
    await engine.stop()
    return fine and engine.peak <= slots


def main() -> int:
    """Runs all loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load")
    seconds = parser.parse_args().seconds
    logging.disable(logging.CRITICAL)
    fine = True
    for loop in (uvloop.new_event_loop, asyncio.new_event_loop):
        for profile, slots in (("cloud", 8), ("home", 1)):
            for share in (0.0, 0.02):
                with asyncio.Runner(loop_factory=loop) as runner:
                    fine &= runner.run(measure(profile, slots, seconds, share))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
