"""Chooses the pool that takes a request, from snapshots of some pools: of all, if they are few.

Where they are many, `candidates` draws those to compare, or decides alone. What a client requires
is never traded for speed: a pinned pool and a measurement type are binding. A request that no
configured pool could ever serve is refused as infeasible (400); where the pools that could serve it
are unavailable, the refusal is temporary (503).

Pure: the same snapshots and the same request give the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Final, NamedTuple

from orch_sidecar.api.headers import X_ORCH_MEASUREMENT_TYPE, X_ORCH_POOL
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import MeasurementType

# A pool that has the prefix of a prompt, or its adapter, is preferred if the request would end
# there at most this much later than at the best one, and if it has at most this multiple of its
# share of the load.
AFFINITY_END_FACTOR: Final = 1.1
AFFINITY_LOAD_FACTOR: Final = 1.25
_SHOWN_MODELS: Final = 20  # in a refusal; an engine may have hundreds of adapters

Names = Collection[str]  # of pools and groups


class PrefixUse(StrEnum):
    """Where a request was placed, by what is known of the prefix of its prompt."""

    HIT = "hit"  # at the pool that last served it
    MOVED = "moved"  # at another pool
    NEW = "new"  # no pool has served any of it

    @classmethod
    def of(cls, name: str, served_by: str | None) -> PrefixUse:
        """Returns what the placement at a pool makes of the prefix. `served_by`: the pool that has
        it."""
        if served_by is None:
            return cls.NEW
        return cls.HIT if served_by == name else cls.MOVED


class PoolSnapshot(NamedTuple):
    """As much of a pool as is compared.

    `group`: the name that interchangeable pools share, else the pool's own. `on_request`: serves
    only requests that select it. `models` and `ctx_max` are None, and `slots_total` is 0, until the
    engine reports. `room`: slots that can be leased, those of idle requests included, negative
    while foreign sequences take more than are left. `queue_depth`: requests that wait, without idle
    ones. `end_ms`: milliseconds until the request that is being routed would end here, None where
    that cannot be predicted.

    A NamedTuple, because one is made of each pool for each routed request: a frozen dataclass of
    so many fields takes several times as long.
    """

    name: str
    group: str
    measurement_type: MeasurementType
    on_request: bool = False
    unavailable: Refusal | None = None
    models: Collection[str] | None = None
    ctx_max: int | None = None
    slots_total: int = 0
    room: int = 0
    queue_depth: int = 0
    end_ms: float | None = None

    def has_room(self, cost: int) -> bool:
        """Whether that many slots are free, and no request waits for them."""
        return self.room >= cost and not self.queue_depth

    @property
    def load(self) -> int:
        """Sequences that run or wait here; a queued request counts as one."""
        return self.slots_total - self.room + self.queue_depth

    def has_name(self, name: str | None) -> bool:
        """Whether `name` is the pool's name or its group's."""
        return name in (self.name, self.group)


class PlacementReason(StrEnum):
    """What decided for a pool; the span attribute `orch.placement`."""

    ONLY = "only"  # no other could take it
    PINNED = "pinned"
    PREFERRED = "preferred"
    MEASUREMENT_TYPE = "measurement_type"
    PREFIX = "prefix"  # it last served the beginning of this prompt
    ADAPTER = "adapter"  # its engine has the LoRA adapter, or has room for it
    PREDICTED_END = "predicted_end"
    FREE_SLOTS = "free_slots"
    NAME = "name"  # the pools differ in nothing else


@dataclass(slots=True)  # a NamedTuple takes twice as long to make
class PlacementRequest:
    """What a request requires of a pool. `cost` in sequences; 0: it takes no slot. `tokens`: the
    smallest context that it fits into, None where unknown. `affine`: the pool that has something of
    the request already, or room for it, and is preferred; `affine_by`: what."""

    model: str
    cost: int
    tokens: int | None
    options: RequestOptions
    affine: str | None = None
    affine_by: PlacementReason = PlacementReason.PREFIX

    @property
    def pinned(self) -> bool:
        return self.options.pool is not None and not self.options.prefers

    def is_served_by(self, models: Collection[str] | None) -> bool:
        """Whether a pool with these models has its model. An engine that has never reported may
        serve any."""
        return not self.model or models is None or self.model in models

    def selects(self, measurement_type: MeasurementType, on_request: bool, named: bool) -> bool:
        """Whether its client would have a pool of this measurement type, which has the name that
        the client gave (`named`) or not. One that serves `on_request` must have been asked for, by
        name or type; a label that the client did not ask for is no request."""
        options = self.options
        if self.pinned and not named:
            return False
        if options.measurement_type not in (None, measurement_type):
            return False
        asked_for = options.measurement_type is not None and not options.labelled
        return named or asked_for or not on_request

    def fits(self, slots_total: int, ctx_max: int | None) -> bool:
        """Whether a pool can hold it; one that has not reported its slots or its context may."""
        if slots_total and self.cost > slots_total:
            return False
        return self.tokens is None or ctx_max is None or self.tokens <= ctx_max


class Load(NamedTuple):
    """Sequences that run or wait at some pools, and the slots of these."""

    sequences: int
    slots: int


def place(
    pools: Sequence[PoolSnapshot],
    request: PlacementRequest,
    tried: Names = (),
    load: Load | None = None,
) -> tuple[str, PlacementReason] | Refusal:
    """Chooses the pool for `request` among `pools`. Returns its name and what decided.

    `tried`: names of pools and groups that failed to serve the request before. `load`: of all that
    could serve it; None: these are all.
    """
    capable = _capable(pools, request)
    if isinstance(capable, Refusal):
        return capable
    available = []
    for pool in capable:
        if pool.unavailable is None and pool.name not in tried and pool.group not in tried:
            available.append(pool)
    if not available:
        return _none_available(capable)
    options = request.options
    if options.prefers and (
        preferred := [pool for pool in available if pool.has_name(options.pool)]
    ):
        name = preferred[0].name if len(preferred) == 1 else best(preferred, request, load)[0]
        return name, PlacementReason.PREFERRED
    if len(available) == 1:
        return available[0].name, _reason_of_only(pools, request)
    return best(available, request, load)


def first_available(pools: Sequence[PoolSnapshot], request: PlacementRequest) -> str | Refusal:
    """Returns the name of the first pool that can take a request without a slot."""
    capable = _capable(pools, request)
    if isinstance(capable, Refusal):
        return capable
    available = [pool for pool in capable if pool.unavailable is None]
    options = request.options
    if options.prefers:
        available.sort(key=lambda pool: not pool.has_name(options.pool))  # stable
    return available[0].name if available else _none_available(capable)


def _capable(
    pools: Sequence[PoolSnapshot], request: PlacementRequest
) -> Sequence[PoolSnapshot] | Refusal:
    """Returns the pools that could serve the request if they were available."""
    capable = pools
    if len(pools) > 1:
        capable = [pool for pool in pools if request.is_served_by(pool.models)]
        if not capable:
            return _unknown_model(pools, request)
    if request.pinned:
        capable = [pool for pool in capable if pool.has_name(request.options.pool)]
        if not capable:
            return _cannot_pin(pools, request)
    found = [
        pool
        for pool in capable
        if request.selects(
            pool.measurement_type, pool.on_request, pool.has_name(request.options.pool)
        )
    ]
    if not found:
        return _none_selected(capable, request)
    if len(found) == 1:
        return found  # its admission refuses what does not fit
    fitting = [pool for pool in found if request.fits(pool.slots_total, pool.ctx_max)]
    return fitting or _too_large(found, request)


def _reason_of_only(pools: Sequence[PoolSnapshot], request: PlacementRequest) -> PlacementReason:
    if request.pinned:
        return PlacementReason.PINNED
    required = request.options.measurement_type
    if required is not None and any(pool.measurement_type is not required for pool in pools):
        return PlacementReason.MEASUREMENT_TYPE
    return PlacementReason.ONLY


def best(
    available: Sequence[PoolSnapshot], request: PlacementRequest, total: Load | None
) -> tuple[str, PlacementReason]:
    """Chooses among several pools that take the request: the affine one, else by predicted end."""
    predicted = all(pool.end_ms is not None for pool in available)
    if request.affine is not None:
        if total is None:
            slots = sum(pool.slots_total for pool in available)
            total = Load(sum(pool.load for pool in available), slots)
        if _is_nearly_best(available, request, total, predicted=predicted):
            return request.affine, request.affine_by

    ranked: list[tuple[tuple[float, float], int, str]] = []
    for pool in available:
        load: tuple[float, float]
        if predicted:
            assert pool.end_ms is not None
            load = round(pool.end_ms), 0.0  # clients do not notice less than a millisecond
        elif pool.room >= request.cost and not pool.queue_depth:
            load = 0.0, 0.0
        else:
            load = 1.0, pool.queue_depth / max(1, pool.slots_total)
        ranked.append((load, -pool.room, pool.name))
    first, second = sorted(ranked)[:2]
    if first[0] != second[0]:
        reason = PlacementReason.PREDICTED_END if predicted else PlacementReason.FREE_SLOTS
    else:
        reason = PlacementReason.FREE_SLOTS if first[1] != second[1] else PlacementReason.NAME
    return first[2], reason


def _is_nearly_best(
    available: Sequence[PoolSnapshot], request: PlacementRequest, total: Load, *, predicted: bool
) -> bool:
    """Whether the affine pool can take the request, nearly as early as the best one, and without
    more than its share of the `total` load."""
    own = next((pool for pool in available if pool.name == request.affine), None)
    if own is None:
        return False
    if predicted:
        best_ms = min(pool.end_ms or 0.0 for pool in available)
        if (own.end_ms or 0.0) > AFFINITY_END_FACTOR * best_ms + 1.0:  # clients do not notice a ms
            return False
    elif not own.has_room(request.cost):
        return False
    return within_share(own.load, own.slots_total, request.cost, total)


def within_share(load: int, slots_total: int, cost: int, total: Load) -> bool:
    """Whether a pool with this load has, with the request, no more than its share of all."""
    most = AFFINITY_LOAD_FACTOR * (total.sequences + cost) * slots_total / max(1, total.slots)
    return load + cost <= max(ceil(most), cost)


def _none_available(capable: Sequence[PoolSnapshot]) -> Refusal:
    if len(capable) == 1 and capable[0].unavailable is not None:
        return capable[0].unavailable
    causes = "; ".join(
        f"{pool.name}: {'failed it' if pool.unavailable is None else pool.unavailable.message}"
        for pool in capable
    )
    away = [pool.unavailable for pool in capable if pool.unavailable is not None]
    back_ms = [each.predicted_start_ms for each in away if each.predicted_start_ms is not None]
    retry_ms = [each.retry_after_ms for each in away if each.retry_after_ms is not None]
    return Refusal(
        Reason.NO_POOL,
        f"no pool can take this request now: {causes}",
        retry_after_ms=min(retry_ms, default=None),
        predicted_start_ms=min(back_ms, default=None),
    )


def _unknown_model(pools: Sequence[PoolSnapshot], request: PlacementRequest) -> Refusal:
    models = sorted({model for pool in pools for model in pool.models or ()})
    more = f" and {len(models) - _SHOWN_MODELS} more" if len(models) > _SHOWN_MODELS else ""
    return Refusal(
        Reason.NOT_FOUND,
        f"no pool serves the model {request.model[:200]!r}; the models are "
        f"{', '.join(models[:_SHOWN_MODELS])}{more}",
        "model",
    )


def _cannot_pin(pools: Sequence[PoolSnapshot], request: PlacementRequest) -> Refusal:
    pool = request.options.pool
    names = dict.fromkeys(name for each in pools for name in (each.group, each.name))
    if pool in names:
        text = f"the pool {pool!r} does not serve the model {request.model[:200]!r}"
    else:
        text = f"there is no pool {pool!r}; the pools are {', '.join(names)}"
    return Refusal(Reason.INFEASIBLE, text, X_ORCH_POOL)


def _none_selected(capable: Sequence[PoolSnapshot], request: PlacementRequest) -> Refusal:
    if (required := request.options.measurement_type) is not None:
        text = f"no pool that could serve this request measures {required}; the pools are "
        text += ", ".join(f"{pool.name} ({pool.measurement_type})" for pool in capable)
        return Refusal(Reason.INFEASIBLE, text, X_ORCH_MEASUREMENT_TYPE)
    names = ", ".join(pool.name for pool in capable)
    model = f" of the model {request.model[:200]!r}" if request.model else ""
    return Refusal(
        Reason.INFEASIBLE,
        f"the pools{model} serve only requests that select them: {names}; "
        f"select one by {X_ORCH_POOL} or {X_ORCH_MEASUREMENT_TYPE}",
        X_ORCH_POOL,
    )


def _too_large(capable: Sequence[PoolSnapshot], request: PlacementRequest) -> Refusal:
    sizes = ", ".join(
        f"{pool.name} has {pool.slots_total} slots and a context of {pool.ctx_max} tokens"
        for pool in capable
    )
    needs = f"{request.cost} sequences at once (choices times prompts, or items of its list)"
    if request.tokens is not None:
        needs += f" and a context of {request.tokens} tokens"
    return Refusal(Reason.INFEASIBLE, f"no pool is large enough for {needs}: {sizes}")
