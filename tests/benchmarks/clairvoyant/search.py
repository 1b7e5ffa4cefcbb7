"""Searches for the plan with the most interactive requests in time.

- Earliest deadline first, shortest first and orders between them, which refuse what would be late,
  with several bounds on the size of a request and on the slots lent to bulk ones.
- From the best of these, hill climbing window by window: a random request is no longer served, is
  served again, or changes places with another.
- Of a handful of requests, every order of every subset.

A plan is valid if the engine makes TOKENS of the tokens that it makes without admission.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Final

from orch_sidecar.tools.simulate.compare import Policy, Scenario, course_of
from orch_sidecar.tools.simulate.run import Course
from tests.benchmarks.clairvoyant.plan import Plan, Terms
from tests.benchmarks.clairvoyant.trial import Found, Stage
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass

# The share of the tokens that every plan has to make.
TOKENS: Final = 0.97
# Up to so many requests, all orders of all subsets are tried: 1 957 plans.
EXACT: Final = 6
# Requests of a window, and the plans tried in each.
WINDOW: Final = 200
TRIES: Final = 60

# What greedy plans are made of. The share of the slots that is not lent; for how long before an
# arrival a slot is kept, in SLOs; the shares of the requests, by size, that are served at most;
# and the seconds by which a request may be overtaken for each second of its own size, from earliest
# deadline first to shortest first.
_KEPT: Final = (0.0, 0.03, 0.07, 0.12, 0.25, 0.5, 1.0)
_AHEAD: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_SIZES: Final = (1.0, 0.97, 0.92, 0.85, 0.75, 0.6)
_WEIGHTS: Final = (0.0, 1.0, 10.0, 1e6)
# How often lending and order are chosen in turn.
_PASSES: Final = 2
# A plan is run again without the requests that it served too late, so many times.
_REPAIRS: Final = 2
# Places by which a request may move.
_NEAR: Final = 20

_Ranks = Mapping[int, float]


def best_course(scenario: Scenario, rules: AdmissionRules) -> Course:
    """Returns the run of the best plan that was found.

    Raises ValueError for rules without an SLO of interactive requests.
    """
    slo_ms = rules.of(ServiceClass.INTERACTIVE).ttft_p95_ms
    if slo_ms is None:
        raise ValueError("a clairvoyant policy needs an SLO: give --slo-ms or --slo-factor")
    terms = Terms(scenario.shape, slo_ms / 1000, rules.bulk_share)
    direct = course_of(Policy.DIRECT, scenario, rules)
    least_tokens = TOKENS * direct.tokens
    stage = Stage(terms, scenario.arrivals(), scenario.seconds, scenario.seed, scenario.clients)
    best, usual = _greedy(stage, least_tokens)
    if len(stage.interactive) <= EXACT:
        plans = _all_orders(list(stage.interactive), best.plan.bulk_most)
        best = max([best, *map(stage.run, plans)], key=lambda each: each.value(least_tokens))
    else:
        random = Random(scenario.seed)
        best = _climb(stage, best, usual, least_tokens, random)
    return best.course


def _greedy(stage: Stage, least_tokens: float) -> tuple[Found, _Ranks]:
    """Chooses in turn the slots to lend, and the order and the largest request that is served.

    Returns the best plan's run, and the ranks of all requests in its order.
    """
    interactive, sizes = stage.interactive, stage.sizes()
    ordered = sorted(sizes.values())
    usual: _Ranks = {number: each.at for number, each in interactive.items()}
    best = _repaired(stage, Plan(usual, stage.terms.shape.slots), least_tokens)
    for _ in range(_PASSES):
        for plan in _lending(stage, best):
            best = _better(best, _repaired(stage, plan, least_tokens), least_tokens)
        for weight in _WEIGHTS if ordered else ():
            every = {n: each.at + weight * sizes[n] for n, each in interactive.items()}
            for share in _SIZES:
                most = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
                served = {number: rank for number, rank in every.items() if sizes[number] <= most}
                found = _repaired(stage, replace(best.plan, ranks=served), least_tokens)
                if _better(best, found, least_tokens) is found:
                    best, usual = found, every
    return best, usual


def _lending(stage: Stage, best: Found) -> Iterator[Plan]:
    """Yields plans that serve the same requests and lend other slots to bulk ones."""
    slots, slo_s = stage.terms.shape.slots, stage.terms.slo_s
    kept = [round((1 - share) * slots) for share in _KEPT]
    for most in kept:
        for turn in (False, True):
            for hope in (False, True):
                yield replace(best.plan, bulk_most=most, in_turn=turn, hopeful=hope)
    for each in _AHEAD:
        for most in (slots, *kept[1:3]):
            for turn in (False, True):
                yield Plan(best.plan.ranks, most, each * slo_s, in_turn=turn, hopeful=True)


def _better(best: Found, found: Found, least_tokens: float) -> Found:
    return found if found.value(least_tokens) > best.value(least_tokens) else best


def _repaired(stage: Stage, plan: Plan, least_tokens: float) -> Found:
    """Runs a plan, and again without what it served too late."""
    best = found = stage.run(plan)
    for _ in range(_REPAIRS):
        if not found.late:
            break
        served = {each: rank for each, rank in found.plan.ranks.items() if each not in found.late}
        found = stage.run(replace(found.plan, ranks=served))
        best = _better(best, found, least_tokens)
    return best


def _climb(stage: Stage, best: Found, usual: _Ranks, least_tokens: float, random: Random) -> Found:
    """Improves a plan window by window. `usual`: the ranks of all requests."""
    numbers = list(stage.interactive)
    for first in range(0, len(numbers), WINDOW):
        window = numbers[first : first + WINDOW]
        for _ in range(TRIES):
            ranks = _changed(best.plan.ranks, window, usual, random)
            found = stage.run(replace(best.plan, ranks=ranks))
            if found.value(least_tokens) >= best.value(least_tokens):
                best = found
    return best


def _changed(ranks: _Ranks, own: Sequence[int], every: _Ranks, random: Random) -> _Ranks:
    """Drops a random request of `own`, or serves it again, or has it change places."""
    place = random.randrange(len(own))
    number, changed = own[place], dict(ranks)
    if number not in changed:
        changed[number] = every[number]
        return changed
    other = own[min(len(own) - 1, max(0, place + random.randint(-_NEAR, _NEAR)))]
    if other in changed and other != number and random.random() < 0.5:
        changed[number], changed[other] = changed[other], changed[number]
    else:
        del changed[number]
    return changed


def _all_orders(numbers: Sequence[int], bulk_most: int) -> Iterator[Plan]:
    """Yields every order of every subset."""
    for count in range(len(numbers) + 1):
        for order in permutations(numbers, count):
            ranks = {number: float(rank) for rank, number in enumerate(order)}
            yield Plan(ranks, bulk_most, strict=True)
