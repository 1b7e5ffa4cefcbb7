"""Keeps many pools in order, and draws the few that may be the best for a request.

To predict when a request would end at a pool takes some ten microseconds, which for each request
can be spent on a few of hundreds of pools. So each pool has a standing that is cheap to compute
when it changes: what a token takes there, as many times as a request waits for its turn. Of the
pools whose standing is nearly the best two are drawn at random, and their predictions decide. At
random, because several sidecars in front of the same engines learn late what the others did: if
each took the best by what it knows, all would take the same.

Mitzenmacher: The power of two choices in randomized load balancing, IEEE TPDS 2001; How useful is
old information?, IEEE TPDS 2000.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from random import Random
from typing import Final, NamedTuple

from orch_sidecar.pools.placement.routing import Load, PlacementRequest
from vllm_plugin.profile import MeasurementType

# So many pools are all compared.
FEW: Final = 4
DRAWN: Final = 2
# A pool is nearly as good as the best up to this multiple of its standing.
NEARLY: Final = 1.05

_LAST: Final = chr(0x10FFFF)  # sorts after every name


class Kind(NamedTuple):
    """What decides which requests a pool can serve; pools of one kind can serve the same ones.

    `predicts`: the step time of its engine is known.
    """

    group: str
    measurement_type: MeasurementType
    on_request: bool
    models: frozenset[str] | None
    ctx_max: int | None
    slots_total: int
    predicts: bool

    def serves(self, request: PlacementRequest) -> bool:
        """Whether its pools could serve a request, by the rules of `routing`."""
        options = request.options
        if request.model and self.models is not None and request.model not in self.models:
            return False
        if request.pinned and options.pool != self.group:
            return False
        if options.measurement_type is not None:
            if self.measurement_type is not options.measurement_type:
                return False
        elif options.pool is None and self.on_request:
            return False
        if self.slots_total and request.cost > self.slots_total:
            return False
        return request.tokens is None or self.ctx_max is None or request.tokens <= self.ctx_max


class Standing(NamedTuple):
    """A pool that takes requests, compared with others of its kind: the lowest `value` is next.

    If its kind predicts, `value` is in seconds per token, and can be compared with other kinds.
    `load`: sequences that run or wait there.
    """

    kind: Kind
    value: float
    load: int


def standing(kind: Kind, pace_s: float | None, free: int, queue_depth: int, room: int) -> Standing:
    """Computes the standing of a pool.

    `pace_s`: seconds per token of one more sequence, None if unknown. `free`: slots that the next
    request can have. `room`: slots that no sequence has.
    """
    load = kind.slots_total - room + queue_depth
    if pace_s is None:
        # The order of `routing` without predictions: an empty queue, then free slots.
        return Standing(kind, queue_depth * (kind.slots_total + 1) - room, load)
    if free > 0 and not queue_depth:
        return Standing(kind, pace_s, load)
    # It waits for the end of a request, and behind those that are queued.
    return Standing(kind, pace_s * (2 + queue_depth / max(1, kind.slots_total)), load)


@dataclass(slots=True)
class _Order:
    """The pools of one kind, by value and name."""

    pools: list[tuple[float, str]] = field(default_factory=list)
    load: int = 0


class Candidates:
    """The pools that take requests."""

    def __init__(self, random: Random) -> None:
        self._random = random.random
        self._orders: dict[Kind, _Order] = {}
        self._standings: dict[str, tuple[Standing, _Order]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._standings

    def update(self, name: str, new: Standing | None) -> None:
        """Sets the standing of a pool; None: it takes no requests."""
        known = self._standings.get(name)
        order = None
        if known is not None:
            old, order = known
            del order.pools[bisect_left(order.pools, (old.value, name))]
            order.load -= old.load
            if new is None or new.kind is not old.kind:
                if not order.pools:
                    del self._orders[old.kind]
                order = None
        if new is None:
            self._standings.pop(name, None)
            return
        if order is None:
            order = self._orders.setdefault(new.kind, _Order())
        insort(order.pools, (new.value, name))
        order.load += new.load
        self._standings[name] = new, order

    def draw(
        self, request: PlacementRequest, tried: Collection[str] = (), group: str | None = None
    ) -> list[str]:
        """Returns the pools to compare for a request: two of the best, and one of each kind that
        cannot be compared with them. Empty: none that takes requests can serve it.

        `tried`: pools and groups that are not to be considered. `group`: only its pools are.
        """
        predicting, others = [], []
        for kind, order in self._orders.items():
            if kind.group in tried or (group is not None and kind.group != group):
                continue
            if not kind.serves(request):
                continue
            pools = order.pools
            if tried:
                pools = [each for each in pools if each[1] not in tried]
            if pools:
                (predicting if kind.predicts else others).append(pools)
        drawn: list[str] = []
        if predicting:
            best = min(pools[0][0] for pools in predicting)
            drawn = self._draw(predicting, NEARLY * best)
        for pools in others:
            drawn += self._draw([pools], pools[0][0])
        return drawn

    def load(self, request: PlacementRequest) -> Load:
        """Returns the load of all pools that take requests and can serve this one."""
        sequences = slots = 0
        for kind, order in self._orders.items():
            if kind.serves(request):
                sequences += order.load
                slots += kind.slots_total * len(order.pools)
        return Load(sequences, slots)

    def another(self, measurement_type: MeasurementType) -> list[str]:
        """Returns a pool of another measurement type, if there is one."""
        for kind, order in self._orders.items():
            if kind.measurement_type is not measurement_type:
                return [order.pools[0][1]]
        return []

    def _draw(self, lists: Sequence[list[tuple[float, str]]], limit: float) -> list[str]:
        """Draws from ordered pools up to a value; at least the best are drawn."""
        near = [bisect_right(pools, (limit, _LAST)) for pools in lists]
        total = sum(near)
        if total <= DRAWN:
            heads = chain.from_iterable(pools[:DRAWN] for pools in lists)
            return [name for _, name in nsmallest(DRAWN, heads)]
        first, second = int(self._random() * total), int(self._random() * (total - 1))
        return [_at(lists, near, at) for at in (first, second + (second >= first))]


def _at(lists: Sequence[list[tuple[float, str]]], near: Sequence[int], at: int) -> str:
    for pools, count in zip(lists, near, strict=True):
        if at < count:
            return pools[at][1]
        at -= count
    raise IndexError(at)
