"""The same model measured three ways on the real engine, from runs and from their traces."""

from __future__ import annotations

import asyncio
import csv
import json
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.local.stack import Stack
from tests.engine import trace_file
from tests.engine.clients import ATTEMPTS, all_exported, body
from tests.engine.receivers import HttpReceiver
from tests.patience import HANG_S, READY_WITHIN_S

# Long enough to meet at these rates, on a quick machine, too; one by one they need not.
TOKENS = {"home": 16, "cloud": 48, "offline": 48}


def lengths(profile: str) -> tuple[str, ...]:
    return ("--input-tokens", "32", "--output-tokens", str(TOKENS[profile]))


# What is measured on each, and what then is not measured as it says.
MEASURED = {
    "home": ("single-stream", "--requests", "64", "--duration", "3"),
    "cloud": ("batched-online", "--rate", "25", "--requests", "80", "--duration", "3"),
    "offline": ("offline", "--requests", "512", "--duration", "0"),
}
# A start of its own, for what scripted engines and `orch up --check` show in less time.
PROFILES = ("home", "cloud", pytest.param("offline", marks=pytest.mark.long))
# Beside another client: so long that it is surely in it, and not begun again.
CROWDED = {"home": ("--requests", "20", "--duration", "5"), "offline": ()}
CROWDED_PROFILES = [profile for profile in PROFILES if profile != "cloud"]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command printed, the result that it wrote, if it did, and the path of its report."""

    printed: str
    result: dict[str, Any]
    report: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one profile: a measurement, its row, the row of its traces; and two that are
    none, beside another client and under a label that the engine does not have."""

    measured: Ran
    facts: Path
    row: dict[str, str]
    traced: dict[str, str]
    crowded: Ran | None
    crowded_facts: Path
    mislabelled: Ran


class Outcomes:
    """What came of each profile, measured when it is first asked for."""

    def __init__(
        self, request: pytest.FixtureRequest, folder: Path, found: dict[str, Outcome]
    ) -> None:
        self.folder = folder
        self._request = request
        self._found = found

    def __getitem__(self, profile: str) -> Outcome:
        if profile not in self._found:
            stack, receiver = self._started(profile)
            self._found[profile] = outcome(stack, receiver, profile, self.folder)
        return self._found[profile]

    def _started(self, profile: str) -> tuple[Stack, HttpReceiver]:
        fixture = self._request.getfixturevalue
        if profile == "home":
            return fixture("home"), fixture("grpc_receiver")
        return fixture(profile), fixture("receiver")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def found() -> dict[str, Outcome]:
    return {}


@pytest.fixture
def outcomes(request: pytest.FixtureRequest, folder: Path, found: dict[str, Outcome]) -> Outcomes:
    return Outcomes(request, folder, found)


def outcome(stack: Stack, receiver: HttpReceiver, profile: str, folder: Path) -> Outcome:
    words = MEASURED[profile]
    measured, facts = valid(stack, profile, folder)
    asyncio.run(all_exported(stack, receiver))
    traces = folder / f"{profile}.jsonl"
    trace_file.write(traces, receiver.exports)
    out = folder / f"traced-{profile}.csv"
    scenario = measured.result["id"]
    orch("facts", "from-otlp", str(traces), "--scenario", scenario, "--output", str(out))
    [traced] = rows_of(out)
    crowded_facts = folder / f"crowded-{profile}.csv"
    crowded = None
    if profile in CROWDED:
        with Other(stack):
            keep = ("--facts", str(crowded_facts))
            once = (*CROWDED[profile], "--restarts", "0")
            crowded = bench(stack, folder, *words, *once, *keep, code=1)
    other = "offline" if profile == "home" else "single-stream"
    mislabelled = bench(stack, folder, other, code=1)
    [row] = rows_of(facts)
    return Outcome(measured, facts, row, traced, crowded, crowded_facts, mislabelled)


def valid(stack: Stack, profile: str, folder: Path) -> tuple[Ran, Path]:
    """A measurement, and the table with its row. A machine that is shared stops the client at
    times, and so long that it is none."""
    table = folder / f"{profile}.csv"
    for _ in range(ATTEMPTS):
        ran = bench(stack, folder, *MEASURED[profile], "--facts", str(table), code=None)
        if table.exists():
            break
    assert table.exists(), ran.printed
    return ran, table


