"""Judges whether a measurement earned its label: what the engine did, against what the label means.

Pure. A label is never replaced by another one: a measurement that does not meet its label is
invalid, and the reasons are given. `thresholds` has every number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from orch_sidecar.tools.facts.labels import intervals, thresholds
from orch_sidecar.tools.facts.labels.observation import Observation, States
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.contradictions import load_rules
from orch_sidecar.tools.facts.tables.row import MEANINGS, Label
from vllm_plugin.contracts.lease_protocol import timestamp


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


class Objection(NamedTuple):
    """One reason, and what was observed."""

    reason: Reason
    detail: str


# To which a file's date is rounded.
_DATE_S: Final = 1.0
# The offsets of time zones from UTC are multiples of a quarter of an hour, up to 14 hours.
_ZONES_S: Final = range(-14 * 3600, 14 * 3600 + 1, 900)

# A sweep ignores this reason at one client, where it is expected.
NEVER_BATCHED: Final = "no step decoded more than one sequence: nothing was batched"

# A reason, whether it applies, and what was observed.
Rule = tuple[Reason, object, str]


def objections_of(*rules: Rule) -> list[Objection]:
    """Returns those that apply."""
    return [Objection(reason, detail) for reason, applies, detail in rules if applies]


def judge(seen: Observation) -> list[Objection]:
    """Returns the reasons why the label was not earned, empty if it was."""
    stale, engine = objections_of(*_stale(seen)), None
    if seen.states is not None:
        engine = seen.states.before
        if changed := objections_of(*_changes(seen.states)):
            return [*changed, *stale]  # the counts of the two states cannot be compared
    rules = (*_others(seen), *_steps(seen), *_arrivals(seen), *_tokens(seen))
    return [*objections_of(*_unable(seen.label, seen.slots, engine), *rules), *stale]


def cannot_earn(label: Label, engine: Snapshot) -> list[Objection]:
    """Returns the reasons why this engine cannot earn that label, empty if it can."""
    return objections_of(*_unable(label, frozenset({engine.slots_total}), engine))


def _unable(label: Label, slots: frozenset[int], engine: Snapshot | None) -> tuple[Rule, ...]:
    single, has, other = label is Label.SINGLE_STREAM, ", ".join(map(str, slots)), ""
    if engine is not None and engine.measurement_type != label:
        other = f"{engine.pool!r} (profile {engine.profile}) is {engine.measurement_type}"
    return (
        (Reason.UNKNOWN_LABEL, label not in MEANINGS, f"{label} is not the label of a measurement"),
        (Reason.WRONG_LABEL, other, f"the pool {other}: a measurement of it cannot be {label}"),
        (Reason.WRONG_SLOTS, slots != {1} if single else min(slots) < 2,
         f"{label} needs an engine with {'one slot' if single else 'more than one slot'}, this one "
         f"has {has}"),
    )  # fmt: skip


def _steps(seen: Observation) -> tuple[Rule, ...]:
    """Compares the label with the engine's steps, and with whose sequences were in them.

    A request for several sequences is still one: batches of users need several requests at a time.
    """
    label, largest = seen.label, seen.batches.largest
    single = label is Label.SINGLE_STREAM
    alone = not single and largest > 1 and seen.alone
    together = not single and largest > 1 and not alone
    full = largest >= seen.target or seen.limited_by
    return (
        (Reason.NO_STEPS, not largest, "the engine reports no decode step in the window"),
        (Reason.BATCH_ABOVE_ONE, single and largest > 1,
         f"the engine decoded up to {largest} sequences in one step: {label} decodes one at a "
         "time"),
        (Reason.NEVER_BATCHED, not single and largest == 1, NEVER_BATCHED),
        (Reason.ONE_BY_ONE, alone,
         f"the requests came one by one: the batch of up to {largest} sequences was that of a "
         f"single request, and {label} needs several requests at a time"),
        (Reason.MOSTLY_ALONE, together and seen.shared < thresholds.SHARED_STEPS,
         f"{seen.shared:.0%} of the decode steps, or of their time, had sequences of several "
         f"requests, and {label} needs {thresholds.SHARED_STEPS:.0%}: a request that is alone is "
         "not batched, however many sequences it has; send more of them at a time"),
        (Reason.BATCH_NOT_FULL, together and label is Label.OFFLINE and not full,
         f"the engine decoded at most {largest} sequences in one step, but slots and requests "
         f"allow more: offline needs a batch of {seen.target}"),
    )  # fmt: skip


def _arrivals(seen: Observation) -> tuple[Rule, ...]:
    """Compares the label with how the requests came: an engine batches what it has."""
    single, lacking, stated = seen.label is Label.SINGLE_STREAM, 0.0, ""
    if (load := seen.load) is not None and (single or not load.one_by_one):  # `_steps` says that
        known, least = {"arrivals": load.arrivals, "at_once": load.clients}, seen.target
        rules = load_rules(seen.label, load.arrivals, load.clients, least)
        stated = "; ".join(f"{name}={known[name]} {rule}" for name, wrong, rule in rules if wrong)
    if seen.label is Label.OFFLINE and seen.in_flight and seen.target:
        lacking = intervals.missing(seen.in_flight, seen.supply_target)
    overlaps = intervals.overlapping(seen.in_engine, seen.clock_slack) if single else 0
    return (
        (Reason.CONTRADICTION, stated, stated),
        (Reason.OVERLAP, overlaps,
         f"{overlaps} of {len(seen.in_engine)} sequences arrived while another was in the engine: "
         "requests come one after the other"),
        (Reason.TRICKLE, lacking > thresholds.LACKING,
         f"{lacking:.0%} of {seen.supply_target:g} sequences were missing before the last request "
         "arrived: send all at once, or keep as many in flight"),
    )  # fmt: skip


def _others(seen: Observation) -> tuple[Rule, ...]:
    """Compares the requests that the engine accepted with those that were sent."""
    accepted, ends = seen.accepted, () if seen.states is None else seen.states.ends
    return (
        *((Reason.OTHER_TRAFFIC, state.in_engine,
           f"sequences in the engine {when} the measurement: {state.foreign} foreign, "
           f"{state.leased} of its own sidecar") for when, state in ends),
        (Reason.UNTRACED_REQUESTS, accepted is not None and accepted > seen.sent,
         f"the engine accepted {accepted} requests in the window, but this measurement sent "
         f"{seen.sent}: the engine served other clients, too"),
        (Reason.OTHER_TRAFFIC, accepted is not None and accepted < seen.answered,
         f"{seen.answered} requests were answered, but the engine accepted {accepted}: answers "
         "were shared (coalesced), or came from another engine"),
    )  # fmt: skip


def _tokens(seen: Observation) -> tuple[Rule, ...]:
    """Compares the tokens with those that the engine counted, and the sequences of all decode steps
    with those that its own can have been in.

    A prompt was read or found in the cache, once for each sequence of its request. Each sequence of
    a step generates at least one token; requests of others that began before the window show so.
    """
    states, prompts, answers = seen.states, seen.input_tokens, seen.output_tokens
    generated = None if states is None else states.grew("generated_tokens")
    read = None if states is None else states.grew("prefilled_tokens")
    hits = 0 if states is None else states.grew("prefix_hits")
    there = None if read is None else (read + hits) * (1 + thresholds.CHUNK_ENDS) + seen.sent
    most = answers if seen.in_steps is None else seen.in_steps
    decoded = round(seen.batches.steps * seen.batches.mean)
    return (
        (Reason.CONTRADICTION, None not in (generated, answers) and generated != answers,
         f"the engine generated {generated} tokens in the window, but this measurement states "
         f"{answers}"),
        (Reason.CONTRADICTION, there is not None and prompts is not None and prompts > there,
         f"the engine read {read} prompt tokens in the window and found {hits} in its cache, but "
         f"this measurement states {prompts}"),
        (Reason.UNTRACED_SEQUENCES, most is not None and decoded > most,
         f"the engine decoded at least {decoded} tokens in the window, of which at most {most} are "
         "of this measurement: the engine served other clients, or its states are of another run"),
    )  # fmt: skip


def _stale(seen: Observation) -> Iterator[Rule]:
    """Objects to saved states that are not those from before and after the run, by every clock.

    States and run come from different files, which somebody put together. The engine counts its
    own busy seconds: a run cannot be shorter than the work that the engine did in it.
    """
    if (run := seen.run) is None or (states := seen.states) is None:
        return
    saved_s, again_s = (state.observed_at.timestamp() for _, state in states.ends)
    window_s, busy_s, apart_s = run.totals.window_s, states.grew("busy_s"), again_s - saved_s
    began_s, ended_s, end_s = run.began_at_s, run.ended_at_s, run.local_end_s
    first_s, read_s = run.first_s, states.grew("prefill_s") or 0.0
    if states.after.preemptions_total > states.before.preemptions_total:
        read_s = 0.0  # prompts were read again, after their first tokens
    saved, again = map(timestamp, (saved_s, again_s))
    slack_s = thresholds.CLOCKS_AGREE_S + _DATE_S
    rules = (
        *((state.state != "ready", f"the engine was {state.state} {when} the run: it must be ready")
          for when, state in states.ends),
        *((state.age_ms > 1000 * thresholds.MOST_AGE_S,
           f"the state {when} the run was {state.age_ms} ms old when it was saved: at most "
           f"{1000 * thresholds.MOST_AGE_S:g} ms are allowed") for when, state in states.ends),
        (window_s > apart_s + thresholds.CLOCKS_AGREE_S,
         f"the states are {apart_s:.1f} s apart, but the run took {window_s:.1f} s: one of them "
         "was saved during the run, or they are those of another run"),
        (busy_s > window_s * (1 + thresholds.BUSY_SHARE) + thresholds.BUSY_S,
         f"the engine was busy for {busy_s:.1f} s, but the run took {window_s:.1f} s: its times "
         "are wrong, or the states are those of another run"),
        (first_s is not None and first_s < read_s * thresholds.FIRST_TOKENS,
         f"the first tokens took {first_s or 0.0:.3g} s together, but their prompts took the "
         f"engine {read_s:.3g} s: these times are wrong, or the states are those of another run"),
        (began_s is not None and saved_s > began_s + thresholds.CLOCKS_AGREE_S,
         f"the state before the run is from {saved}, the run began at {timestamp(began_s or 0)}"),
        (ended_s is not None and again_s < ended_s - thresholds.CLOCKS_AGREE_S,
         f"the state after the run is from {again}, the run ended at {timestamp(ended_s or 0)}"),
        (end_s is not None and not any(
            saved_s + window_s - slack_s <= end_s - zone_s <= again_s + slack_s
            for zone_s in _ZONES_S),
         f"the run ended at {timestamp(end_s or 0)[:-1]} in some time zone, which in none is "
         f"between the states, from {saved} and {again}"),
    )  # fmt: skip
    yield from ((Reason.OTHER_TIME, applies, detail) for applies, detail in rules)


def _changes(states: States) -> Iterator[Rule]:
    before, after = states.before, states.after
    for detail, names in _FIXED.items():
        changed = any(getattr(before, name) != getattr(after, name) for name in names)
        yield Reason.ENGINE_CHANGED, changed, detail
    older = after.requests_total < before.requests_total
    yield Reason.ENGINE_CHANGED, older, "the second state is older than the first"


# What two states of one engine have in common, by what is said where they have not.
_FIXED: Final[Mapping[str, Sequence[str]]] = {
    "the engine was restarted": ("epoch",),
    "the profile changed": ("profile", "measurement_type"),
    "the engine's model or its configuration changed": ("conditions", "weights"),
    "the number of slots changed": ("slots_total",),
    "the sidecar's configuration was reloaded": ("generation",),
    "what the engine says about itself changed": (
        *("engine", "engine_version", "pool", "gpu", "gpu_count", "precision"),
    ),
}
