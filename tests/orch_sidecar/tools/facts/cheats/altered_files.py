"""What is done to the recorded files of a run, and to the engine's states beside them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from orch_sidecar.tools.facts.evidence.imported import (
    Rejection,
    read_run,
    to_row,
)
from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot
from orch_sidecar.tools.facts.tables.row import Row
from tests.orch_sidecar.tools.facts.imports import document, run_in


@dataclass
class Files:
    """A run's file, and the engine's states from before and after it."""

    file: Any
    before: Any
    after: Any
    model_id: str | None = None

    def states(self, **fields: Any) -> None:
        for each in (self.before, self.after):
            each["engines"][0] |= fields

    def ended(self, **fields: Any) -> None:
        self.after["engines"][0] |= fields


def files(name: str) -> Files:
    return Files(*(deepcopy(document(f"{name}{end}")) for end in ("", "_before", "_after")))


def outcome(name: str, given: Files) -> Row | Rejection:
    found = run_in(name, given.file)
    if isinstance(found, Rejection):
        return found
    known = States(parse_snapshot(given.before), parse_snapshot(given.after))
    return read_run(lambda: to_row(found, known, Source("run-1", given.model_id)))


def swapped(given: Files) -> None:
    given.before, given.after = given.after, given.before


def same_state_twice(given: Files) -> None:
    given.after = given.before


def half_cut(given: Files) -> None:
    """The file has the first half of the requests, with sums that fit."""
    file = given.file
    half = file["completed"] // 2
    for name in ("input_lens", "output_lens", "ttfts", "latencies", "start_times", "queue_times"):
        file[name] = file[name][:half]
    tokens, prompts = sum(file["output_lens"]), sum(file["input_lens"])
    file |= {"completed": half, "total_output_tokens": tokens, "total_input_tokens": prompts}
    file["output_throughput"] = tokens / file["duration"]
    file["total_token_throughput"] = (tokens + prompts) / file["duration"]


def counted(given: Files) -> None:
    """The engine counted the tokens that the file states."""
    for at, state in ((0, given.before), (1, given.after)):
        generated, read = (
            at * given.file[f"total_{which}_tokens"] for which in ("output", "input")
        )
        state["engines"][0] |= {"generated_tokens_total": generated, "prefill": {"tokens": read}}


def twice_the_tokens(given: Files) -> None:
    counted(given)
    _multiply(given.file, "output", 2)


def eight_times_the_prompts(given: Files) -> None:
    counted(given)
    _multiply(given.file, "input", 8)


def _multiply(file: Any, which: str, by: int) -> None:
    """Multiplies one kind of tokens, with sums and rates that fit."""
    file[f"total_{which}_tokens"] *= by
    file[f"{which}_lens"] = [by * tokens for tokens in file[f"{which}_lens"]]
    tokens, prompts = file["total_output_tokens"], file["total_input_tokens"]
    file["output_throughput"] = tokens / file["duration"]
    file["total_token_throughput"] = (tokens + prompts) / file["duration"]


def changed(**fields: Any) -> Callable[[Files], None]:
    """Fields of the run's file."""
    return lambda given: given.file.update(fields)


def offline_pool(given: Files) -> None:
    given.states(measurement_type="offline", profile="offline")
    given.file |= {"measurement_type": "offline", "request_rate": "inf"}


def offline_trickle(given: Files) -> None:
    offline_pool(given)
    given.file["max_concurrency"] = 2


def offline_burst_that_never_filled_the_slots(given: Files) -> None:
    offline_pool(given)
    given.file["max_concurrency"] = None


def one_by_one_for_several_sequences(given: Files) -> None:
    given.file |= {"request_rate": "inf", "max_concurrency": 1}


def another_model(given: Files) -> None:
    given.model_id = "meta-llama/Llama-3.1-70B-Instruct"


def shortened(given: Files) -> None:
    """A tenth of the duration, in a file without details."""
    file = given.file
    for name in ("start_times", "ttfts", "latencies", "queue_times", "input_lens", "output_lens"):
        file[name] = None
    file["duration"] /= 10
    for name in ("output_throughput", "total_token_throughput"):
        file[name] *= 10


def compressed(given: Files) -> None:
    """Every request a tenth as long, in a file with details."""
    file = given.file
    for name in ("start_times", "ttfts", "latencies", "queue_times"):
        file[name] = [value / 10 for value in file[name]]


def saved_during_the_run(given: Files) -> None:
    given.before["engines"][0]["observed_at"] = "2026-11-21T21:35:10.000Z"


def saved_before_the_end(given: Files) -> None:
    given.after["engines"][0]["observed_at"] = "2026-11-21T21:35:10.000Z"


def longer_than_the_states_are_apart(given: Files) -> None:
    given.after["engines"][0]["observed_at"] = "2026-11-21T21:34:20.000Z"


def first_token_after_the_last(given: Files) -> None:
    given.file["ttfts"][3] = given.file["latencies"][3] + 1.0


def _timings(given: Files) -> Any:
    return given.file["benchmarks"][0]["requests"]["successful"][0]["info"]["timings"]


def first_token_after_the_last_in_guidellm(given: Files) -> None:
    timings = _timings(given)
    timings["first_token_iteration"] = timings["last_token_iteration"] + 1.0


def first_token_before_its_request_in_guidellm(given: Files) -> None:
    timings = _timings(given)
    timings["first_token_iteration"] = timings["request_start"] - 1.0


def first_token_in_a_million_years_in_guidellm(given: Files) -> None:
    _timings(given)["last_token_iteration"] = 3e13


def waited_less_than_nothing(given: Files) -> None:
    given.file["queue_times"][3] = -1.0
