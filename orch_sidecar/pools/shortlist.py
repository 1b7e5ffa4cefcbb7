"""Names the pools among which the placement of a request is decided: all, if they are few.

Of many it keeps the standings, and computes again only those of pools that have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from orch_sidecar.pools.candidates import MAX_POOLS_COMPARED, Candidates
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.routing import Load, PlacementReason, PlacementRequest


class Shortlist:
    """The pools of a sidecar, as far as they have to be compared for a request."""

    def __init__(self) -> None:
        self.changed: set[Pool] = set()  # pools, since they were looked at
        self._all: Sequence[Pool] = ()
        self._by_name: dict[str, Pool] = {}
        self._candidates = Candidates(Random())  # noqa: S311 (it spreads load, and keeps no secret)
        self._with_adapters: set[Pool] = set()
        # Of each pool its context and the workloads that it does not serve; and those of all.
        self._known: dict[str, tuple[int | None, frozenset[str]]] = {}
        self._ctx_max: int | None = None
        self._unserved: frozenset[str] = frozenset()

    def replace(self, pools: Sequence[Pool]) -> None:
        """Sets the pools from now on."""
        for name in self._by_name.keys() - {pool.name for pool in pools}:
            self._candidates.update(name, None)
        self._known.clear()
        self._all, self._by_name = pools, {pool.name: pool for pool in pools}
        self._with_adapters.clear()
        self.changed.update(pools)

    @property
    def ctx_max(self) -> int | None:
        """The longest context of any pool; None until all engines have reported theirs."""
        if self.changed:
            self._update()
        return self._ctx_max

    @property
    def unserved(self) -> frozenset[str]:
        """The workloads that no pool serves."""
        if self.changed:
            self._update()
        return self._unserved

    def adapter_pool(self, model: str) -> str | None:
        """Returns the pool whose engine has, or has room for, the LoRA adapter that is this model;
        of several the one with most free slots. None: `model` is no adapter, or all are full of
        others."""
        pools: Collection[Pool] = self._all
        if self._compares_some():
            pools = self._with_adapters
        found = []
        for pool in pools:
            watcher = pool.watcher
            if model not in watcher.adapters or pool.admission.unavailable is not None:
                continue
            resident = model in watcher.resident
            if resident or watcher.has_room:
                found.append((resident, pool.ledger.room, pool.name))
        return max(found)[2] if found else None

    def choose_at_once(self, request: PlacementRequest) -> tuple[Pool, PlacementReason] | None:
        """Chooses among many pools the one for a request that would start at once at each of those
        to compare, and says what decided. None: they have to be compared."""
        if request.cost != 1 or not request.options.empty or not self._compares_some():
            return None
        found = self._candidates.choose_at_once(request)
        return None if found is None else (self._by_name[found[0]], found[1])

    def pools_for(
        self, request: PlacementRequest, tried: Collection[str]
    ) -> tuple[Sequence[Pool], Load | None]:
        """Returns the pools to compare for a request, and the load of all that could serve it; all
        pools and None if they are few, or if none takes the request: each has a reason.

        `tried`: names of pools and groups that failed to serve the request before.
        """
        if not self._compares_some():
            return self._all, None
        candidates, options = self._candidates, request.options
        names = candidates.draw(request, tried)
        if options.prefers:
            names += candidates.draw(request, tried, options.pool)
        named = (options.pool, request.affine)
        names += [each for each in named if each is not None and each in candidates]
        if not names:
            return self._all, None
        if options.measurement_type is not None:  # that there is another is why it was chosen
            names += candidates.of_other_measurement(options.measurement_type)
        load = candidates.load(request) if request.affine is not None else None
        return [self._by_name[name] for name in dict.fromkeys(names)], load

    def _compares_some(self) -> bool:
        """Whether there are too many pools to compare all; if so, looks at those that changed."""
        many = len(self._all) > MAX_POOLS_COMPARED
        if many and self.changed:
            self._update()
        return many

    def _update(self) -> None:
        """Looks at the pools that have changed."""
        learned, many = False, len(self._all) > MAX_POOLS_COMPARED
        for pool in self.changed:
            name, known = pool.name, (pool.watcher.ctx_max, pool.watcher.unserved)
            if self._by_name.get(name) is not pool:
                continue  # it has been removed, and ends its last requests
            if many:
                self._candidates.update(name, pool.standing())
            if pool.watcher.adapters:
                self._with_adapters.add(pool)
            if self._known.get(name) != known:
                self._known[name], learned = known, True
        self.changed.clear()
        if learned:
            contexts, unserved = zip(*self._known.values(), strict=True)
            longest = max((each for each in contexts if each), default=None)
            self._ctx_max = None if None in contexts else longest
            self._unserved = frozenset.intersection(*unserved)
