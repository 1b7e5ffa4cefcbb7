"""One engine with its admission, or one sidecar below this one (a tier)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from orch_sidecar.admission import refusals
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.headers import (
    AUTHORIZATION,
    HOST,
    X_MEASUREMENT_TYPE,
    X_ORCH_POOL,
    X_ORCH_PREDICTED_START_MS,
    X_ORCH_QUEUE_POSITION,
    X_VLLM_PRIORITY,
    field_line,
)
from orch_sidecar.api.options import NO_OPTIONS, RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import PromptSize
from orch_sidecar.config.settings import PoolSettings
from orch_sidecar.control.capabilities import Seen
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.pools.engine_watcher import EngineWatcher
from orch_sidecar.pools.parent_leases import PoolView
from orch_sidecar.pools.routing import View
from orch_sidecar.wire import backpressure as tier
from orch_sidecar.wire.backpressure import RejectionReader
from orch_sidecar.wire.engine_connection import ConnectionPool
from vllm_plugin.profile import AdmissionRules, Profile, ServiceClass

logger = logging.getLogger("orch.sidecar")

# Each request that finds no connection would be a line.
_LOG_EVERY_S: Final = 1.0

# Bound once: looking up a member of an enum is slow.
_BULK: Final = ServiceClass.BULK
_INTERACTIVE: Final = ServiceClass.INTERACTIVE
_INTERACTIVE_PRIORITY: Final = field_line(X_VLLM_PRIORITY, "0")
_BULK_PRIORITY: Final = field_line(X_VLLM_PRIORITY, "1")
_AT_ONCE: Final = field_line(X_ORCH_QUEUE_POSITION, "0") + field_line(
    X_ORCH_PREDICTED_START_MS, "0"
)


@dataclass(slots=True)
class Wanted:
    """What a request asks of whichever pool takes it."""

    demand: GenerationRequest
    options: RequestOptions
    service_class: ServiceClass
    body_bytes: int


def labels_of(told: PoolSettings, profile: Profile) -> dict[str, Any]:
    """The span attributes of what a pool serves."""
    return {
        "measurement_type": profile.measurement_type.value,
        "orch.profile": profile.name,
        "orch.batching": profile.batching,
        "orch.pool": told.name,
    }


class Pool:
    """One engine and its admission. Lives on one event loop."""

    def __init__(
        self,
        told: PoolSettings,
        profile: Profile,
        rules: AdmissionRules,
        session: aiohttp.ClientSession,
        connect_timeout_s: float,
        *,
        keeps_queue: bool,
        group: str | None = None,
    ) -> None:
        """`group`: the headless pool that this is an address of."""
        self.name = told.name
        self.group = group or told.name
        self.on_request = told.on_request
        self.keeps_queue = keeps_queue
        self.url = told.url
        self.tier = told.tier
        self.rejection: RejectionReader = tier.by_sidecar if told.tier else tier.by_engine
        self.profile = profile
        self.gate = Gate(AdmissionController(rules))
        self.connections = ConnectionPool(told.url, connect_timeout_s)
        # What the head of every request begins with: for whom it is.
        self.address = field_line(HOST, self.connections.authority.decode())
        if told.below is not None:
            self.address += field_line(X_ORCH_POOL, told.below)
        key = None if told.api_key is None else f"Bearer {told.api_key.get_secret_value()}"
        self.authorization = None if key is None else key.encode("ascii")
        self.follower = EngineWatcher(
            session,
            told.url,
            {} if key is None else {AUTHORIZATION: key},
            self.gate,
            profile,
            keeps_queue=keeps_queue,
            tier=told.tier,
            below=told.below,
        )
        # Who waits here and may wait at another pool of the group: class and sequences.
        self.movable: dict[str, tuple[ServiceClass, int]] = {}
        self.prompt_size = PromptSize()
        # Refused and given up while waiting, by class and reason; the rest the core counts.
        self.turned_down: Counter[tuple[ServiceClass, str]] = Counter()
        self.labels = labels_of(told, profile)
        self._interactive_labels = self.labels | {"orch.class": ServiceClass.INTERACTIVE.value}
        self._bulk_labels = self.labels | {"orch.class": ServiceClass.BULK.value}
        self.fields = field_line(X_MEASUREMENT_TYPE, profile.measurement_type)
        self.fields_at_once = self.fields + _AT_ONCE
        self._unreachable_log_at = float("-inf")
        policy = profile.engine.get("scheduling_policy")
        # Anything else than `priority` takes requests as they come; a sidecar below decides.
        self._priorities = not self.tier and policy is not None and policy.value == "priority"

    @property
    def classes(self) -> Sequence[ServiceClass]:
        """The classes that its profile has."""
        interactive = self.gate.core.rules.interactive is not None
        return tuple(ServiceClass) if interactive else (ServiceClass.BULK,)

    @property
    def state(self) -> EngineState:
        """That of its engine, unless it takes no requests itself."""
        return EngineState.DRAINING if self.gate.core.draining else self.follower.state

    @property
    def message(self) -> str:
        """Why it is not ready, in words; empty if it is."""
        drained = self._drained()
        return self.follower.message if drained is None else drained.message

    @property
    def unavailable(self) -> Refusal | None:
        """Why it takes no request now, if so."""
        return self._drained() or self.gate.core.unavailable

    def _drained(self) -> Refusal | None:
        drain = self.gate.core.draining
        return None if drain is None else refusals.draining(drain.ordered_by)

    def unreachable(self, error: OSError) -> Refusal:
        """No connection to its engine could be opened. Where to is for the log alone."""
        now = self.connections.loop.time()
        if now >= self._unreachable_log_at:
            self._unreachable_log_at = now + _LOG_EVERY_S
            cause = str(error) or type(error).__name__  # a timeout has no text
            logger.warning("pool %s: no connection to %s: %s", self.name, self.url, cause)
        text = "no connection to the engine could be opened"
        return self.gate.core.unavailable or Refusal(Reason.ENGINE_DOWN, text)

    def labels_of(self, service_class: ServiceClass) -> dict[str, Any]:
        """Span attributes of a request of that class."""
        return self._bulk_labels if service_class is _BULK else self._interactive_labels

    def priority(self, service_class: ServiceClass) -> bytes:
        """The header line by which its engine orders requests, empty if it does not."""
        if not self._priorities:
            return b""
        return _BULK_PRIORITY if service_class is _BULK else _INTERACTIVE_PRIORITY

    def ask(self, wanted: Wanted, spent_ms: float) -> AdmissionRequest:
        """What a request asks of this pool, `spent_ms` after it arrived."""
        demand, options = wanted.demand, wanted.options
        service_class = wanted.service_class
        if service_class is _INTERACTIVE and self.gate.core.rules.interactive is None:
            service_class = _BULK
        prompt_tokens = demand.prompt_tokens
        if prompt_tokens is None:
            ctx_max = self.follower.ctx_max
            most = None if ctx_max is None else ctx_max * demand.cost
            prompt_tokens = self.prompt_size.estimate(wanted.body_bytes, most)
        if options is NO_OPTIONS:
            return AdmissionRequest(service_class, demand.cost, prompt_tokens, demand.max_tokens)
        return AdmissionRequest(
            service_class,
            demand.cost,
            prompt_tokens,
            demand.max_tokens,
            _left(options.deadline_ms, spent_ms),
            _left(options.max_wait_ms, spent_ms),
            not options.do_not_queue,
        )

    def view(self, ask: AdmissionRequest | None, now: float) -> View:
        """How it is now, for a request that would ask for that."""
        core, follower = self.gate.core, self.follower
        unavailable = self.unavailable
        forecast = None
        if ask is not None and unavailable is None:
            forecast = core.forecast(ask, now)
        return View(
            self.name,
            self.profile.measurement_type,
            follower.models,
            core.ledger.slots_total,
            follower.ctx_max,
            core.ledger.room,
            core.queue_depth,
            unavailable,
            None if forecast is None else forecast.end_ms,
            self.group,
            self.on_request,
        )

    def told(self) -> PoolView:
        """How it is, for sidecars above."""
        core = self.gate.core
        return PoolView(
            self.name,
            self.profile,
            core.ledger,
            {each.value: core.queued(each) for each in self.classes},
            self.state.value,
            self.message,
            self.follower.document,
        )

    def seen(self, state: str) -> Seen:
        """How it is, for `capabilities`."""
        follower = self.follower
        return Seen(
            self.name,
            self.profile,
            follower.document,
            self.gate.core,
            self.classes,
            state,
            follower.age_ms,
            follower.busy_ratio,
        )


def _left(limit_ms: float | None, spent_ms: float) -> float | None:
    return None if limit_ms is None else max(0.0, limit_ms - spent_ms)
