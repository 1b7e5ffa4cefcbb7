"""The pools of this sidecar, and the placement of requests among them.

With a single pool and no options, callers use `one` and no snapshot is made. A headless pool is a
group of pools, one for each of its current addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from secrets import randbits
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp

from orch_sidecar.admission import refusals
from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.config.resolve import ConfiguredPools, rules_of
from orch_sidecar.config.settings import PoolSettings, SidecarSettings
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.pools import routing
from orch_sidecar.pools.affinity import PrefixAffinity
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.pool import GenerationCall, Pool, PrefixUse
from orch_sidecar.pools.routing import PlacementReason, PlacementRequest
from orch_sidecar.pools.snapshot import PoolSnapshot
from vllm_plugin.profile import AdmissionRules, Profile


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
        self._parent_leases: ParentLeases | None = None
        self.shutting_down = False
        self.affinity = PrefixAffinity(randbits(32)) if settings.prefix_affinity else None
        self.all = tuple(self._pool(each, each.name) for each in self.settings if not each.headless)
        # The only pool there can ever be, if so.
        self.one = self.all[0] if len(self.all) == len(self.settings) == 1 else None
        # Removed pools stay: requests that they still serve look them up by name.
        self._by_name = {pool.name: pool for pool in self.all}
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
    def ctx_max(self) -> int | None:
        """The longest context of any pool; None until all engines have reported theirs."""
        if self.one is not None:
            return self.one.watcher.ctx_max
        known = [pool.watcher.ctx_max for pool in self.all]
        return None if None in known else max((each for each in known if each), default=None)

    @property
    def coalescing(self) -> bool:
        """Whether any pool coalesces identical requests."""
        if self.one is not None:
            return self.one.gate.rules.coalescing
        return any(pool.gate.rules.coalescing for pool in self.all)

    @property
    def draining(self) -> bool:
        """Whether all pools drain."""
        for pool in self.all:
            if pool.gate.draining is None:
                return False
        return bool(self.all) or self.shutting_down

    @property
    def state(self) -> EngineState:
        """`ready` if any pool is, else the state of the first."""
        states = [pool.state for pool in self.all]
        if EngineState.READY in states:
            return EngineState.READY
        if self.shutting_down:
            return EngineState.DRAINING
        return states[0] if states else EngineState.STARTING

    def states(self) -> dict[str, str]:
        """The states by pool name; a headless pool without an address is `absent`."""
        states = {pool.name: pool.state.value for pool in self.all}
        return states | dict.fromkeys(self.without_address, "absent")

    def absent(self) -> dict[str, Profile]:
        """The profiles of the headless pools that have no address, by name."""
        return {name: self._profiles[name] for name in self.without_address}

    def add_address(self, group: str, number: int, address: str) -> Pool:
        """Adds an address of a headless pool, as a pool that is named by group and number."""
        [settings] = [each for each in self.settings if each.name == group]
        parts = urlsplit(settings.url)
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{parts.port or 80}"
        name = f"{group}-{number}"
        pool = self._pool(settings.model_copy(update={"name": name, "url": url}), group)
        if self.shutting_down:
            pool.gate.drain(OrderedBy.SHUTDOWN)
        self._by_name[name] = pool
        self.all = tuple(
            each
            for one in self.settings
            for each in sorted((*self.all, pool), key=lambda each: each.name)
            if each.group == one.name
        )
        self.without_address.pop(group, None)
        return pool

    def remove_address(self, pool: Pool, why: str) -> None:
        """Removes the pool of an address that is gone: its queued requests are placed again, its
        running requests go on."""
        self.all = tuple(each for each in self.all if each is not pool)
        refusal = Refusal(Reason.ENGINE_DOWN, why)
        if not any(each.group == pool.group for each in self.all):
            self.without_address[pool.group] = refusal
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

    def report_changes(self, leases: ParentLeases | None) -> None:
        """Reports each change of a pool to the subscribers of `leases` from now on; None stops."""
        self._parent_leases = leases
        for pool in self.all:
            pool.gate.on_change = None if leases is None else leases.changed

    def shut_down(self) -> None:
        """Drains all pools, for good."""
        self.shutting_down = True
        for pool in self.all:
            pool.gate.drain(OrderedBy.SHUTDOWN)

    def read_prefixes(self, call: GenerationCall, body: bytes) -> None:
        """Sets the prefixes of a call from its body, where pools are chosen by them."""
        if self.affinity is not None and len(self.all) > 1 and not call.prefixes:
            call.prefixes = self.affinity.prefixes_of(body, call.generation.model)

    def choose(
        self, call: GenerationCall, spent_ms: float, tried: Collection[str] | None = None
    ) -> Placement | Refusal:
        """Chooses the pool for a request, `spent_ms` after its arrival.

        `tried`: it was placed before, and these pools failed to serve it.
        """
        generation = call.generation
        tokens = generation.prompt_tokens if generation.cost == 1 else None
        requests: dict[str, AdmissionRequest] = {}
        snapshots: list[PoolSnapshot] = []
        for pool in self.all:
            requests[pool.name] = request = pool.admission_request(call, spent_ms)
            snapshots.append(pool.snapshot(request))
        affinity = self.affinity
        served_by: str | None = None
        if affinity is not None and call.prefixes:
            served_by = affinity.served_by(call.key, call.prefixes)
        found = routing.place(
            snapshots + self._absent(),
            PlacementRequest(generation.model, generation.cost, tokens, call.options, served_by),
            tried or (),
        )
        if isinstance(found, Refusal):
            if self.draining:  # takes precedence over every other reason
                drained = (pool.unavailable for pool in self.all)
                return next(filter(None, drained), refusals.shutting_down())
            return found
        name, reason = found
        pool, request = self._by_name[name], requests[name]
        limit_s = pool.gate.rules.of(request.service_class).max_wait_s
        if tried is not None and spent_ms > 1000 * limit_s:
            text = f"no slot of any pool became free within {limit_s:g} s"
            return Refusal(Reason.QUEUE_TIMEOUT, text)
        if affinity is not None and call.prefixes:
            if tried is None:
                pool.by_prefix[_use(name, served_by)] += 1
            affinity.placed(call.key, call.prefixes, name)
        return Placement(pool, request, reason)

    def choose_unadmitted(self, model: str, options: RequestOptions) -> Pool | Refusal:
        """Chooses the pool for a request that takes no slot: the first that can serve it."""
        if self.one is not None and options is NO_OPTIONS:
            return self.one
        pools = [pool.snapshot() for pool in self.all] + self._absent()
        name = routing.first_available(pools, PlacementRequest(model, 0, None, options))
        return name if isinstance(name, Refusal) else self._by_name[name]

    def _absent(self) -> list[PoolSnapshot]:
        """Snapshots of the headless pools without an address, which are unavailable."""
        if not self.without_address:
            return []
        return [
            PoolSnapshot(
                name,
                group=name,
                profile=self._profiles[name],
                on_request=settings.on_request,
                unavailable=self.without_address[name],
            )
            for settings in self.settings
            if (name := settings.name) in self.without_address
        ]

    def _pool(self, settings: PoolSettings, group: str) -> Pool:
        pool = Pool(
            settings,
            self._profiles[group],
            self._rules[group],
            self._session,
            self._connect_timeout_s,
            keeps_queue=len(self.settings) == 1 and not settings.headless,
            group=group,
        )
        if self._parent_leases is not None:
            pool.gate.on_change = self._parent_leases.changed
        return pool


def _use(name: str, served_by: str | None) -> PrefixUse:
    if served_by is None:
        return PrefixUse.NEW
    return PrefixUse.HIT if served_by == name else PrefixUse.MOVED
