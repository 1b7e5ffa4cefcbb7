"""Files of other tools that did not earn their label: recorded ones, altered, and the engine's
states beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from orch_sidecar.tools.facts.evidence.imported import read_run, to_row
from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot
from orch_sidecar.tools.facts.tables.row import Row
from tests.orch_sidecar.tools.facts import snapshots
from tests.orch_sidecar.tools.facts.cheats import Cheat, Gate, said_of
from tests.orch_sidecar.tools.facts.imports import document, run_in


@dataclass
class Files:
    """A run's file, and the engine's states from before and after it."""

    file: Any
    before: Any
    after: Any
    model_id: str | None = None


Change = Callable[[Files], object]


def files(name: str) -> Files:
    return Files(*(deepcopy(document(f"{name}{end}")) for end in ("", "_before", "_after")))


def outcome(name: str, given: Files) -> Row | str:
    found = run_in(name, given.file)
    if isinstance(found, str):
        return found
    known = States(parse_snapshot(given.before), parse_snapshot(given.after))
    return read_run(name, lambda: to_row(found, known, Source("run-1", given.model_id)))


def changed(**fields: Any) -> Change:
    """Fields of the run's file."""
    return lambda given: given.file.update(fields)


def began(**fields: Any) -> Change:
    """Fields of the state before the run."""
    return lambda given: given.before["engines"][0].update(fields)


def ended(**fields: Any) -> Change:
    """Fields of the state after the run."""
    return lambda given: given.after["engines"][0].update(fields)


def all_of(*changes: Change) -> Change:
    return lambda given: [change(given) for change in changes]


def on(**fields: Any) -> Change:
    """Fields of both states."""
    return all_of(began(**fields), ended(**fields))


def one(name: str, value: Callable[[Any], float]) -> Change:
    """One value of a list in a file of vLLM."""
    return lambda given: given.file[name].__setitem__(3, value(given.file))


def timings(name: str, value: Callable[[Any], float]) -> Change:
    """One time of the first request in a report of GuideLLM."""

    def change(given: Files) -> None:
        found = given.file["benchmarks"][0]["requests"]["successful"][0]["info"]["timings"]
        found[name] = value(found)

    return change


def strategy(given: Files) -> Any:
    """How requests came, in a report of GuideLLM."""
    return given.file["benchmarks"][0]["config"]["strategy"]


def swapped(given: Files) -> None:
    given.before, given.after = given.after, given.before


def with_a_fitting_sum(file: Any) -> None:
    file["output_throughput"] = file["total_output_tokens"] / file["duration"]


TIMES = ("start_times", "ttfts", "latencies", "queue_times")
LISTS = (*TIMES, "input_lens", "output_lens")


def half_cut(given: Files) -> None:
    """The file has the first half of the requests, with a sum that fits."""
    file = given.file
    half = file["completed"] // 2
    file |= {"completed": half, **{name: file[name][:half] for name in LISTS}}
    for which in ("input", "output"):
        file[f"total_{which}_tokens"] = sum(file[f"{which}_lens"])
    with_a_fitting_sum(file)


def counted(given: Files) -> None:
    """The engine counted the tokens that the file states."""
    for at, state in ((0, began), (1, ended)):
        generated, read = (
            at * given.file[f"total_{which}_tokens"] for which in ("output", "input")
        )
        state(generated_tokens_total=generated, prefill={"tokens": read})(given)


def more(which: str, by: int) -> Change:
    """Multiplies one kind of tokens, of which the engine counted as many as there were."""

    def change(given: Files) -> None:
        counted(given)
        given.file[f"total_{which}_tokens"] *= by
        given.file[f"{which}_lens"] = [by * tokens for tokens in given.file[f"{which}_lens"]]
        with_a_fitting_sum(given.file)

    return change


def scaled(by: float, *names: str) -> Change:
    """Lists of a file of vLLM, and figures of a summary of AIPerf."""

    def change(given: Files) -> None:
        for name in names:
            found = given.file[name]
            if isinstance(found, list):
                given.file[name] = [value * by for value in found]
            else:
                found |= {key: value * by for key, value in found.items() if key != "unit"}

    return change


def in_a_loop(given: Files) -> None:
    """Two clients, each of which sends its next request when its answer has ended, as a Poisson
    process of their rate, in a file of vLLM."""
    file, starts = given.file, [0.0, 0.0]
    for latency_s in file["latencies"][:-2]:
        starts.append(starts[-2] + latency_s + 0.001)
    rate_per_s = (len(starts) - 1) / (max(starts) - min(starts))
    queue_times = [0.0] * len(starts)
    file |= {"start_times": starts, "queue_times": queue_times, "request_rate": rate_per_s}


