"""Which pool takes a request: pools as they are in, one of them out, and why.

Pure: the same views and the same wish have the same answer. What a client asked for is never
traded for speed: a pinned pool is the pool, a measurement type is the type. A request that no
configured pool could ever serve is told so (400); one whose pools are away now, that (503).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from orch_sidecar.api.headers import X_ORCH_MEASUREMENT_TYPE, X_ORCH_POOL
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.profile import MeasurementType

_SHOWN_MODELS: Final = 20  # in a refusal; an engine may have adapters by the hundred


class Why(StrEnum):
    """What decided for a pool; the span attribute `orch.placement`."""

    ONLY = "only"  # no other could take it
    PINNED = "pinned"
    PREFERRED = "preferred"
    MEASUREMENT_TYPE = "measurement_type"
    PREDICTED_END = "predicted_end"
    FREE_SLOTS = "free_slots"
    NAME = "name"  # nothing else tells them apart


class View(NamedTuple):
    """A pool at one moment. `models` and `ctx_max` are None, and `slots_total` is 0, while its
    engine has never said. `end_ms`: when the request would end there, None where unknown.
    `group`: what several pools are called that may stand in for each other, else its own name.
    `on_request`: takes only what asks for it."""

    name: str
    measurement_type: MeasurementType
    models: Collection[str] | None
    slots_total: int
    ctx_max: int | None
    room: int
    queue_depth: int
    unavailable: Refusal | None
    end_ms: float | None
    group: str
    on_request: bool = False

    def called(self, name: str | None) -> bool:
        """Whether that is its name, or that of its group."""
        return name in (self.name, self.group)


class Wish(NamedTuple):
    """What a request needs of a pool. `tokens`: the least context that it takes, where known."""

    model: str
    cost: int
    tokens: int | None = None
    pool: str | None = None
    prefers: bool = False
    measurement_type: MeasurementType | None = None

    @property
    def pinned(self) -> bool:
        return self.pool is not None and not self.prefers


class Placed(NamedTuple):
    """The pool of that name takes it."""

    pool: str
    why: Why


def place(views: Sequence[View], wish: Wish, tried: Collection[str] = ()) -> Placed | Refusal:
    """Chooses among `views`, all pools there are. `tried`: they failed this request before."""
    able = _able(views, wish)
    if isinstance(able, Refusal):
        return able
    up = [
        view
        for view in able
        if view.unavailable is None and view.name not in tried and view.group not in tried
    ]
    if not up:
        return _none_now(able)
    if wish.prefers and (preferred := [view for view in up if view.called(wish.pool)]):
        best = preferred[0].name if len(preferred) == 1 else _best(preferred, wish).pool
        return Placed(best, Why.PREFERRED)
    if len(up) == 1:
        return Placed(up[0].name, _why_only(views, wish))
    return _best(up, wish)


def first(views: Sequence[View], wish: Wish) -> str | Refusal:
    """The first pool that could take a request which needs no slot."""
    able = _able(views, wish)
    if isinstance(able, Refusal):
        return able
    up = [view for view in able if view.unavailable is None]
    if wish.prefers:
        up.sort(key=lambda view: not view.called(wish.pool))  # stable: else in their order
    return up[0].name if up else _none_now(able)


def _able(views: Sequence[View], wish: Wish) -> Sequence[View] | Refusal:
    """The pools that could serve it if they were up."""
    able = views
    if len(views) > 1 and wish.model:
        # A pool that has never reported may have any model.
        able = [view for view in views if view.models is None or wish.model in view.models]
        if not able:
            return _no_such_model(views, wish)
    if wish.pinned:
        able = [view for view in able if view.called(wish.pool)]
        if not able:
            return _cannot_pin(views, wish)
    if wish.measurement_type is not None:
        fitting = [view for view in able if view.measurement_type is wish.measurement_type]
        if not fitting:
            return Refusal(
                Reason.INFEASIBLE,
                f"no pool that could take this measures {wish.measurement_type}; there are "
                + ", ".join(f"{view.name} ({view.measurement_type})" for view in able),
                X_ORCH_MEASUREMENT_TYPE,
            )
        able = fitting
    elif wish.pool is None:
        taking = [view for view in able if not view.on_request]
        if not taking:
            return _only_on_request(able, wish)
        able = taking
    if len(able) > 1:  # one alone says itself what it cannot take
        fitting = [view for view in able if _fits(view, wish)]
        if not fitting:
            return _too_large(able, wish)
        able = fitting
    return able


def _fits(view: View, wish: Wish) -> bool:
    if view.slots_total and wish.cost > view.slots_total:
        return False
    return wish.tokens is None or view.ctx_max is None or wish.tokens <= view.ctx_max


def _why_only(views: Sequence[View], wish: Wish) -> Why:
    if wish.pinned:
        return Why.PINNED
    others = {view.measurement_type for view in views} - {wish.measurement_type}
    if wish.measurement_type is not None and others:
        return Why.MEASUREMENT_TYPE
    return Why.ONLY


def _best(up: Sequence[View], wish: Wish) -> Placed:
    known = all(view.end_ms is not None for view in up)

    def load(view: View) -> tuple[float, float]:
        if known:
            assert view.end_ms is not None
            return round(view.end_ms), 0.0  # nobody feels less than a millisecond
        free = view.room >= wish.cost and not view.queue_depth
        return float(not free), 0.0 if free else view.queue_depth / max(1, view.slots_total)

    ranked = sorted(up, key=lambda view: (load(view), -view.room, view.name))
    best, second = ranked[:2]
    if load(best) != load(second):
        return Placed(best.name, Why.PREDICTED_END if known else Why.FREE_SLOTS)
    return Placed(best.name, Why.FREE_SLOTS if best.room != second.room else Why.NAME)


def _none_now(able: Sequence[View]) -> Refusal:
    """Those that could serve it cannot now."""
    if len(able) == 1 and able[0].unavailable is not None:
        return able[0].unavailable
    causes = "; ".join(
        f"{view.name}: {'failed it' if view.unavailable is None else view.unavailable.message}"
        for view in able
    )
    return Refusal(Reason.NO_POOL, f"no pool can take this now: {causes}")


def _no_such_model(views: Sequence[View], wish: Wish) -> Refusal:
    models = sorted({model for view in views for model in view.models or ()})
    more = f" and {len(models) - _SHOWN_MODELS} more" if len(models) > _SHOWN_MODELS else ""
    return Refusal(
        Reason.NOT_FOUND,
        f"the model {wish.model[:200]!r} is not served here; served are "
        f"{', '.join(models[:_SHOWN_MODELS])}{more}",
        "model",
    )


def _cannot_pin(views: Sequence[View], wish: Wish) -> Refusal:
    names = dict.fromkeys(name for view in views for name in (view.group, view.name))
    if wish.pool in names:
        text = f"the pool {wish.pool!r} does not serve the model {wish.model[:200]!r}"
    else:
        text = f"there is no pool {wish.pool!r}; there are {', '.join(names)}"
    return Refusal(Reason.INFEASIBLE, text, X_ORCH_POOL)


def _only_on_request(able: Sequence[View], wish: Wish) -> Refusal:
    names = ", ".join(view.name for view in able)
    what = f"the model {wish.model[:200]!r} is served by" if wish.model else "there are"
    return Refusal(
        Reason.INFEASIBLE,
        f"{what} pools that take only what asks for them: {names}; "
        f"ask by {X_ORCH_POOL} or {X_ORCH_MEASUREMENT_TYPE}",
        X_ORCH_POOL,
    )


def _too_large(able: Sequence[View], wish: Wish) -> Refusal:
    sizes = ", ".join(
        f"{view.name} has {view.slots_total} slots and a context of {view.ctx_max}" for view in able
    )
    needs = f"{wish.cost} sequences at once (n times the number of prompts)"
    if wish.tokens is not None:
        needs += f" and a context of {wish.tokens} tokens"
    return Refusal(Reason.INFEASIBLE, f"this request needs {needs}: {sizes}")
