"""Judges whether a measurement earned its label: what the engine did, against what the label means.

Pure. A label is never replaced by another one: a measurement that does not meet its label is
invalid, and the reasons are given. `thresholds` has every number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from orch_sidecar.tools.facts.labels import intervals
from orch_sidecar.tools.facts.labels.observation import Observation, RunTimes, States
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.labels.thresholds import (
    BUSY_S,
    BUSY_SHARE,
    CHUNK_ENDS,
    CLOCKS_AGREE_S,
    LACKING,
    MOST_AGE_S,
    SHARED_STEPS,
    UNEXPLAINED_WAIT,
)
from orch_sidecar.tools.facts.tables.contradictions import load_contradictions
from orch_sidecar.tools.facts.tables.row import Label


class Reason(StrEnum):
    """Why a measurement makes no row."""

    UNKNOWN_LABEL = "unknown_label"
    NOTHING_SERVED = "nothing_served"
    NOT_ENDED = "not_ended"
    ENGINE_NOT_TRACED = "engine_not_traced"
    NOT_COUNTED = "not_counted"  # the engine's spans lack its counters or settings
    NO_STEPS = "no_steps"
    CONTRADICTION = "contradiction"
    WRONG_LABEL = "wrong_label"
    WRONG_SLOTS = "wrong_slots"
    COALESCED = "coalesced"
    DIVIDED = "divided"
    BATCH_ABOVE_ONE = "batch_above_one"
    OVERLAP = "overlap"
    NEVER_BATCHED = "never_batched"
    ONE_BY_ONE = "one_by_one"
    MOSTLY_ALONE = "mostly_alone"
    TRICKLE = "trickle"  # offline requires all the work at once, or slots that are never free
    BATCH_NOT_FULL = "batch_not_full"
    ONLINE_TRAFFIC = "online_traffic"
    OTHER_TRAFFIC = "other_traffic"
    UNSEEN_TRAFFIC = "unseen_traffic"
    UNTRACED_REQUESTS = "untraced_requests"
    UNTRACED_SEQUENCES = "untraced_sequences"
    ENGINE_CHANGED = "engine_changed"
    OTHER_TIME = "other_time"  # saved states are not those of before and after the run
    NOT_SAID = "not_said"  # the model is known by a path only
    UNSOUND_ROW = "unsound_row"


@dataclass(frozen=True, slots=True)
class Objection:
    """One reason, and what was observed."""

    reason: Reason
    detail: str


# To which a file's date is rounded.
_DATE_S: Final = 1.0
# Offsets of time zones from UTC are multiples of a quarter of an hour, up to 14 hours.
_ZONE_S: Final = 900.0
_MOST_ZONES: Final = 56

# A sweep ignores this reason at one client, where it is expected.
NEVER_BATCHED: Final = "no step decoded more than one sequence: nothing was batched"

_Found = Iterator[Objection]


def judge(seen: Observation) -> list[Objection]:
    """Returns the reasons why the label was not earned, empty if it was."""
    if seen.states is not None and (changed := [*_changes(seen.states)]):
        return [*changed, *_stale(seen)]  # the counts of the two states cannot be compared
    engine = None if seen.states is None else seen.states.before
    return [
        *(_slots(seen.label, seen.slots) if engine is None else cannot_earn(seen.label, engine)),
        *_others(seen),
        *_steps(seen),
        *_arrivals(seen),
        *(() if seen.states is None else _tokens(seen, seen.states)),
        *_decoded(seen),
        *_beside(seen),
        *_stale(seen),
    ]


def cannot_earn(label: Label, engine: Snapshot) -> list[Objection]:
    """Returns the reasons why this engine cannot earn that label, empty if it can."""
    found = [*_slots(label, frozenset({engine.slots_total}))]
    if engine.measurement_type != label:
        detail = (
            f"the pool {engine.pool!r} (profile {engine.profile}) is {engine.measurement_type}: "
            f"a measurement of it cannot be {label}"
        )
        found.insert(0, Objection(Reason.WRONG_LABEL, detail))
    return found


def _slots(label: Label, slots: frozenset[int]) -> _Found:
    single = label is Label.SINGLE_STREAM
    if slots != {1} if single else min(slots) < 2:
        detail = f"{label} needs an engine with {'one slot' if single else 'more than one slot'}"
        yield Objection(Reason.WRONG_SLOTS, f"{detail}, this one has {', '.join(map(str, slots))}")


def _steps(seen: Observation) -> _Found:
    """Compares the label with the engine's steps, and with whose sequences were in them.

    A request for several sequences is still one: batches of users need several requests at a time.
    """
    batches, label = seen.batches, seen.label
    if not batches.largest:
        yield Objection(Reason.NO_STEPS, "the engine reports no decode step in the window")
        return
    if label is Label.SINGLE_STREAM:
        if batches.largest > 1:
            detail = f"the engine decoded up to {batches.largest} sequences in one step"
            yield Objection(Reason.BATCH_ABOVE_ONE, f"{detail}: {label} decodes one at a time")
        return
    if batches.largest == 1:
        yield Objection(Reason.NEVER_BATCHED, NEVER_BATCHED)
    elif seen.one_by_one or (seen.in_flight and intervals.share_together(seen.in_flight) == 0):
        detail = (
            f"the requests came one by one: the batch of up to {batches.largest} sequences was "
            f"that of a single request, and {label} needs several requests at a time"
        )
        yield Objection(Reason.ONE_BY_ONE, detail)
    else:
        yield from _alone(seen)
        if label is Label.OFFLINE and batches.largest < seen.target and not seen.limited_by:
            detail = (
                f"the engine decoded at most {batches.largest} sequences in one step, but slots "
                f"and requests allow more: offline needs a batch of {seen.target}"
            )
            yield Objection(Reason.BATCH_NOT_FULL, detail)


def _alone(seen: Observation) -> _Found:
    """Objects to a batched label of steps that mostly had the sequences of one request."""
    together = seen.running or seen.in_flight
    # Where most steps read prompts, those that only decode are few, and of the last sequences.
    counted = 1.0 if seen.limited_by == "prompts" else seen.batches.shared
    shared = min(counted, intervals.share_together(together) if together else 1.0)
    if shared < SHARED_STEPS:
        detail = (
            f"{shared:.0%} of the decode steps, or of their time, had sequences of several "
            f"requests, and {seen.label} needs {SHARED_STEPS:.0%}: a request that is alone is not "
            "batched, however many sequences it has; send more of them at a time"
        )
        yield Objection(Reason.MOSTLY_ALONE, detail)


def _arrivals(seen: Observation) -> _Found:
    """Compares the label with how the requests came: an engine batches what it has."""
    single = seen.label is Label.SINGLE_STREAM
    if seen.arrivals is not None and (single or not seen.one_by_one):  # `_steps` says that
        load = {"arrivals": seen.arrivals, "at_once": seen.at_once}
        rules = load_contradictions(seen.label, seen.arrivals, seen.at_once, at_least=seen.target)
        if stated := [f"{name}={load[name]} {rule}" for name, rule in rules]:
            yield Objection(Reason.CONTRADICTION, "; ".join(stated))
    if single:
        if overlaps := intervals.overlapping(seen.in_engine, seen.clock_slack):
            of = f"{overlaps} of {len(seen.in_engine)} sequences"
            detail = "arrived while another was in the engine: requests come one after the other"
            yield Objection(Reason.OVERLAP, f"{of} {detail}")
    elif seen.label is Label.OFFLINE and seen.in_flight and seen.target:
        lacking = intervals.missing(seen.in_flight, seen.supply_target)
        if lacking > LACKING:
            detail = (
                f"{lacking:.0%} of {seen.supply_target:g} sequences were missing before the last "
                f"request arrived: send all at once, or keep as many in flight"
            )
            yield Objection(Reason.TRICKLE, detail)


def _others(seen: Observation) -> _Found:
    """Compares the requests that the engine accepted with those that were sent."""
    own, accepted = seen, seen.accepted
    ends = () if seen.states is None else seen.states.ends
    for when, state in ends:
        for what, count in (
            ("foreign sequences", state.foreign),
            ("sequences still", state.leased),
        ):
            if count:
                detail = f"{what} in the engine {when} the measurement: {count}"
                yield Objection(Reason.OTHER_TRAFFIC, detail)
    if accepted is not None and accepted > own.sent:
        detail = (
            f"the engine accepted {accepted} requests in the window, but this measurement "
            f"sent {own.sent}: the engine served other clients, too"
        )
        yield Objection(Reason.UNTRACED_REQUESTS, detail)
    if accepted is not None and accepted < own.answered:
        detail = (
            f"{own.answered} requests were answered, but the engine accepted {accepted}: "
            "answers were shared (coalesced), or came from another engine"
        )
        yield Objection(Reason.OTHER_TRAFFIC, detail)


def _beside(seen: Observation) -> _Found:
    """Objects to what spans show beside the answers."""
    found = seen.beside
    online = found.online if seen.label is Label.OFFLINE else 0
    for count, reason, text in (
        (found.shared, Reason.COALESCED,
         "requests shared a generation, the tokens of which would count several times"),
        (found.divided, Reason.DIVIDED,
         "requests ran in parts: their times are those of several requests to the engine"),
        (online, Reason.ONLINE_TRAFFIC, "requests of class interactive"),
        (found.foreign, Reason.OTHER_TRAFFIC, "foreign sequences in the same engine at the time"),
        (found.unseen, Reason.UNSEEN_TRAFFIC,
         "sequences that shared a step with untraced ones (tracing must not sample)"),
    ):  # fmt: skip
        if count:
            yield Objection(reason, f"{text}: {count}")
    if found.engines > 1:
        detail = f"{found.engines} engines served it: it was restarted, or there are several"
        yield Objection(Reason.ENGINE_CHANGED, detail)
    if seen.label is Label.SINGLE_STREAM and found.waited_s > UNEXPLAINED_WAIT * found.took_s:
        detail = (
            f"requests waited {found.waited_s:.3f} s for admission while none that is traced was "
            f"dispatched, and took {found.took_s:.3f} s: others had the slot"
        )
        yield Objection(Reason.OTHER_TRAFFIC, detail)


def _tokens(seen: Observation, states: States) -> _Found:
    """Compares the tokens with those that the engine counted.

    A prompt was read or found in the cache, once for each sequence of its request.
    """
    own, generated, read = seen, states.generated_tokens, states.prefilled_tokens
    if None not in (generated, own.output_tokens) and generated != own.output_tokens:
        detail = f"the engine generated {generated} tokens in the window, but this measurement"
        yield Objection(Reason.CONTRADICTION, f"{detail} states {own.output_tokens}")
    if read is not None and own.input_tokens is not None:
        found = states.prefix_hits
        if own.input_tokens > (read + found) * (1 + CHUNK_ENDS) + own.sent:
            detail = (
                f"the engine read {read} prompt tokens in the window and found {found} in its "
                f"cache, but this measurement states {own.input_tokens}"
            )
            yield Objection(Reason.CONTRADICTION, detail)


def _decoded(seen: Observation) -> _Found:
    """Compares the sequences of all decode steps with those that its own can have been in.

    Each sequence of a step generates at least one token; requests of others that began before the
    window show so.
    """
    most = seen.output_tokens if seen.in_steps is None else seen.in_steps
    decoded = round(seen.batches.steps * seen.batches.mean)
    if most is not None and decoded > most:
        detail = (
            f"the engine decoded at least {decoded} tokens in the window, of which at most {most} "
            "are of this measurement: the engine served other clients, or its states are of "
            "another run"
        )
        yield Objection(Reason.UNTRACED_SEQUENCES, detail)


def _stale(seen: Observation) -> _Found:
    """Objects to saved states that are not those from before and after the run, by every clock.

    States and run come from different files, which somebody put together. The engine counts its
    own busy seconds: a run cannot be shorter than the work that the engine did in it.
    """
    if seen.times is not None and seen.states is not None:
        for detail in _of_another_time(seen.times, seen.states):
            yield Objection(Reason.OTHER_TIME, detail)


def _of_another_time(run: RunTimes, states: States) -> Iterator[str]:
    for when, state in states.ends:
        if state.state != "ready":
            yield f"the engine was {state.state} {when} the run: it must be ready"
        if state.age_ms > 1000 * MOST_AGE_S:
            yield (
                f"the state {when} the run was {state.age_ms} ms old when it was saved: at most "
                f"{1000 * MOST_AGE_S:g} ms are allowed"
            )
    saved_s, saved_again_s = states.before.observed_at_s, states.after.observed_at_s
    window_s, busy_s = run.window_s, states.busy_s
    if window_s > saved_again_s - saved_s + CLOCKS_AGREE_S:
        yield (
            f"the states are {saved_again_s - saved_s:.1f} s apart, but the run took "
            f"{window_s:.1f} s: one of them was saved during the run, or they are those of another "
            "run"
        )
    if busy_s > window_s * (1 + BUSY_SHARE) + BUSY_S:
        yield (
            f"the engine was busy for {busy_s:.1f} s, but the run took {window_s:.1f} s: its "
            "times are wrong, or the states are those of another run"
        )
    if run.began_at_s is not None and saved_s > run.began_at_s + CLOCKS_AGREE_S:
        at = f"{_utc(saved_s)}, the run began at {_utc(run.began_at_s)}"
        yield f"the state before the run is from {at}"
    if run.ended_at_s is not None and saved_again_s < run.ended_at_s - CLOCKS_AGREE_S:
        at = f"{_utc(saved_again_s)}, the run ended at {_utc(run.ended_at_s)}"
        yield f"the state after the run is from {at}"
    if run.local_end_s is None:
        return
    slack_s = CLOCKS_AGREE_S + _DATE_S
    first_s, last_s = saved_s + window_s - slack_s, saved_again_s + slack_s
    zones = (run.local_end_s - _ZONE_S * zone for zone in range(-_MOST_ZONES, _MOST_ZONES + 1))
    if not any(first_s <= end_s <= last_s for end_s in zones):
        local = f"{datetime.fromtimestamp(run.local_end_s, UTC):%Y-%m-%d %H:%M:%S}"
        yield (
            f"the run ended at {local} in some time zone, which in none is between the states, "
            f"from {_utc(saved_s)} and {_utc(saved_again_s)}"
        )


def _utc(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _changes(states: States) -> _Found:
    before, after = states.before, states.after
    for names, detail in _FIXED.items():
        if any(getattr(before, name) != getattr(after, name) for name in names):
            yield Objection(Reason.ENGINE_CHANGED, detail)
    if after.requests_total < before.requests_total:
        yield Objection(Reason.ENGINE_CHANGED, "the second state is older than the first")


# What two states of one engine have in common.
_FIXED: Final[Mapping[tuple[str, ...], str]] = {
    ("epoch",): "the engine was restarted",
    ("profile", "measurement_type"): "the profile changed",
    ("conditions", "weights"): "the engine's model or its configuration changed",
    ("slots_total",): "the number of slots changed",
    ("generation",): "the sidecar's configuration was reloaded",
    (
        "engine",
        "engine_version",
        "pool",
        "gpu",
        "gpu_count",
        "precision",
    ): "what the engine states of itself changed",
}
