"""Idle rows beside a trace of interactive requests, on a real engine on this machine.

One engine (of the CPU build, on one core) and one sidecar with the Batch API. Each round sends the
same interactive requests, at LOAD times what this engine was just seen to do of them, in these
arms:

    none             without a batch
    learned          while a batch of ROWS rows runs
    1, 2, 4, 8, 16   the same, but that so many rows run at once, whatever the engine does
    bulk             without a batch, beside clients that always have bulk work
    bulk + ...       with one, beside them: learned, and by hand

Clients, sidecar and engine share the machine's cores: each line tells what they took of them, and
what a virtual machine's host gave to others. With `--paced`, steps take a GPU's time (`paced`), and
a line tells how many of them took longer: an arm is run again at once while those are too many, up
to TRIES times, and the one with the fewest counts, whatever it measured; each try that does not
count is printed. "occupancy" is the share of a paced engine's slots that had sequences.

At last a batch of `--rows` is served to its end, beside interactive requests for as long as that is
expected to take: its output has each row once.

How far the p95 of first tokens can be told from chance shows an interval of the ratio: of all
rounds, drawn anew (the bootstrap), the requests of each round with and without rows together.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from operator import add
from pathlib import Path
from random import Random
from typing import Final

from openai import OpenAI

from orch_sidecar.tools.drawing.texts import aligned
from orch_sidecar.tools.simulate.traffic import BulkClients, Replay
from orch_sidecar.tools.traces import read
from tests.benchmarks.idle import by_hand, paced, virtual
from tests.benchmarks.idle.virtual import SEED, Outcome, at_share
from tests.benchmarks.policy import rig, summary
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import closed_loop
from tests.benchmarks.policy.work import Request
from tests.benchmarks.proxy import processes
from tests.benchmarks.traffic.replay import replay
from tests.benchmarks.traffic.scenarios import bulk_requests, endless, schedule
from tests.benchmarks.traffic.ways import Way
from tests.engine import one_core
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE

ROWS: Final = 10_000
LOAD: Final = 0.5
WARM_S: Final = 5.0  # before each window, and for what is under way at its end
LEARNED: Final = "learned"
BESIDE: Final = "bulk"  # the arm without rows beside bulk clients
LATE: Final = 0.03  # of the steps of an arm: beyond it, the machine had not the time for it
TRIES: Final = 3
SAMPLES: Final = 2_000  # of the rounds, for an interval
CORES: Final = ("sidecar", "clients", "machine", "stolen")  # whose processor time is read
PACED: Final = ("steps/s", "late")


@dataclass(frozen=True, slots=True)
class Turn:
    """One arm in one round, or in several: the interactive answers that were due in its window,
    and what came in it: answers to bulk clients, rows, cuts, milliseconds of processor time.
    `slot_s`: the seconds of all slots in it."""

    own: list[Answer]
    seconds: float
    slot_s: float
    came: Counter[str]

    def __add__(self, other: Turn) -> Turn:
        return Turn(
            self.own + other.own,
            self.seconds + other.seconds,
            self.slot_s + other.slot_s,
            self.came + other.came,
        )

    @property
    def late(self) -> float:
        """The share of its steps that took longer than by the curve; 0 where none is paced."""
        return self.came["late"] / max(1, self.came["steps"])

    @property
    def outcome(self) -> Outcome:
        ttft = sorted(found[0] for each in self.own if (found := summary.ttft_ms(each)))
        tpot = sorted(
            1000 * ((each.last_s or 0.0) - (each.first_s or 0.0)) / (each.tokens - 1)
            for each in self.own
            if each.complete and each.tokens > 1
        )
        return Outcome(
            *(at_share(ttft, 0.5), at_share(ttft, 0.95), at_share(tpot, 0.95)),
            sum(each.code is not None for each in self.own) / len(self.own),
            self.came["rows"] / self.seconds,
            self.came["bulk"] / self.seconds,
            self.came["cuts"] / max(1, self.came["rows"]),
            self.came["busy_ms"] / 1000 / self.slot_s if self.came["steps"] else None,
        )


@dataclass(frozen=True, slots=True)
class Rounds:
    """What all arms share. `file`: the id of the rows. `many`: the file from which the sidecar
    has how many run at once. `bulk_clients`: per slot as in `virtual`. `pace`: of the engine.
    `whole`: a batch is served to its end."""

    engine: rig.Engine
    sidecar: rig.Sidecar
    client: OpenAI
    file: str
    many: Path
    requests: Sequence[Request]
    bulk_clients: int
    seconds: float
    slots: int
    pace: paced.Pace | None
    whole: bool = False

    def turn(self, arm: str, tries: int = TRIES) -> Turn:
        """Runs an arm, again while too many of its steps were late."""
        found: list[Turn] = []
        while len(found) < tries:
            found.append(self._turn(arm))
            if found[-1].late <= LATE:
                break
        best = min(found, key=lambda each: each.late)
        for each in found:
            if each is not best:
                print(f"{arm}, not counted: {100 * each.late:.1f} % of its steps were late")
        return best

    def _turn(self, arm: str) -> Turn:
        marks: list[Counter[str]] = []
        rows = arm.removeprefix(f"{BESIDE} + ")
        self.many.write_text(rows if rows.isdecimal() else "")
        has_rows = rows.isdecimal() or rows == LEARNED
        with self._batch() if has_rows else nullcontext(lambda: 0) as done:

            def mark() -> rig.Counters:
                marks.append(self._spent() + Counter(rows=done()))
                return self.engine.counters()

            found = replay(
                Way(target(self.sidecar.port)), self.requests, bulk_requests(),
                self.bulk_clients if arm.startswith(BESIDE) else 0, mark,
                warm_s=WARM_S, seconds=self.seconds, grace_s=WARM_S,
            )  # fmt: skip
        self.engine.rest()
        from_s, until_s = found.before.at_s, found.after.at_s
        own, bulk = (summary.of_class(found.answers, each) for each in (INTERACTIVE, BULK))
        ended = sum(each.complete and from_s <= (each.last_s or 0.0) < until_s for each in bulk)
        came = marks[1] - marks[0] + Counter(bulk=ended)
        seconds = until_s - from_s
        return Turn(summary.counted(own, from_s, until_s), seconds, self.slots * seconds, came)

    def _spent(self) -> Counter[str]:
        machine_s, stolen_s = processes.machine_cpu_s()
        steps, late, busy_ms = self.pace.counts() if self.pace is not None else (0, 0, 0)
        return Counter(
            steps=steps,
            late=late,
            busy_ms=busy_ms,
            cuts=int(self.sidecar.metric("orch_idle_cuts_total")),
            sidecar=round(1000 * processes.cpu_s(self.sidecar.pid)),
            clients=round(1000 * time.process_time()),
            machine=round(1000 * machine_s),
            stolen=round(1000 * stolen_s),
        )

    @contextmanager
    def _batch(self) -> Iterator[Callable[[], int]]:
        """Has a batch run until the end of the block. Yields what tells how many rows are done."""
        batches = self.client.batches
        name = batches.create(
            input_file_id=self.file, endpoint="/v1/completions", completion_window="24h"
        ).id

        def done() -> int:
            counts = batches.retrieve(name).request_counts
            return 0 if counts is None else counts.completed

        yield done
        while (status := batches.retrieve(name).status) not in ("cancelled", "completed"):
            if status == "in_progress" and not self.whole:
                batches.cancel(name)
            time.sleep(0.2)
        if self.whole:
            self._check(name)
        elif status == "completed":
            print(f"all {ROWS} rows were done before the window ended: rows/s are too few")

    def _check(self, name: str) -> None:
        """Says how a batch that is complete took, and what its output has."""
        batch = self.client.batches.retrieve(name)
        counts, took_s = batch.request_counts, (batch.completed_at or 0) - batch.created_at
        assert counts is not None
        assert batch.output_file_id is not None
        lines = self.client.files.content(batch.output_file_id).text.removesuffix("\n").split("\n")
        names = {json.loads(line)["custom_id"] for line in lines}
        print(
            f"{batch.status} in {took_s} s: {counts.completed} rows completed, {counts.failed} "
            f"failed, {len(lines)} lines of output with {len(names)} names"
        )


def target(port: int) -> Target:
    return Target(port, lambda asked: f"X-Orch-Class: {asked.service_class}\r\n".encode())


def written(path: Path, factor: float, rows: int) -> Path:
    """Writes so many rows: those of virtual time, their lengths times the factor of the trace's."""
    plain = virtual.ROWS
    lengths = replace(plain, prompt=factor * plain.prompt, output=factor * plain.output)
    drawn = BulkClients(ROWS, lengths, IDLE).requests(SEED)
    with path.open("wb") as file:
        for number, each in zip(range(rows), drawn, strict=False):
            body = Request(0.0, IDLE, each.prompt, each.output, number).body({"stream": False})
            head = b'"custom_id": "row-%d", "method": "POST", "url": "/v1/completions"' % number
            file.write(b'{%b, "body": %b}\n' % (head, body))
    return path


