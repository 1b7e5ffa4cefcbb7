"""Holds what is known of a measurement, in one form for all sources. The judge reads nothing else.

Pure. What a source does not contain is empty or None here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orch_sidecar.tools.facts.labels import thresholds
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Totals
from orch_sidecar.tools.facts.labels.intervals import Interval, most, share_together
from orch_sidecar.tools.facts.labels.load import Load, Notes
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.row import Label


@dataclass(frozen=True, slots=True)
class Batches:
    """The decode-only steps of a window: how many, their largest and their mean batch (sequences).

    `shared`: the share of them with two or more sequences, 1 where it is not known. `ran`: how
    many had each batch, empty where that is not known.
    """

    steps: int
    largest: int
    mean: float
    shared: float = 1.0
    ran: Mapping[int, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class States:
    """Two states of one engine, idle both times: before the first request, after the last."""

    before: Snapshot
    after: Snapshot

    @property
    def ends(self) -> tuple[tuple[str, Snapshot], ...]:
        """Each with the word for when it was."""
        return ("before", self.before), ("after", self.after)

    def grew(self, counter: str) -> Any:
        """Returns by how much a counter of the engine grew; None where it is not reported."""
        before, after = (getattr(state, counter) for _, state in self.ends)
        return None if None in (before, after) else after - before

    @property
    def prefix_hit_ratio(self) -> float:
        """The share of the looked-up prompt tokens that the prefix cache had; 0 if none was."""
        queries: int = self.grew("prefix_queries")
        return self.grew("prefix_hits") / queries if queries > 0 else 0.0

    @property
    def batches(self) -> Batches:
        """What the decode steps in between had; those that also prefilled prompts do not count."""
        ran = Counter({batch: count for batch, (count, _) in self.after.steps_by_batch.items()})
        ran -= Counter({batch: count for batch, (count, _) in self.before.steps_by_batch.items()})
        if not (steps := ran.total()):
            return Batches(0, 0, 0.0)
        mean = sum(batch * count for batch, count in ran.items()) / steps
        return Batches(steps, max(ran), mean, (steps - ran[1]) / steps, dict(ran))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as its client measured it, or a sidecar. Notes are by their names.

    `model`: the name that it is served by. `totals`: of the complete answers, in a window from the
    first arrival to the last end, unless the note `window_is` states otherwise. `served`: these
    answers, none where their times are not known. `claim`: the label that was asked for, which is
    not trusted. `load`: how requests came, None where that does not show; `named`: notes of what
    made it. `own_ms`: other latencies than those of `totals`. `failed`: requests without a complete
    answer. `outcomes`: notes of what else became of requests; `doubts`: of what limits the trust.
    By who made it, to be judged by states that somebody saved: `began_at_s`, `ended_at_s`, first
    arrival and last end as Unix times; `local_end_s`, the end by the clock of an unknown time zone,
    as if it were UTC's; `first_tokens_s`, the times to the first token of all requests, together.
    """

    model: str
    totals: Totals
    served: Sequence[CompletedRequest] = ()
    claim: Label | None = None
    load: Load | None = None
    named: Notes = field(default_factory=dict)
    own_ms: Mapping[str, float] | None = None
    failed: int = 0
    outcomes: Notes = field(default_factory=dict)
    doubts: Notes = field(default_factory=dict)
    began_at_s: float | None = None
    ended_at_s: float | None = None
    local_end_s: float | None = None
    first_tokens_s: float | None = None

    @property
    def first_s(self) -> float | None:
        """As `first_tokens_s`, of `served` where that has all; of failed requests nobody knows."""
        each_s = [each.ttft_s for each in self.served if each.ttft_s is not None]
        known = sum(each_s) if len(each_s) == self.totals.requests else self.first_tokens_s
        return None if self.failed else known

    @property
    def clients(self) -> int | None:
        """The limit of concurrent requests, None where there is none, or it is not known."""
        return None if self.load is None else self.load.clients

    @property
    def latency_ms(self) -> Mapping[str, float]:
        """Its latencies by the names of the notes."""
        return self.totals.latency_ms if self.own_ms is None else self.own_ms

    @property
    def overlap(self) -> int:
        """The largest number of answers that were generated at once, 0 where that is not known. One
        of a single token ends with it, and counts nevertheless."""
        at_once = max(min(1, len(self.served)), most(each.generation for each in self.served))
        return 1 if self.clients == 1 else at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A measurement.

    `slots`: of its engines. At most `sent` of its requests reached the engine, at least `answered`
    did. `output_tokens`: of all of them; None where some are unknown, as those of a failed request.
    `input_tokens`: of the answered ones, None where unknown. `in_steps`: how often, at most, its
    sequences were in a decode step; None: once for each of the tokens. `accepted`: the requests
    that its engines accepted in the window, None where that is not known. `in_flight`: its requests
    from arrival to end, as the client measured them, else the sidecar, else the engine; `running`:
    the same from the slot to the last token, by the engine; `in_engine`: its sequences from their
    arrival there. Each of one clock, whose readings may be wrong by `clock_slack`. `load`: as the
    client states it, None if it does not. `dispatched`, `waiting`, `queued`: its sequences while
    admission had let them to the engine, while they waited for that, and while they waited in the
    engine; empty where that is not known. `run`: None where its states were read during
    it, or signed.
    """

    label: Label
    slots: frozenset[int]
    batches: Batches
    sent: int
    answered: int
    output_tokens: int | None = None
    input_tokens: int | None = None
    in_steps: int | None = None
    states: States | None = None
    accepted: int | None = None
    in_flight: Sequence[Interval] = ()
    running: Sequence[Interval] = ()
    in_engine: Sequence[Interval] = ()
    clock_slack: float = 0.0
    load: Load | None = None
    dispatched: Sequence[Interval] = ()
    waiting: Sequence[Interval] = ()
    queued: Sequence[Interval] = ()
    run: Run | None = None

    @property
    def alone(self) -> bool:
        """Whether no two of its requests overlapped, as far as that is known: who sent them states
        that each waited for the answer before, or their times show it."""
        stated = self.load is not None and self.load.one_by_one
        return stated or (bool(self.in_flight) and not share_together(self.in_flight))

    @property
    def shared(self) -> float:
        """The share of the decode steps, or of their time, in which it had several requests."""
        together = self.running or self.in_flight
        # Where most steps read prompts, those that only decode are few, and of the last sequences.
        counted = 1.0 if self.limited_by == "prompts" else self.batches.shared
        return min(counted, share_together(together) if together else 1.0)

    @property
    def target(self) -> int:
        """The sequences that an offline run has to have in the engine at once: as many as it has
        slots, or all of them."""
        return min(*self.slots, sum(each.sequences for each in self.in_flight) or self.answered)

    @property
    def supply_target(self) -> float:
        """As `target`, but no more than the cache holds: what must be there, if not in a step."""
        cache = None if self.states is None else self.states.before.kv_tokens_total
        tokens = (self.input_tokens, self.output_tokens)
        if cache is None or None in tokens or not any(tokens):
            return self.target
        each = sum(filter(None, tokens)) / max(1, self.answered)  # at its end
        return max(1.0, min(self.target, cache / each))

    @property
    def limited_by(self) -> str | None:
        """What kept the batch below the target: memory, which shows in preemptions or in a cache
        that holds fewer sequences of this length, or prompts so long, or answers so short, that
        the engine read prompts in most steps. Without states: where sequences waited."""
        if self.states is None:
            return self._waited_in
        before, after = self.states.before, self.states.after
        if after.preemptions_total > before.preemptions_total:
            return "memory"
        if self.output_tokens is not None:
            later_tokens = self.output_tokens - self.answered
            decoded = self.batches.steps * self.batches.mean
            if decoded < later_tokens * thresholds.DECODED_SHARE:
                return "prompts"
            if self.supply_target < self.target:
                return "memory"
        return None

    @property
    def _waited_in(self) -> str | None:
        """Where sequences waited while the batch, which had all that were not queued, was below the
        target: in the engine although it had a slot for them, or in admission while fewer than the
        slots were dispatched. Whether that was for memory, this does not show."""
        largest, target = self.batches.largest, self.target
        at_once, queued = most(self.dispatched), most(self.queued)
        if largest >= target or largest + queued < min(at_once, target):
            return None
        if at_once >= target:
            return "engine" if queued else None
        return "admission" if most((*self.dispatched, *self.waiting)) >= target else None


def observed(label: Label, states: States, **more: Any) -> Observation:
    """Returns what two states of an engine, and the client, show of a measurement."""
    return Observation(
        label=label,
        slots=frozenset({states.before.slots_total}),
        batches=states.batches,
        states=states,
        accepted=states.grew("requests_total"),
        **more,
    )