def orch(*words: str, code: int | None = 0) -> str:
    """Runs `orch`, which ends with this code (None: with any); returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "orch_sidecar", *words],
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done.stdout + done.stderr


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def bench(stack: Stack, folder: Path, *words: str, code: int | None = 0) -> Ran:
    output = folder / f"{time.monotonic_ns()}.json"
    where = ("--url", stack.url, "--output", str(output), "--report")
    printed = orch("bench", *words, *where, *lengths(stack.plan.profile), code=code)
    result = json.loads(output.read_text()) if output.exists() else {}
    return Ran(printed, result, output.with_suffix(".html"))


@pytest.mark.parametrize("profile", PROFILES)
def test_measurement_earns_its_label(outcomes: Outcomes, profile: str) -> None:
    found = outcomes[profile]
    result, row = found.measured.result, found.row
    label = MEASURED[profile][0].replace("-", "_")
    # Valid, but for the time that a publishable run takes.
    assert (result["status"], result["reasons"]) == ("preliminary", []), found.measured.printed
    assert result["measurement_type"] == row["measurement_type"] == label
    assert (row["input_tokens"], row["output_tokens"]) == ("32", str(TOKENS[profile]))
    assert row["precision"] == "FP32"
    assert row["gpu"].startswith("CPU (")
    assert (row["batch"] == "1") is (profile == "home")
    assert result["figures"]["output_tokens"] == TOKENS[profile] * result["counts"]["answered"]


@pytest.mark.parametrize("profile", PROFILES)
def test_report_shows_what_the_engine_did(outcomes: Outcomes, profile: str) -> None:
    found = outcomes[profile].measured
    page = found.report.read_text(encoding="utf-8")
    for text in (
        found.result["engine"]["gpu"], "preliminary", "Throughput", "Batch and queue",
        "Decode steps by batch", f"{found.result['batches']['steps']} steps",
    ):  # fmt: skip
        assert text in page, text
    assert ("Time to first token" in page) is (profile != "offline")


@pytest.mark.parametrize("profile", PROFILES)
def test_traces_of_a_measurement_make_the_same_row(outcomes: Outcomes, profile: str) -> None:
    found = outcomes[profile]
    row, traced = found.row, found.traced
    for name in ("model_id", "gpu", "gpu_count", "precision", "measurement_type", "batch"):
        assert traced[name] == row[name], name
    assert (traced["input_tokens"], traced["output_tokens"]) == ("32", str(TOKENS[profile]))
    answered = found.measured.result["counts"]["answered"]
    assert f"requests={answered};" in traced["scenario_notes"]
    assert_throughputs_agree(found, within=0.03)


def assert_throughputs_agree(found: Outcome, within: float) -> None:
    """Within so much, and what the client stood still at the ends of its window."""
    row, traced = (float(each["throughput_tokens_per_sec"]) for each in (found.row, found.traced))
    result = found.measured.result
    still_s = 2 * result["client"]["loop_lag_s"]["most"]
    assert traced == pytest.approx(row, rel=within + still_s / result["figures"]["window_s"])


@pytest.mark.parametrize("profile", PROFILES)
def test_run_and_its_traces_meet_in_one_set(outcomes: Outcomes, profile: str) -> None:
    facts = outcomes[profile].facts
    traced = facts.with_name(f"traced-{profile}.csv")
    compared = json.loads(orch("facts", "compare", str(facts), str(traced), "--json"))
    [of_set] = compared["sets"]
    [way] = of_set["ways"]
    assert [point["rows"] for point in way["points"]] == [1]
    assert ["the same run" in each["why"] for each in compared["left_out"]] == [True]


@pytest.mark.long
@pytest.mark.parametrize("profile", PROFILES)
def test_figures_of_a_run_and_of_its_traces_agree(outcomes: Outcomes, profile: str) -> None:
    assert_throughputs_agree(outcomes[profile], within=0.002)


@pytest.mark.parametrize(
    "profiles",
    [("home", "cloud"), pytest.param(("home", "cloud", "offline"), marks=pytest.mark.long)],
    ids=len,
)
def test_table_of_all_passes_and_keeps_them_apart(
    outcomes: Outcomes, profiles: tuple[str, ...], tmp_path: Path
) -> None:
    facts = tmp_path / "tps_model_gpu.csv"
    tables = [str(outcomes[profile].facts) for profile in profiles]
    orch("facts", "merge", *tables, "--output", str(facts))
    labels = [row["measurement_type"] for row in rows_of(facts)]
    assert labels == [MEASURED[profile][0].replace("-", "_") for profile in profiles]
    orch("facts", "check", str(facts))
    compared = json.loads(orch("facts", "compare", str(facts), "--json"))
    ways = [way["measurement_type"] for each in compared["sets"] for way in each["ways"]]
    assert sorted(ways) == sorted(labels), "nothing is averaged over labels"
    single, *_, most = (int(outcomes[profile].row["batch"]) for profile in profiles)
    assert single == 1 < most


@pytest.mark.parametrize("profile", CROWDED_PROFILES)
def test_another_client_in_the_window_makes_it_invalid(outcomes: Outcomes, profile: str) -> None:
    found = outcomes[profile]
    assert found.crowded is not None
    assert found.crowded.result["status"] == "invalid"
    reasons = found.crowded.result["reasons"]
    assert any("the engine served other clients" in reason for reason in reasons), reasons
    assert not found.crowded_facts.exists(), "what is invalid makes no row"


@pytest.mark.parametrize("profile", PROFILES)
def test_label_that_the_engine_does_not_have_is_refused(outcomes: Outcomes, profile: str) -> None:
    found = outcomes[profile].mislabelled
    label = "offline" if profile == "home" else "single_stream"
    assert f"a measurement of it cannot be {label}" in found.printed
    assert found.result == {}, "nothing was run"


class Other:
    """Another client of the same sidecar, who asks now and then: at times the engine is idle."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        document = json.dumps(body("completions", 4, stream=False)).encode()
        request = urllib.request.Request(
            f"{self._stack.url}/v1/completions", document, {"Content-Type": "application/json"}
        )
        while not self._over.wait(3.0):
            with urllib.request.urlopen(request, timeout=HANG_S) as response:
                response.read()