def measure(options: argparse.Namespace) -> None:
    """Runs the rounds, and prints a line for each arm of each, then for all rounds together."""
    trace = Replay(read(options.trace).scaled(lengths=options.length_factor))
    seconds, slots = options.seconds or 30.0, options.slots
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pace = paced.Pace(options.paced, Path(folder) / "steps") if options.paced else None
        arguments = paced.ARGUMENTS if pace else ()
        environ = one_core.ENVIRON | (pace.environ if pace else {})
        engine = stack.enter_context(
            rig.Engine("tiny", slots, *arguments, name="idle", environ=environ)
        )
        engine.wait()
        many = Path(folder) / "many"
        many.touch()
        with (
            rig.Sidecar(
                "cloud", engine.url, name="sidecar-idle",
                environ={"ORCH_BATCHES": str(Path(folder) / "batches")},
                program=(by_hand.__name__, str(many)),
            ) as sidecar,
            OpenAI(base_url=f"{sidecar.url}/v1", api_key="none") as client,
        ):  # fmt: skip
            loaded = closed_loop(
                target(sidecar.port), endless(trace), engine.counters,
                clients=2 * slots, warm_s=WARM_S, seconds=10.0,
            )  # fmt: skip
            engine.rest()
            rate = LOAD * loaded.after.since(loaded.before).tokens_per_s / trace.output
            print(f"{slots} slots, {rate:.2f} interactive requests/s, {LOAD:g} of what it does")

            def uploaded(rows: int) -> str:
                file = written(Path(folder) / "rows.jsonl", options.length_factor, rows)
                return str(client.files.create(file=file, purpose="batch").id)

            rounds = Rounds(
                engine, sidecar, client, uploaded(ROWS), many,
                schedule(trace, rate, WARM_S + seconds), 24 * slots // 64, seconds, slots, pace,
            )  # fmt: skip
            ways = (LEARNED, *options.by_hand.split(","))
            arms = ("none", *ways, BESIDE, *(f"{BESIDE} + {each}" for each in ways))
            every: dict[str, list[Turn]] = {arm: [] for arm in arms}
            for number in range(options.rounds):
                # Each arm is at every place in turn: what drifts is of no arm.
                first = number * len(arms) // options.rounds
                found = {arm: rounds.turn(arm) for arm in arms[first:] + arms[:first]}
                for arm in arms:
                    every[arm].append(found[arm])
                print(table(str(number + 1), {arm: [found[arm]] for arm in arms}), flush=True)
            print(table("all", every))
            print("\n".join(judged(every)), flush=True)
            takes_s = options.rows / together(every[LEARNED]).outcome.rows_per_s
            longer = replace(
                rounds, file=uploaded(options.rows), seconds=takes_s, whole=True,
                requests=schedule(trace, rate, WARM_S + takes_s),
            )  # fmt: skip
            whole = {arm: [longer.turn(arm, tries=1)] for arm in ("none", LEARNED)}
            print(table(f"{options.rows} rows", whole))


