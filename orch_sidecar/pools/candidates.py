"""Keeps many pools in order, and draws the few that may be the best for a request.

Predicting when a request would end at a pool takes some ten microseconds: of hundreds of pools,
only a few can be asked for each request. So each pool has a standing that is cheap to compute when
it changes: the time of a token there, times the turns that a request would wait. Two of the pools
with nearly the best standing are drawn at random. Where a request starts at once at both, the
faster one takes it, of equal ones the emptier; otherwise their predictions decide. The draw is
random because several sidecars in front of the same engines learn late what the others did: if each
took the best that it knows, all would take the same.

Mitzenmacher: The power of two choices in randomized load balancing, IEEE TPDS 2001; How useful is
old information?, IEEE TPDS 2000.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Final, NamedTuple

from orch_sidecar.pools.routing import (
    AFFINITY_END_FACTOR,
    Load,
    PlacementReason,
    PlacementRequest,
    within_share,
)
from vllm_plugin.contracts.profile import MeasurementType

# Up to this number, all pools are compared.
MAX_POOLS_COMPARED: Final = 4
# How many pools are drawn in which a request need not wait, and in which it has to: of those more,
# because predictions distinguish them better.
POOLS_DRAWN: Final = 2
WAITING_POOLS_DRAWN: Final = 4
# A pool is nearly as good as the best up to this multiple of its standing.
NEAR_BEST_FACTOR: Final = 1.1

_AFTER_ALL_NAMES: Final = chr(0x10FFFF)  # sorts after every name
_Ordered = list[tuple[float, str]]


class PoolKind(NamedTuple):
    """What decides which requests a pool can serve; pools of one kind can serve the same ones.

    `group`: None of pools that are named one by one. `predicts`: the step time of its engine is
    known.
    """

    group: str | None
    measurement_type: MeasurementType
    on_request: bool
    models: frozenset[str] | None
    ctx_max: int | None
    slots_total: int
    predicts: bool

    def serves(self, request: PlacementRequest) -> bool:
        """Whether its pools could serve a request."""
        named = self.group is not None and self.group == request.options.pool
        return (
            request.is_served_by(self.models)
            and request.selects(self.measurement_type, self.on_request, named)
            and request.fits(self.slots_total, self.ctx_max)
        )


@dataclass(slots=True)  # a NamedTuple takes twice as long to make
class Standing:
    """A pool that takes requests, compared with others of its kind: the lowest `value` is next.

    If its kind predicts, `value` is in seconds per token, and can be compared with other kinds;
    `pace_s` is what a token takes without the wait. `waits`: a request would have to wait for a
    slot. `load`: sequences that run or wait there.
    """

    kind: PoolKind
    value: float
    load: int
    waits: bool = False
    pace_s: float = 0.0

    @property
    def order(self) -> tuple[float, int]:
        """Its place among pools in which a request starts at once: the fastest is first, and of
        equally fast ones the emptiest."""
        return self.value, self.load - self.kind.slots_total


def standing(
    kind: PoolKind, pace_s: float | None, free: int, queue_depth: int, room: int
) -> Standing:
    """Computes the standing of a pool.

    `pace_s`: seconds per token of one more sequence, None if unknown. `free`: slots that the next
    request can have. `room`: slots that no sequence has.
    """
    load = kind.slots_total - room + queue_depth
    if pace_s is None:
        # The order of `routing` without predictions: an empty queue, then free slots.
        return Standing(kind, queue_depth * (kind.slots_total + 1) - room, load)
    if free > 0 and not queue_depth:
        return Standing(kind, pace_s, load, pace_s=pace_s)
    # Behind those that are queued it waits for the end of a request.
    turns = (queue_depth + 1) / max(1, kind.slots_total)
    return Standing(kind, pace_s * (1 + turns), load, waits=True, pace_s=pace_s)


class _OrderedPools:
    """The pools of one kind, by value and name: without a wait, and with one."""

    __slots__ = ("free", "load", "waiting")

    def __init__(self) -> None:
        self.free: _Ordered = []
        self.waiting: _Ordered = []
        self.load = 0

    def __len__(self) -> int:
        return len(self.free) + len(self.waiting)

    def add(self, name: str, new: Standing) -> None:
        insort(self.waiting if new.waits else self.free, (new.value, name))
        self.load += new.load

    def remove(self, name: str, old: Standing) -> None:
        pools = self.waiting if old.waits else self.free
        del pools[bisect_left(pools, (old.value, name))]
        self.load -= old.load


_PoolsByKind = Sequence[tuple[PoolKind, _OrderedPools]]


class Candidates:
    """The pools that take requests."""

    def __init__(self, random: Random) -> None:
        self._random = random.random
        self._orders: dict[PoolKind, _OrderedPools] = {}
        self._standings: dict[str, tuple[Standing, _OrderedPools]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._standings

    def update(self, name: str, new: Standing | None) -> None:
        """Sets the standing of a pool; None: it takes no requests."""
        known = self._standings.get(name)
        order = None
        if known is not None:
            old, order = known
            order.remove(name, old)
            if new is None or new.kind is not old.kind:
                if not order:
                    del self._orders[old.kind]
                order = None
        if new is None:
            self._standings.pop(name, None)
            return
        if order is None:
            order = self._orders.setdefault(new.kind, _OrderedPools())
        order.add(name, new)
        self._standings[name] = new, order

    def choose_at_once(self, request: PlacementRequest) -> tuple[str, PlacementReason] | None:
        """Chooses the pool for one sequence that would start at once at every pool to compare: the
        affine one, if that is nearly as fast as the best and has no more than its share of the
        load, or the faster one of two, of equal ones the emptier. None: predictions have to
        decide."""
        serving = self._serving(request)
        free = [order.free for _, order in serving if order.free]
        if not free:
            return None
        best = min([pools[0][0] for pools in free])
        latest, nearly = AFFINITY_END_FACTOR * best, NEAR_BEST_FACTOR
        predicts = all(kind.predicts for kind, _ in serving)
        if predicts:
            if self._is_faster_after_wait(best, serving):
                return None
        elif len(serving) > 1 or best >= 0:
            return None
        else:
            latest, nearly = -1.0, 1.0  # the values count free slots
        if request.affine is not None and self._is_nearly_best(request.affine, latest, serving):
            return request.affine, request.affine_by
        drawn = self._draw(free, POOLS_DRAWN, nearly)
        if len(drawn) < POOLS_DRAWN:
            return None
        first, second = sorted((*self._standings[each][0].order, each) for each in drawn)
        reason = PlacementReason.FREE_SLOTS
        if predicts and first[0] < second[0]:
            reason = PlacementReason.PREDICTED_END
        elif first[:2] == second[:2]:
            reason = PlacementReason.NAME
        return first[2], reason

    def _is_faster_after_wait(self, best: float, serving: _PoolsByKind) -> bool:
        """Whether a pool in which a request has to wait generates its tokens faster than this."""
        for _, order in serving:
            if order.waiting and self._standings[order.waiting[0][1]][0].pace_s < best:
                return True
        return False

    def _is_nearly_best(self, name: str, latest: float, serving: _PoolsByKind) -> bool:
        """Whether a request starts at once at this pool, whose value is at most `latest`, and which
        has no more than its share of the load of all that can serve the request."""
        found, order = self._standings.get(name, (None, None))
        if found is None or found.waits or found.value > latest:
            return False
        if (found.kind, order) not in serving:
            return False
        return within_share(found.load, found.kind.slots_total, 1, _load(serving))

    def draw(
        self, request: PlacementRequest, tried: Collection[str] = (), group: str | None = None
    ) -> list[str]:
        """Returns the pools to compare for a request; none if no available pool can serve it.

        They are some of the best without a wait; some of those with the shortest wait, if there are
        no others or they would run the request faster; and some of the best of each kind that
        cannot be compared. `tried`: pools and groups to leave out. `group`: the only one to use.
        """
        free: list[_Ordered] = []
        waiting: list[_Ordered] = []
        drawn: list[str] = []
        for kind, order in self._orders.items():
            if kind.group in tried or (group is not None and kind.group != group):
                continue
            if not kind.serves(request):
                continue
            for ordered, lists in ((order.free, free), (order.waiting, waiting)):
                pools = [each for each in ordered if each[1] not in tried] if tried else ordered
                if pools and kind.predicts:
                    lists.append(pools)
                elif pools:
                    drawn += self._draw([pools], POOLS_DRAWN, 1.0)
        if free:
            drawn += self._draw(free, POOLS_DRAWN, NEAR_BEST_FACTOR)
        if waiting:
            pace_s = self._standings[min(pools[0] for pools in waiting)[1]][0].pace_s
            if not free or pace_s < min(pools[0][0] for pools in free):
                drawn += self._draw(waiting, WAITING_POOLS_DRAWN, NEAR_BEST_FACTOR)
        return drawn

    def load(self, request: PlacementRequest) -> Load:
        """Returns the load of all pools that take requests and can serve this one."""
        return _load(self._serving(request))

    def _serving(self, request: PlacementRequest) -> _PoolsByKind:
        return [each for each in self._orders.items() if each[0].serves(request)]

    def of_other_measurement(self, measurement_type: MeasurementType) -> list[str]:
        """Returns a pool of another measurement type, if there is one."""
        for kind, order in self._orders.items():
            if kind.measurement_type is not measurement_type:
                return [(order.free or order.waiting)[0][1]]
        return []

    def _draw(self, lists: Sequence[_Ordered], most: int, nearly: float) -> list[str]:
        """Draws from ordered pools up to `nearly` times the best value; if few are, the best."""
        limit = nearly * min(pools[0][0] for pools in lists)
        near = [bisect_right(pools, (limit, _AFTER_ALL_NAMES)) for pools in lists]
        total = sum(near)
        if total <= most:
            heads = sorted(chain.from_iterable(pools[:most] for pools in lists))
            return [name for _, name in heads[:most]]
        numbers: set[int] = set()
        while len(numbers) < most:
            numbers.add(int(self._random() * total))
        return [_at(lists, near, number) for number in numbers]


def _load(orders: _PoolsByKind) -> Load:
    load = slots = 0
    for kind, order in orders:
        load += order.load
        slots += kind.slots_total * (len(order.free) + len(order.waiting))
    return Load(load, slots)


def _at(lists: Sequence[_Ordered], counts: Sequence[int], number: int) -> str:
    """Returns the name with this number, where `counts` names of each list are counted."""
    for pools, count in zip(lists, counts, strict=True):
        if number < count:
            return pools[number][1]
        number -= count
    raise IndexError(number)
