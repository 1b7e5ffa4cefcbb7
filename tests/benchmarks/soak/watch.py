"""The continuous checks, performed twice a second."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from tests.benchmarks.soak.ends import Ends
from tests.benchmarks.soak.processes import Metrics, SidecarProcess
from tests.benchmarks.soak.report import Report
from tests.benchmarks.soak.responses import ask

_LOOKS_EVERY_S: Final = 0.5


class Watch:
    """Looks at a running sidecar. `slowest_s`: the longest that /livez took."""

    def __init__(self, sidecar: SidecarProcess, ends: Ends, report: Report) -> None:
        self._sidecar = sidecar
        self._ends = ends
        self._report = report
        self.slowest_s = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """A look that takes longer than planned counts as one all the same: the machine stopped
        this process or those that it asked meanwhile, and may have stopped the engines as well."""
        while not stop.is_set():
            await asyncio.sleep(_LOOKS_EVERY_S)
            if self._sidecar.exit_code is not None:
                self._report.breach("the sidecar has ended", f"code {self._sidecar.exit_code}")
                stop.set()
                return
            self._ends.check(_LOOKS_EVERY_S)
            try:
                await self._look()
            except (OSError, TimeoutError) as error:
                self._report.breach("the sidecar does not answer", repr(error))

    async def _look(self) -> None:
        began = time.monotonic()
        live = await ask(self._sidecar.port, "GET", "/livez")
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if live.status != 200:
            self._report.breach("/livez fails", f"{live.status}")
        self.check(await self._sidecar.metrics())

    def check(self, metrics: Metrics) -> None:
        violations = metrics.sum("orch_oversubscription_violations_total")
        if violations:
            self._report.breach("oversubscription violations", f"{violations:g}")
        totals = metrics.by("orch_slots_total", "pool")
        leased, foreign = (
            metrics.by(name, "pool") for name in ("orch_slots_leased", "orch_slots_foreign")
        )
        for pool, total in totals.items():
            if leased[pool] + foreign[pool] > total:
                detail = f"{pool}: {leased[pool]:g} leased, {foreign[pool]:g} foreign of {total:g}"
                self._report.breach("more leased and foreign than slots", detail)
