"""Lets MLCommons' own load generator decide when the requests of a run are sent.

It issues queries from a thread of its own. The package is imported only here. How the figures are
compared: docs/reference/bench.md, "Official figures".
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from orch_sidecar.tools.bench.load.call import Call, Request
from orch_sidecar.tools.bench.load.driver import LoadGenerator
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.result import LoadgenDocument
from orch_sidecar.tools.facts.tables.notes import PERCENTILES, Arrivals

_PACKAGE: Final = "mlcommons-loadgen"
_SCENARIOS: Final = {
    Arrivals.ONE_BY_ONE: "SingleStream",
    Arrivals.POISSON: "Server",
    Arrivals.AT_ONCE: "Offline",
}
_NS_PER_MS: Final = 1e6
# Without an SLO nothing is late.
_NO_BOUND_MS: Final = 86_400_000.0
# In its trace, which is not quite JSON: how long after its scheduled time each query was issued.
_SAMPLE: Final = re.compile(
    r'"name":"Sample".*"sample_seq":(?P<number>\d+),.*"issue_start_ns":(?P<late_ns>\d+)'
)
# Its names of mean and percentiles, by ours.
_TIMES: Final = {
    "latency": ("mean_latency_ns", "{}.00_percentile_latency_ns"),
    "TTFT": ("first_token_mean_latency_ns", "first_token_{}.00_percentile_latency_ns"),
    "TPOT": ("time_to_output_token_mean", "time_per_output_token_{}.00_percentile_ns"),
}


def check(scenario: Scenario) -> str:
    """Returns the version of the package. Raises ValueError where it is missing, or cannot send
    such a load."""
    if scenario.arrivals not in _SCENARIOS:
        known = ", ".join(_SCENARIOS.values())
        raise ValueError(
            f"--loadgen cannot send {scenario.text}: its scenarios are {known}; give --rate alone"
        )
    try:
        importlib.import_module("mlperf_loadgen")
        return metadata.version(_PACKAGE)
    except ModuleNotFoundError:
        raise ValueError(f"--loadgen needs a package: pip install {_PACKAGE}") from None


class Loadgen:
    """One test. `began_s`: when its clock began, by that of the run."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        """`folder`: of its logs, made if it does not exist."""
        self._lg = importlib.import_module("mlperf_loadgen")
        self._scenario, self._folder = scenario, folder
        self.began_s = 0.0

    async def work(self, load: LoadGenerator, requests: Iterator[Request]) -> None:
        """Sends a request for each query until the test has ended."""
        self._folder.mkdir(parents=True, exist_ok=True)
        loop, issued = asyncio.get_running_loop(), asyncio.Queue[tuple[int, float] | None]()

        def put(query: tuple[int, float] | None) -> None:
            with suppress(RuntimeError):  # the loop is closed, as the run has ended early
                loop.call_soon_threadsafe(issued.put_nowait, query)

        # A test cannot be stopped: a run that ends early leaves its thread behind.
        threading.Thread(target=self._test, args=(load, put), name="loadgen", daemon=True).start()
        try:
            async with asyncio.TaskGroup() as tasks:
                request = next(requests)
                while (query := await issued.get()) is not None:
                    tasks.create_task(self._answer(load, request, *query))
                    request = next(requests)  # built before it is due
        finally:
            if self._scenario.arrivals is Arrivals.POISSON:
                self._correct_due_times(load.calls)

    def _correct_due_times(self, calls: Sequence[Call]) -> None:
        """Moves due times back by how late each query was issued: it is due by its schedule."""
        for found in _SAMPLE.finditer(self._log("trace.json")):
            call = calls[int(found["number"])]
            assert call.due_s is not None
            call.due_s = max(0.0, call.due_s - int(found["late_ns"]) / (1000 * _NS_PER_MS))

    def _log(self, name: str) -> str:
        """Returns one of its logs, empty without it."""
        path = self._folder / f"mlperf_log_{name}"
        return path.read_text("utf-8") if path.is_file() else ""

    def _test(self, load: LoadGenerator, put: Callable[[tuple[int, float] | None], None]) -> None:
        """Puts each query when it is issued, and None at the end."""

        def issue(samples: Sequence[Any]) -> None:
            at_s = load.now()
            for each in samples:
                put((each.id, at_s))

        def loaded(samples: Sequence[int]) -> None:
            self.began_s = load.now()

        lg, count = self._lg, self._scenario.least_requests
        with ExitStack() as ends:
            ends.callback(put, None)
            output, logs = lg.LogOutputSettings(), lg.LogSettings()
            output.outdir = str(self._folder)
            logs.log_output, logs.enable_trace = output, True
            system = lg.ConstructSUT(issue, lambda: None)
            ends.callback(lg.DestroySUT, system)
            library = lg.ConstructQSL(count, count, loaded, lambda samples: None)
            ends.callback(lg.DestroyQSL, library)
            lg.StartTestWithLogSettings(system, library, self._settings(), logs)

    def _settings(self) -> Any:
        scenario, found = self._scenario, self._lg.TestSettings()
        found.scenario = getattr(self._lg.TestScenario, _SCENARIOS[scenario.arrivals])
        found.mode = self._lg.TestMode.PerformanceOnly
        found.use_token_latencies = True
        found.min_query_count = scenario.least_requests
        found.min_duration_ms = round(1000 * scenario.least_seconds)
        found.schedule_rng_seed = found.sample_index_rng_seed = scenario.seed
        # It makes its queries beforehand: enough of them for a single stream of this latency.
        found.single_stream_expected_latency_ns = 2_000_000
        found.server_target_qps = scenario.rate_per_s or 1.0
        found.ttft_latency = round(_NS_PER_MS * scenario.slo_ms.get("ttft", _NO_BOUND_MS))
        found.tpot_latency = round(_NS_PER_MS * scenario.slo_ms.get("tpot", _NO_BOUND_MS))
        # It makes a tenth more offline samples than its rate and duration need.
        margin_s = 1.1 * max(1.0, scenario.least_seconds)
        found.offline_expected_qps = scenario.least_requests / margin_s
        return found

    async def _answer(
        self, load: LoadGenerator, request: Request, sample: int, at_s: float
    ) -> None:
        """Sends a request for a query that was issued at that time, and reports its tokens."""
        lg, reported = self._lg, set[Any]()

        def report(complete: Any, tokens: int) -> None:
            if complete not in reported:
                reported.add(complete)
                complete([lg.QuerySampleResponse(sample, 0, 0, tokens)])

        def on_events(is_last: bool) -> None:
            report(lg.FirstTokenComplete, 1)
            if is_last and request.output_tokens is not None:
                report(lg.QuerySamplesComplete, request.output_tokens)

        due_s = None if self._scenario.arrivals is Arrivals.ONE_BY_ONE else at_s
        call = Call(due_s=due_s, free_s=at_s, on_events=on_events)
        try:
            await load.send(call, request)
        finally:
            report(lg.FirstTokenComplete, 1)
            report(lg.QuerySamplesComplete, call.output_tokens or 1)

    def compared(self, calls: Sequence[Call]) -> LoadgenDocument | None:
        """Returns its figures in its logs beside ours; None where it did not finish."""
        entries = (line.partition(":::MLLOG ")[2] for line in self._log("detail.txt").splitlines())
        logged = [json.loads(entry) for entry in entries if entry]
        found = {each["key"]: each["value"] for each in logged}
        if "result_validity" not in found:
            return None
        figures = {
            name: (stated / unit, ours)
            for key, name, unit, ours in self._figures(calls)
            if (stated := found.get(f"result_{key}"))
        }
        valid = found["result_validity"] == "VALID"
        return LoadgenDocument(folder=str(self._folder), valid=valid, figures=figures)

    def _figures(self, calls: Sequence[Call]) -> Iterator[tuple[str, str, float, float]]:
        """Yields our figures: the key there, the name, the unit there in ours, and the value."""
        due = (replace(each, due_s=each.free_s) if each.due_s is None else each for each in calls)
        served = [made for call in due if (made := call.served) is not None]
        if not served or len(served) < len(calls):
            return
        tokens = sum(each.output_tokens for each in served)
        per_s = tokens / (max(each.ended_s for each in served) - self.began_s)
        for key in ("tokens_per_second", "completed_tokens_per_second"):
            yield key, "tokens/s", 1, per_s
        for name, (mean_key, percentile_key) in _TIMES.items():
            known = (each.times_s[name.lower()] for each in served)
            times_ms = sorted(1000 * each for each in known if each is not None)
            if times_ms:
                yield mean_key, f"{name} mean, ms", _NS_PER_MS, fmean(times_ms)
            for p in PERCENTILES if times_ms else ():
                ours = times_ms[len(times_ms) * p // 100]
                yield percentile_key.format(p), f"{name} p{p}, ms", _NS_PER_MS, ours