CONDITIONS: Final = snapshots.CONDITIONS | {"quantization": "awq"}
CLOUD, HOME, GUIDE = "vllm_bench_cloud", "vllm_bench_home", "guidellm_cloud"
OFFLINE = all_of(
    on(measurement_type="offline", profile="offline"),
    changed(measurement_type="offline", request_rate="inf"),
)
WITHIN = "2026-11-21T21:35:10.000Z"
FIRST, LAST = "first_token_iteration", "last_token_iteration"
IMPORTS: Final[tuple[tuple[str, str, Change, str], ...]] = (
    ("another engine", CLOUD, ended(epoch="x"), "the engine was restarted"),
    ("states swapped", CLOUD, swapped, "the second state is older"),
    ("one state twice", CLOUD, lambda given: setattr(given, "after", given.before),
     "but the engine accepted 0"),
    ("half of the requests cut", CLOUD, half_cut, "the engine served other clients"),
    ("cloud as single", CLOUD, changed(measurement_type="single_stream"), "must be one_by_one"),
    ("cloud as offline", CLOUD, changed(measurement_type="offline"), "must be at_once or"),
    ("home as batched", HOME, changed(measurement_type="batched_online"),
     "cannot be batched_online"),
    ("inconsistent figures", CLOUD, changed(output_throughput=9999.0), "tokens over the duration"),
    ("a ramp-up", CLOUD, changed(ramp_up_strategy="linear"), "the rate must be constant"),
    ("foreign sequences", CLOUD, on(foreign=1), "1 foreign, 0 of its own"),
    ("offline from a trickle", CLOUD, all_of(OFFLINE, changed(max_concurrency=2)),
     "at_once=2 must be at least 8"),
    ("offline with empty slots", CLOUD, all_of(OFFLINE, changed(max_concurrency=None)),
     "offline needs a batch of 8"),
    ("one by one, n=4", CLOUD, changed(request_rate="inf", max_concurrency=1), "came one by one"),
    ("a model that is not served", CLOUD,
     lambda given: setattr(given, "model_id", "meta-llama/Llama-3.1-70B-Instruct"),
     "the engine serves small"),
    ("a stale state", CLOUD, ended(age_ms=60_000), "60000 ms old"),
    ("a state of no engine", CLOUD, ended(state="stale"), "was stale after"),
    ("a first state from within the run", GUIDE, began(observed_at=WITHIN), "the run began at"),
    ("a last state from within the run", GUIDE, ended(observed_at=WITHIN), "the run ended at"),
    ("states too close together", CLOUD, ended(observed_at="2026-11-21T21:34:20.000Z"),
     "s apart, but the run"),
    ("a tenth of the duration", "aiperf_cloud",
     scaled(0.1, "benchmark_duration", "request_latency"), "the engine was busy for"),
    ("twice the tokens", CLOUD, more("output", 2), "tokens in the window, but this measurement"),
    ("eight times the prompts", CLOUD, more("input", 8), "prompt tokens in the window and"),
    ("a hundredth of TTFT", "aiperf_cloud", scaled(0.01, "time_to_first_token"),
     "the first tokens took 0.0"),
    ("a hundredth of TTFT", CLOUD, scaled(0.01, "ttfts"), "the first tokens took 0.038 s"),
    ("ten times the rate", CLOUD, changed(request_rate=30.0), "rate_per_s is 30: 45 requests came"),
    ("ten times the rate", GUIDE, lambda given: strategy(given).update(rate=30.0),
     "rate_per_s is 30: 45 requests came"),
    ("all at once", CLOUD, changed(request_rate="inf"), "arrivals is at_once, the requests came"),
    ("fewer clients", CLOUD, changed(request_rate="inf", max_concurrency=4),
     "at_once is 4, 5 requests were in flight"),
    ("more clients", CLOUD, changed(request_rate="inf", max_concurrency=64),
     "at_once is 64, at most 5 requests were in flight"),
    ("a closed loop as a Poisson process", CLOUD, in_a_loop, "requests came as answers ended"),
    # Beyond the ways that are known to have been tried:
    ("every request a tenth as long", CLOUD, scaled(0.1, *TIMES), "the engine was busy for 13.2 s"),
    ("the file of another day", CLOUD, changed(date="20261123-213438"), "in some time zone"),
    ("the file of another minute", CLOUD, changed(date="20261121-214038"), "in some time zone"),
    ("an engine that was reconfigured", CLOUD, ended(conditions=CONDITIONS),
     "its configuration changed"),
    ("other weights", CLOUD, ended(weights="/models/other"), "model or its"),
    ("a first token after the last", CLOUD, one("ttfts", lambda file: file["latencies"][3] + 1.0),
     "from 0 to the latency"),
    ("a first token after the last", GUIDE, timings(FIRST, lambda times: times[LAST] + 1.0),
     "to the last token at"),
    ("a first token before its request", GUIDE,
     timings(FIRST, lambda times: times["request_start"] - 1.0),
     "when it was sent, to the last token"),
    ("a first token at no time", GUIDE, timings(LAST, lambda times: 3e13),
     "should be less than 100000000000"),
    ("a wait of less than nothing", CLOUD, one("queue_times", lambda file: -1.0),
     "greater than or equal to 0"),
    ("drafts of an engine that makes none", CLOUD, changed(spec_decode_acceptance_length=2.5),
     "must be absent with speculative=none"),
)  # fmt: skip


def said(name: str, change: Change) -> Mapping[Gate, str]:
    given = files(name)
    change(given)
    found = outcome(name, given)
    return {Gate.IMPORT: found} if isinstance(found, str) else said_of(found)


CHEATS = [
    Cheat(f"{title} ({name})", {Gate.IMPORT: rule}, partial(said, name, change))
    for title, name, change, rule in IMPORTS
]