def without(arm: str) -> str:
    """Returns the arm that an arm is held against."""
    return BESIDE if arm.startswith(BESIDE) else "none"


def together(turns: Sequence[Turn]) -> Turn:
    return reduce(add, turns)


def interval(none: Sequence[Turn], turns: Sequence[Turn]) -> tuple[float, float]:
    """Returns the bounds within which 95 % of the samples of rounds have the ratio of the p95."""

    def own(turn: Turn) -> list[float]:
        return [found[0] for each in turn.own if (found := summary.ttft_ms(each))]

    random = Random(SEED)
    with_rows, plain, ratios = [own(each) for each in turns], [own(each) for each in none], []
    for _ in range(SAMPLES):
        drawn = random.choices(range(len(turns)), k=len(turns))
        p95 = (
            at_share(sorted(chain.from_iterable(of[each] for each in drawn)), 0.95)
            for of in (with_rows, plain)
        )
        ratios.append(next(p95) / next(p95))
    ratios.sort()
    return at_share(ratios, 0.025), at_share(ratios, 0.975)


def judged(every: dict[str, list[Turn]]) -> Iterator[str]:
    """Says which hand-set numbers do most within the bound, and how the learned ones compare."""
    of = {arm: together(turns).outcome for arm, turns in every.items()}
    for learned in (arm for arm in of if arm.endswith(LEARNED)):
        plain = without(learned)
        kept = [
            arm
            for arm in of
            if arm.split()[-1].isdecimal() and without(arm) == plain
            if of[arm].keeps_bound(of[plain])
        ]
        best = max(kept, key=lambda arm: of[arm].rows_per_s, default=None)
        if best is None:
            yield f"no number by hand keeps the bound over {plain}"
        else:
            ratio = of[learned].rows_per_s / of[best].rows_per_s
            yield f"{learned}: {ratio:.2f} of the rows/s of {best} by hand, the best in the bound"
    for arm, turns in every.items():
        if arm != without(arm):
            low, high = interval(every[without(arm)], turns)
            yield f"{arm}: p95 of first tokens over none from {low:.2f} to {high:.2f} (95 %)"


def table(name: str, found: dict[str, list[Turn]]) -> str:
    """Returns a line for each arm, held against the one without rows."""
    turns = {arm: together(each) for arm, each in found.items()}
    outcomes = {arm: turn.outcome for arm, turn in turns.items()}
    lines, head = [], ("round", "arm", *virtual.FIGURES, *CORES, *PACED)
    for arm, turn in turns.items():
        cores = (f"{turn.came[each] / 1000 / turn.seconds:.2f}" for each in CORES)
        cells = outcomes[arm].cells(outcomes[without(arm)])
        steps, late = turn.came["steps"], turn.came["late"]
        pace = (f"{steps / turn.seconds:.1f}", f"{100 * late / steps:.1f} %") if steps else ("", "")
        lines.append([name, arm, *cells, *cores, *pace])
    return "\n".join(aligned(head, lines, texts=2))
