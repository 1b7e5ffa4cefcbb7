"""Keeps the pools of this sidecar, and places requests among them.

With a single pool and no options, callers use `one` and no snapshot is made. A headless pool is a
group of pools, one for each of its current addresses. What a request or an event costs does not
grow with the number of pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from secrets import randbits
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from orch_sidecar.admission import refusals
from orch_sidecar.admission.availability import Absence, OrderedBy
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.config.configuration import ConfiguredPools, rules_of
from orch_sidecar.config.pool_settings import PoolSettings, authority
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools import routing
from orch_sidecar.pools.affinity import PrefixAffinity
from orch_sidecar.pools.candidates import MAX_POOLS_COMPARED
from orch_sidecar.pools.engine_watcher import EngineWatcher
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.routing import (
    Names,
    PlacementReason,
    PlacementRequest,
    PoolSnapshot,
    PrefixUse,
)
from orch_sidecar.pools.shortlist import Shortlist
from orch_sidecar.pools.status import PoolStatus, absent
from vllm_plugin.contracts.profile import AdmissionRules

# Changes of all engines together that are asked for per second: a few hundredths of a core.
CHANGES_PER_S: Final = 1000


class Placement(NamedTuple):
    """The pool that takes a request, the request for its admission, and what decided."""

    pool: Pool
    request: AdmissionRequest
    reason: PlacementReason


class PoolRegistry:
    """All pools of a sidecar, in the order of the settings."""

    def __init__(
        self, pools: ConfiguredPools, settings: SidecarSettings, session: aiohttp.ClientSession
    ) -> None:
        self.settings = tuple(each for each, _ in pools)
        self._profiles = {each.name: profile for each, profile in pools}
        self._rules = {each.name: rules_of(profile, settings) for each, profile in pools}
        self._session = session
        self._connect_timeout_s = settings.connect_timeout_s
        self._sidecar_key = settings.sidecar_key
        self._parent_leases: ParentLeases | None = None
        self.shutting_down = False
        self.affinity = PrefixAffinity(randbits(32)) if settings.prefix_affinity else None
        self.all: tuple[Pool, ...]
        self._shortlist = Shortlist()
        # Called when a pool begins to take requests, or none will again.
        self.on_ready: Callable[[], None] | None = None
        # How long the addresses of a pool were absent, by configured name; and whether all are.
        self._absent_s: dict[str, dict[Reason, float]] = {each.name: {} for each in self.settings}
        now = asyncio.get_running_loop().time()
        self._absences = {
            each.name: Absence(now, self._absent_s[each.name], Reason.NO_POOL)
            for each in self.settings
            if each.headless
        }
        self._single = len(self.settings) == 1 and not self.settings[0].headless
        self.coalescing = False  # whether any pool coalesces identical requests
        self.not_coalescing: frozenset[str] = frozenset()  # groups that do not
        self._set_pools(self._pool(each, each.name) for each in self.settings if not each.headless)
        for pool in self.all:
            self._observe(pool)
        # The only pool there can ever be, if so.
        self.one: Pool | None = self.all[0] if self._single else None
        self.together: Shortlist | EngineWatcher  # what all pools can serve
        self.together = self._shortlist if self.one is None else self.one.watcher
        # Removed pools stay: requests that they still serve look them up by name.
        self._by_name: dict[str, Pool] = {pool.name: pool for pool in self.all}
        # The headless pools that have no known address, and why.
        self.without_address = {
            each.name: Refusal(
                Reason.ENGINE_STARTING, f"no address of the pool {each.name} is known yet"
            )
            for each in self.settings
            if each.headless
        }

    def __iter__(self) -> Iterator[Pool]:
        return iter(self.all)

    def __getitem__(self, name: str) -> Pool:
        return self._by_name[name]

    @property
    def draining(self) -> bool:
        """Whether all pools drain."""
        for pool in self.all:
            if pool.admission.draining is None:
                return False
        return bool(self.all) or self.shutting_down

    @property
    def state(self) -> PoolState:
        """`ready` if any pool is, else the state of the first."""
        states = [pool.state for pool in self.all]
        if PoolState.READY in states:
            return PoolState.READY
        if self.shutting_down:
            return PoolState.DRAINING
        return states[0] if states else PoolState.STARTING

    def states(self) -> dict[str, str]:
        """Returns the states by pool name; a headless pool without an address is `absent`."""
        states = {pool.name: pool.state.value for pool in self.all}
        return states | dict.fromkeys(self.without_address, PoolState.ABSENT.value)

    def absent(self) -> list[PoolStatus]:
        """Returns the headless pools that have no address, each as one whose engine has never
        reported."""
        return [absent(name, self._profiles[name]) for name in self.without_address]

    def add_address(self, group: str, number: int, address: str) -> Pool:
        """Adds an address of a headless pool, as a pool that is named by group and number."""
        [settings] = [each for each in self.settings if each.name == group]
        parts = urlsplit(settings.url)
        url = f"http://{authority(address, parts.port or 80)}"
        name = f"{group}-{number}"
        pool = self._pool(settings.model_copy(update={"name": name, "url": url}), group)
        if self.shutting_down:
            pool.gate.drain(OrderedBy.SHUTDOWN)
        self._by_name[name] = pool
        self._observe(pool)
        groups = [each.name for each in self.settings]
        self._set_pools(
            sorted((*self.all, pool), key=lambda each: (groups.index(each.group), each.name))
        )
        self.without_address.pop(group, None)
        return pool

    def remove_address(self, pool: Pool, why: str) -> None:
        """Removes the pool of an address that is gone: its queued requests are placed again, its
        running requests go on."""
        self._set_pools(each for each in self.all if each is not pool)
        refusal = Refusal(Reason.ENGINE_DOWN, why)
        if not any(each.group == pool.group for each in self.all):
            self.without_address[pool.group] = refusal
            if (absence := self._absences.get(pool.group)) is not None:
                # Its name had addresses, and will have others.
                absence.began(Reason.NO_POOL, pool.connections.loop.time(), expected=True)
        pool.gate.drain(OrderedBy.SHUTDOWN)
        pool.gate.engine_unavailable(refusal)
        pool.gate.refuse_queued(refusal)
        pool.connections.close()

    def configure(self, connect_timeout_s: float, rules: Mapping[str, AdmissionRules]) -> None:
        """Applies a reloaded time limit to all pools, and `rules` by configured pool name."""
        self._connect_timeout_s = connect_timeout_s
        self._rules.update(rules)
        for pool in self.all:
            pool.connections.connect_timeout_s = connect_timeout_s
            if pool.group in rules:
                pool.gate.reload(rules[pool.group])
        self._set_pools(self.all)

    def report_changes(self, leases: ParentLeases | None) -> None:
        """Reports each change of a pool to the subscribers of `leases` from now on; None stops."""
        self._parent_leases = leases
        for pool in self.all:
            self._observe(pool)

    def shut_down(self) -> None:
        """Drains all pools, for good."""
        self.shutting_down = True
        for pool in self.all:
            pool.gate.drain(OrderedBy.SHUTDOWN)
        if self.on_ready is not None:
            self.on_ready()  # requests that wait for a pool now have one

    def read_prefixes(self, call: GenerationRequest, body: bytes) -> None:
        """Sets the prefixes of a call from its body, where pools are chosen by them."""
        if self.affinity is not None and len(self.all) > 1 and not call.prefixes:
            call.prefixes = self.affinity.prefixes_of(body, call.model, call.cache_salt or "")

    def choose(
        self, call: GenerationRequest, spent_ms: float, tried: Names | None = None
    ) -> Placement | Refusal:
        """Chooses the pool for a request, `spent_ms` after its arrival.

        `tried`: it was placed before, and these pools failed to serve it.
        """
        affinity = self.affinity
        tokens = call.prompt_tokens if call.cost == 1 else None
        served_by: str | None = None
        if affinity is not None and call.prefixes:
            served_by = affinity.served_by(call.cache_owner, call.prefixes)
        affine, why = served_by, PlacementReason.PREFIX
        if affine is None:
            affine, why = self._shortlist.adapter_pool(call.model), PlacementReason.ADAPTER
        asked = PlacementRequest(call.model, call.cost, tokens, call.options, affine, why)
        at_once = None if tried else self._shortlist.choose_at_once(asked)
        if at_once is None:
            placement = self._best(call, asked, spent_ms, tried)
        else:
            pool, why = at_once
            placement = Placement(pool, pool.admission_request(call, spent_ms), why)
        if isinstance(placement, Refusal):
            return placement
        return self._placed(call, placement, served_by, spent_ms, first=tried is None)

    def _best(
        self, call: GenerationRequest, asked: PlacementRequest, spent_ms: float, tried: Names | None
    ) -> Placement | Refusal:
        """Compares the pools that may be the best for a request."""
        pools, load = self._shortlist.pools_for(asked, tried or ())
        drawn = pools is not self.all
        predicts = drawn or len(pools) <= MAX_POOLS_COMPARED
        requests: dict[str, AdmissionRequest] = {}
        snapshots: list[PoolSnapshot] = []
        for pool in pools:
            requests[pool.name] = request = pool.admission_request(call, spent_ms)
            snapshot = pool.snapshot(request if predicts else None)
            if pool.keeps_queue and snapshot.unavailable is not None:
                snapshot = snapshot._replace(unavailable=None)  # its own admission decides
            snapshots.append(snapshot)
        found: tuple[str, PlacementReason] | Refusal
        if drawn and len(pools) > 1 and asked.affine is None and call.options.empty:
            found = routing.best(snapshots, asked, load)  # each of them takes it
        else:
            found = routing.place([*snapshots, *self._absent()], asked, tried or (), load)
        if isinstance(found, Refusal):
            if self.draining:  # takes precedence over every other reason
                drained = (pool.unavailable for pool in self.all)
                return next(filter(None, drained), refusals.shutting_down())
            return found
        name, reason = found
        return Placement(self._by_name[name], requests[name], reason)

    def _placed(
        self,
        call: GenerationRequest,
        placement: Placement,
        served_by: str | None,
        spent_ms: float,
        *,
        first: bool,
    ) -> Placement | Refusal:
        """Notes where a request goes, unless it has waited for too long. `first`: it was not placed
        before."""
        pool, request, affinity = placement.pool, placement.request, self.affinity
        if request.adapter is not None:
            pool.watcher.expect_adapter(request.adapter)
        rules = pool.admission.rules
        if not first and spent_ms > 1000 * (limit_s := rules.of(request.service_class).max_wait_s):
            text = f"no slot of any pool became free within {limit_s:g} s"
            return Refusal(Reason.QUEUE_TIMEOUT, text)
        if affinity is not None and call.prefixes:
            if first:
                pool.by_prefix[PrefixUse.of(pool.name, served_by)] += 1
            affinity.placed(call.cache_owner, call.prefixes, pool.name)
        return placement

    def capable(self, call: GenerationRequest) -> list[Pool]:
        """Returns the pools that might serve a request, by what it asks for."""
        asked, name = PlacementRequest(call.model, 1, None, call.options), call.options.pool
        pools: Iterable[Pool] = self.all
        if self.one is None:
            pools, _ = self._shortlist.pools_for(asked, ())
        return [
            pool
            for pool in pools
            if asked.is_served_by(pool.watcher.models)
            and asked.selects(
                pool.profile.measurement_type, pool.on_request, name in (pool.name, pool.group)
            )
        ]

    def longest_wait_s(
        self, call: GenerationRequest, refusal: Refusal, spent_ms: float, waiting: int
    ) -> float:
        """Returns the seconds for which a request may wait, with so many others, for a pool that is
        expected back; 0: it must not, or none is."""
        start_ms, options = refusal.predicted_start_ms, call.options
        group = options.pool if options.pool in self._rules else self.settings[0].name
        rules = self._rules[group].of(call.service_class)
        if start_ms is None or options.do_not_queue or waiting >= rules.queue_capacity:
            return 0.0
        request = AdmissionRequest(
            call.service_class, deadline_ms=options.deadline_ms, max_wait_ms=options.max_wait_ms
        )
        longest_s, _ = refusals.longest_wait(request, rules)
        longest_s -= spent_ms / 1000
        return longest_s if start_ms <= 1000 * longest_s else 0.0

    def reads_pairs(self, model: str) -> bool:
        """Whether all engines that may serve this model read the two texts of a pair together."""
        asked = [pool for pool in self.all if model in (pool.watcher.models or (model,))]
        return all(pool.watcher.reads_pairs for pool in asked or self.all)

    def choose_unadmitted(
        self, model: str, options: RequestOptions, tried: Names = ()
    ) -> Pool | Refusal:
        """Chooses the pool for a request that takes no slot: the first that can serve it, and has
        not been `tried`."""
        if self.one is not None and options.empty:
            return self.one
        asked = PlacementRequest(model, 0, None, options)
        pools: Iterable[Pool] = self.all
        if not tried:
            pools, _ = self._shortlist.pools_for(asked, ())
        snapshots = [pool.snapshot() for pool in pools if pool.name not in tried] + self._absent()
        name = routing.first_available(snapshots, asked)
        return name if isinstance(name, Refusal) else self._by_name[name]

    def _absent(self) -> list[PoolSnapshot]:
        """Snapshots of the headless pools without an address, which are unavailable."""
        now = asyncio.get_running_loop().time()
        return [
            PoolSnapshot(
                name,
                group=name,
                measurement_type=self._profiles[name].measurement_type,
                on_request=settings.on_request,
                unavailable=self._absences[name].refusal(self.without_address[name], now),
            )
            for settings in self.settings
            if (name := settings.name) in self.without_address
        ]

    def _pool(self, settings: PoolSettings, group: str) -> Pool:
        return Pool(
            settings,
            self._profiles[group],
            self._rules[group],
            self._session,
            self._connect_timeout_s,
            keeps_queue=self._single,
            group=group,
            changes_every_s=lambda: len(self.all) / CHANGES_PER_S,
            sidecar_key=self._sidecar_key,
            durations_s=self._absent_s[group],
            on_ready=self._on_ready,
        )

    def _on_ready(self, pool: Pool) -> None:
        if (absence := self._absences.get(pool.group)) is not None:
            absence.ended(pool.connections.loop.time())
        if self.on_ready is not None:
            self.on_ready()

    def _set_pools(self, pools: Iterable[Pool]) -> None:
        """Sets the pools, and what follows from all of them."""
        self.all = tuple(pools)
        self._shortlist.replace(self.all)
        self.not_coalescing = frozenset(
            pool.group for pool in self.all if not pool.admission.rules.coalescing
        )
        self.coalescing = any(pool.admission.rules.coalescing for pool in self.all)

    def _observe(self, pool: Pool) -> None:
        """Has the pool report its changes to all that need them; a single one nobody compares."""
        leases, gate = self._parent_leases, pool.gate
        note = None if self._single else partial(self._shortlist.changed.add, pool)
        gate.on_change = note if leases is None else _ChangeReporter(pool, note, leases).report
        gate.claims.on_parent_offers = None if leases is None else leases.offered


class _ChangeReporter:
    """Reports the changes of a pool to parent sidecars, and to those that compare it."""

    def __init__(self, pool: Pool, note: Callable[[], None] | None, leases: ParentLeases) -> None:
        """`note`: None where nobody compares it."""
        self._pool = pool
        self._note = note
        self._leases = leases
        self._state = pool.state  # as reported

    def report(self) -> None:
        if self._note is not None:
            self._note()
        before, self._state = self._state, self._pool.state
        self._leases.changed(at_once=self._state is not before)
