"""Serves the same requests one by one, interleaved on one slot, and batched.

One by one: a client sends its next request when it has the answer. Interleaved: as many clients as
requests, at once, against one slot, so that the sidecar puts one after the other into the engine.
Batched: the same clients against a slot for each. The latency is from sending to the last token.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from statistics import median
from typing import Final, NamedTuple

from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import in_turn, together
from tests.benchmarks.policy.record import Record, table, verdict
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from vllm_plugin.contracts.profile import ServiceClass

SIZES: Final = (1, 2, 4, 8, 16)
PROMPT, OUTPUT = 16, 32
# "5 to 7 times the throughput of serial requests" for batches of about ten.
TIMES: Final = 5.0
# Clients against one slot gain nothing over one by one but the gap between two requests.
INTERLEAVED_MOST: Final = 1.1


class Served(NamedTuple):
    """What a way of serving gave for one number of requests."""

    requests_per_s: float
    tokens_per_s: float
    latency_s: float  # median


def compare(engine: Engine, rounds: int, record: Record) -> None:
    """Prints the table and judges it."""
    found: dict[str, dict[int, list[Served]]] = {
        way: {size: [] for size in SIZES} for way in ("one by one", "interleaved", "batched")
    }
    source = (work.Request(0.0, ServiceClass.BULK, PROMPT, OUTPUT, key) for key in count(10**6))
    for number in range(rounds):
        for size in SIZES[:: -1 if number % 2 else 1]:
            for way, served in _round(engine, size, source).items():
                found[way][size].append(served)
    middle = {
        way: {size: _median(served) for size, served in by_size.items()}
        for way, by_size in found.items()
    }
    rows = [
        [str(size)]
        + [
            f"{middle[way][size][figure]:.{digits}f}"
            for figure, digits in _FIGURES
            for way in found
        ]
        for size in SIZES
    ]
    short = ("1 by 1", "interl.", "batched")
    head = ["requests", *(f"{name}, {way}" for name in _NAMES for way in short)]
    print(table(head, rows))
    record.results["side_by_side"] = found
    tokens = {way: by_size[16].tokens_per_s for way, by_size in middle.items()}
    record.judge(
        verdict(
            "16 batched over one by one, tokens/s", tokens["batched"] / tokens["one by one"], TIMES
        ),
        verdict(
            "16 interleaved over one by one, tokens/s",
            tokens["interleaved"] / tokens["one by one"],
            1 / INTERLEAVED_MOST,
        ),
    )


_NAMES: Final = ("requests/s", "tokens/s", "latency s")
_FIGURES: Final = ((0, 2), (1, 0), (2, 2))


def _round(engine: Engine, size: int, source: Iterator[work.Request]) -> dict[str, Served]:
    def requests() -> list[work.Request]:
        return [next(source) for _ in range(size)]

    found: dict[str, Served] = {}
    for slots in dict.fromkeys((1, size)):
        path = profiles.write(rig.logs(), f"batch-{slots}", profiles.batch_of(slots))
        with Sidecar(path, engine.url) as sidecar:
            target = Target(sidecar.port, lambda request: b"X-Orch-Class: bulk\r\n")
            in_turn([(target, next(source))])  # opens the connection to the engine
            if slots == 1:
                answers = in_turn([(target, request) for request in requests()])
                found["one by one"] = _served(answers, sum(map(_latency_s, answers)))
                answers = together(target, requests())
                found["interleaved"] = _served(answers, max(map(_latency_s, answers)))
            if slots == size:
                answers = together(target, requests())
                found["batched"] = _served(answers, max(map(_latency_s, answers)))
        engine.rest()
    return found


def _latency_s(answer: Answer) -> float:
    if not answer.complete or answer.last_s is None:
        raise NotServing(f"a request was not answered: {answer.code}")
    return answer.last_s


def _served(answers: list[Answer], seconds: float) -> Served:
    tokens = sum(answer.tokens for answer in answers)
    latency_s = median(map(_latency_s, answers))
    return Served(len(answers) / seconds, tokens / seconds, latency_s)


def _median(served: list[Served]) -> Served:
    return Served(*(median(each[at] for each in served) for at in range(3)))
