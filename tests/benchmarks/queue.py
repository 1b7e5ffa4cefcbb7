"""What the queue of admission costs: an arrival, a departure, a report, by what is queued.

    python -m tests.benchmarks.queue [--events 2000] [--slots 64]

Virtual time, one process, no engine: the admission controller alone, all slots leased. Prints a
table of microseconds of CPU, the median and the 99th percentile over the events:

- arrival: a request comes, is queued, and gets its position and predicted start;
- departure: a request ends, is settled, and the next one is dispatched;
- report: the engine reports its state, and nothing can be dispatched;
- at once: arrival and end of a request that finds a free slot and no queue.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease, Queued, StepTime
from tests.orch_sidecar.admission.examples import class_rules, rules
from vllm_plugin.contracts.profile import ServiceClass

SIZES = ((10, 1), (10, 10), (1_000, 1), (1_000, 1_000), (10_000, 1), (10_000, 1_000))
KINDS = ("arrival", "departure", "report")


class Queue:
    """An admission whose slots are all leased, with so many requests queued."""

    def __init__(self, slots: int, queued: int, keys: int) -> None:
        of_class = class_rules(queue_capacity=1_000_000, max_wait_s=86_400.0)
        self.core = AdmissionController(rules(of_class), random.Random(1))
        self.report = EngineReport(
            "e1", slots, step_time=StepTime(8.0, 0.2, 0.9, slots), prefill_tokens_per_s=25_000.0
        )
        self.core.engine_reports(self.report, 0.0)
        self._random = random.Random(1)
        self._keys = [b"%032d" % number for number in range(keys)]
        self.now, self._serial = 1.0, 0
        self.leases: list[str] = []
        for _ in range(slots + queued):
            self.arrive()

    def request(self) -> tuple[str, AdmissionRequest]:
        self._serial += 1
        asked = AdmissionRequest(
            ServiceClass.INTERACTIVE,
            prompt_tokens=self._random.randint(10, 500),
            max_tokens=self._random.choice((None, 128, 512)),
            key=self._random.choice(self._keys),
        )
        return f"{self._serial}", asked

    def arrive(self) -> float:
        """Returns the microseconds of an arrival."""
        self.now += 0.001
        ticket, asked = self.request()
        began = time.thread_time_ns()
        outcome = self.core.arrive(ticket, asked, self.now)
        took = time.thread_time_ns() - began
        if isinstance(outcome, Lease):
            self.leases.append(ticket)
        else:
            assert isinstance(outcome, Queued), outcome
        return took / 1000

    def depart(self) -> float:
        """Returns the microseconds of a departure, after which another request is dispatched."""
        self.now += 0.001
        lease = self.leases.pop(self._random.randrange(len(self.leases)))
        tokens = self._random.randint(1, 128)
        began = time.thread_time_ns()
        decisions = self.core.release(lease, self.now, tokens)
        took = time.thread_time_ns() - began
        self.leases += [each.ticket for each in decisions if isinstance(each.outcome, Lease)]
        return took / 1000

    def reports(self) -> float:
        """Returns the microseconds of a report."""
        self.now += 0.001
        began = time.thread_time_ns()
        self.core.engine_reports(self.report, self.now)
        return (time.thread_time_ns() - began) / 1000

    def at_once(self) -> float:
        """Returns the microseconds of a request that does not wait, from arrival to end."""
        self.now += 0.001
        ticket, asked = self.request()
        began = time.thread_time_ns()
        self.core.arrive(ticket, asked, self.now)
        self.core.release(ticket, self.now, 50)
        return (time.thread_time_ns() - began) / 1000


def measured(queue: Queue, events: int) -> dict[str, list[float]]:
    """Keeps the queue at its size: each departure makes room for an arrival."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(events):
        found["departure"].append(queue.depart())
        found["arrival"].append(queue.arrive())
        found["report"].append(queue.reports())
    return found


def shown(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.1f} / {ordered[int(0.99 * len(ordered))]:.1f}"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2000, help="of each kind (2000)")
    parser.add_argument("--slots", type=int, default=64, help="all of them leased (64)")
    options = parser.parse_args()
    print(f"{options.slots} slots, us (median / p99) over {options.events} events of each kind\n")
    print("| queued | keys | arrival | departure | report |\n|---|---|---|---|---|")
    for queued, keys in SIZES:
        found = measured(Queue(options.slots, queued, keys), options.events)
        cells = " | ".join(shown(found[kind]) for kind in KINDS)
        print(f"| {queued:,} | {keys:,} | {cells} |".replace(",", " "))
    print("\n| at once, keys | arrival and end |\n|---|---|")
    for keys in (1, 1_000):
        queue = Queue(options.slots, 0, keys)
        free: Callable[[], None] = queue.core.queues.forget_running
        queue.core.ledger.begin_epoch("e1")
        free()
        values = [queue.at_once() for _ in range(10 * options.events)]
        print(f"| {keys:,} | {shown(values)} |".replace(",", " "))


if __name__ == "__main__":
    main()
