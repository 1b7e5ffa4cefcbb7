"""The engines behind this sidecar, and which of them takes a request.

With a single pool and no wish about it, nothing is chosen and nothing is computed for choosing.
A headless pool is a group of pools, one for each of its addresses, which come and go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from orch_sidecar.admission import refusals
from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.config.changes import Configuration
from orch_sidecar.config.settings import PoolSettings, SidecarSettings
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.pools import routing as placement
from orch_sidecar.pools.pool import Pool, Wanted, labels_of
from orch_sidecar.pools.routing import View, Why, Wish
from vllm_plugin import profile as profiles
from vllm_plugin.profile import AdmissionRules, Profile

Configured = list[tuple[PoolSettings, Profile]]

# `measurement_type` of what belongs to no pool, where pools differ in theirs. No figure has it.
NO_TYPE: Final = "none"


class Chosen(NamedTuple):
    """The pool that takes a request, what it is asked for, and why that pool."""

    pool: Pool
    ask: AdmissionRequest
    why: Why


class PoolRegistry:
    """All pools of a sidecar, in the order in which they were given."""

    def __init__(
        self, told: Configured, settings: SidecarSettings, session: aiohttp.ClientSession
    ) -> None:
        self.told = tuple(each for each, _ in told)
        self._profiles = {each.name: profile for each, profile in told}
        self._rules = {each.name: rules_of(profile, settings) for each, profile in told}
        self._session = session
        self._connect_timeout_s = settings.connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self.leaving = False  # they drain for good
        self.all = tuple(self._pool(each, each.name) for each in self.told if not each.headless)
        # A single one, for good.
        self.one = self.all[0] if len(self.all) == len(self.told) == 1 else None
        # Those that have left, too: requests that they still serve ask for them by name.
        self._by_name = {pool.name: pool for pool in self.all}
        # Why the headless ones have no address; those that have one are not in here.
        self.missing = {each.name: _unknown(each) for each in self.told if each.headless}

    def __iter__(self) -> Iterator[Pool]:
        return iter(self.all)

    def __getitem__(self, name: str) -> Pool:
        return self._by_name[name]

    @property
    def ctx_max(self) -> int | None:
        """The longest context of any pool; None while one of them has not told its own."""
        if self.one is not None:
            return self.one.follower.ctx_max
        known = [pool.follower.ctx_max for pool in self.all]
        return None if None in known else max((each for each in known if each), default=None)

    @property
    def coalescing(self) -> bool:
        """Whether any pool shares decodes."""
        if self.one is not None:
            return self.one.gate.core.rules.coalescing
        return any(pool.gate.core.rules.coalescing for pool in self.all)

    @property
    def draining(self) -> bool:
        if not self.all:
            return self.leaving
        return all(pool.gate.core.draining for pool in self.all)

    @property
    def state(self) -> EngineState:
        """Ready if any pool is; else that of the first."""
        states = [pool.state for pool in self.all]
        if EngineState.READY in states:
            return EngineState.READY
        if self.leaving:
            return EngineState.DRAINING
        return states[0] if states else EngineState.STARTING

    def states(self) -> dict[str, str]:
        """By name. A headless pool without an address is `absent`."""
        found = {pool.name: pool.state.value for pool in self.all}
        return found | dict.fromkeys(self.missing, "absent")

    def absent(self) -> dict[str, Profile]:
        """The headless pools that have no address, with their profiles."""
        return {name: self._profiles[name] for name in self.missing}

    def join(self, group: str, number: int, address: str) -> Pool:
        """One more address of a headless pool: a pool of its own, named by group and number."""
        [told] = [each for each in self.told if each.name == group]
        parts = urlsplit(told.url)
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{parts.port or 80}"
        name = f"{group}-{number}"
        pool = self._pool(told.model_copy(update={"name": name, "url": url}), group)
        if self.leaving:
            pool.gate.drain(OrderedBy.SHUTDOWN)
        self._by_name[name] = pool
        self.all = tuple(
            each
            for one in self.told
            for each in sorted((*self.all, pool), key=lambda each: each.name)
            if each.group == one.name
        )
        self.missing.pop(group, None)
        return pool

    def part(self, pool: Pool, why: str) -> None:
        """Its address is none any more: who waits there is placed anew, what runs goes on."""
        self.all = tuple(each for each in self.all if each is not pool)
        refusal = Refusal(Reason.ENGINE_DOWN, why)
        if not any(each.group == pool.group for each in self.all):
            self.missing[pool.group] = refusal
        pool.gate.drain(OrderedBy.SHUTDOWN)
        pool.gate.engine_unavailable(refusal)
        pool.gate.dismiss(refusal)
        pool.connections.close()

    def configure(self, connect_timeout_s: float, rules: Mapping[str, AdmissionRules]) -> None:
        """Another time limit for all, and other rules for these; by their names as configured."""
        self._connect_timeout_s = connect_timeout_s
        self._rules.update(rules)
        for pool in self.all:
            pool.connections.connect_timeout_s = connect_timeout_s
            if pool.group in rules:
                pool.gate.reload(rules[pool.group])

    def leave(self) -> None:
        """All of them drain, and none takes requests again."""
        self.leaving = True
        for pool in self.all:
            pool.gate.drain(OrderedBy.SHUTDOWN)

    def choose(
        self, wanted: Wanted, spent_ms: float, tried: Collection[str] | None = None
    ) -> Chosen | Refusal:
        """The pool for a request. `tried`: it was placed before, and these pools failed it."""
        if self.draining:
            drained = (pool.unavailable for pool in self.all)
            return next(filter(None, drained), refusals.shutting_down())
        now, demand, options = self._loop.time(), wanted.demand, wanted.options
        asks = {pool.name: pool.ask(wanted, spent_ms) for pool in self.all}
        views = [pool.view(asks[pool.name], now) for pool in self.all] + self._absent()
        tokens = demand.prompt_tokens if demand.cost == 1 else None
        wish = _wish(demand.model, options, demand.cost, tokens)
        placed = placement.place(views, wish, tried or ())
        if isinstance(placed, Refusal):
            return placed
        pool = self._by_name[placed.pool]
        limit_s = pool.gate.core.rules.of(asks[placed.pool].service_class).max_wait_s
        if tried is not None and spent_ms > 1000 * limit_s:
            text = f"no slot came free within {limit_s:g} s, in any pool"
            return Refusal(Reason.QUEUE_TIMEOUT, text)
        return Chosen(pool, asks[placed.pool], placed.why)

    def choose_unadmitted(self, model: str, options: RequestOptions) -> Pool | Refusal:
        """The pool for a request that takes no slot: the first that can take it."""
        if self.one is not None and options is NO_OPTIONS:
            return self.one
        now = self._loop.time()
        views = [pool.view(None, now) for pool in self.all] + self._absent()
        name = placement.first(views, _wish(model, options, 0, None))
        return name if isinstance(name, Refusal) else self._by_name[name]

    def _absent(self) -> list[View]:
        """The headless pools without an address: they are there, and can take nothing now."""
        return [
            View(
                told.name,
                self._profiles[told.name].measurement_type,
                models=None,
                slots_total=0,
                ctx_max=None,
                room=0,
                queue_depth=0,
                unavailable=self.missing[told.name],
                end_ms=None,
                group=told.name,
                on_request=told.on_request,
            )
            for told in self.told
            if told.name in self.missing
        ]

    def _pool(self, told: PoolSettings, group: str) -> Pool:
        return Pool(
            told,
            self._profiles[group],
            self._rules[group],
            self._session,
            self._connect_timeout_s,
            keeps_queue=len(self.told) == 1 and not told.headless,
            group=group,
        )


def configured(settings: SidecarSettings) -> Configured:
    """The pools that the settings name, with their profiles. Raises ProfileError."""
    if settings.pools is not None:
        return [(told, profiles.load(told.profile)) for told in settings.pools]
    profile = profiles.load(settings.profile)
    told = PoolSettings(
        name=profile.name,
        url=settings.engine_url,
        profile=settings.profile,
        api_key=settings.engine_api_key,
    )
    return [(told, profile)]


def configuration(told: Configured, settings: SidecarSettings) -> Configuration:
    """All that the settings say, and what they name."""
    return Configuration(
        settings,
        {pool.name: profile for pool, profile in told},
        {pool.name: rules_of(profile, settings) for pool, profile in told},
    )


def common_labels(told: Configured) -> dict[str, Any]:
    """The span attributes that are the same for all pools."""
    first, *others = (labels_of(*each) for each in told)
    if told[0][0].headless:
        del first["orch.pool"]  # each address has a name of its own
    return {
        name: value
        for name, value in first.items()
        if all(other[name] == value for other in others)
    }


def unplaced_labels(common: Mapping[str, Any]) -> dict[str, Any]:
    """The span attributes of what belongs to no pool. `common`: those of all pools."""
    return {"measurement_type": NO_TYPE, **common}


def rules_of(profile: Profile, settings: SidecarSettings) -> AdmissionRules:
    """The profile's rules, with what the settings say instead."""
    given: dict[str, Any] = {}
    if settings.queue_capacity is not None:
        given["queue_capacity"] = settings.queue_capacity
    if settings.queue_timeout_s is not None:
        given["max_wait_s"] = settings.queue_timeout_s
    rules = profile.admission
    if not given:
        return rules
    classes = {"interactive": rules.interactive, "bulk": rules.bulk}
    return rules.model_copy(
        update={
            name: None if each is None else each.model_copy(update=given)
            for name, each in classes.items()
        }
    )


def _unknown(told: PoolSettings) -> Refusal:
    return Refusal(Reason.ENGINE_STARTING, f"no address of the pool {told.name} is known yet")


def _wish(model: str, options: RequestOptions, cost: int, tokens: int | None) -> Wish:
    return Wish(model, cost, tokens, options.pool, options.prefers, options.measurement_type)
