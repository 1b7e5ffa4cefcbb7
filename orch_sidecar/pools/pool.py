"""Keeps a pool: one upstream (an engine, or a child sidecar) with the admission in front of it.

Makes the pool's snapshot. Decides nothing about requests: `admission` and `routing` do.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import aiohttp
from pydantic import SecretStr

from orch_sidecar.admission import refusals
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.headers import (
    AUTHORIZATION,
    HOST,
    X_MEASUREMENT_TYPE,
    X_ORCH_CLASS,
    X_ORCH_POOL,
    X_ORCH_PREDICTED_START_MS,
    X_ORCH_QUEUE_POSITION,
    X_ORCH_SIDECAR_KEY,
    X_VLLM_PRIORITY,
    field_line,
)
from orch_sidecar.api.refusal import Reason, Refusal, error_text
from orch_sidecar.api.usage import PromptSize
from orch_sidecar.config.configuration import labels_of
from orch_sidecar.config.pool_settings import PoolSettings
from orch_sidecar.engine_state.states import ANSWERING_STATES, PoolState
from orch_sidecar.pools.candidates import PoolKind, Standing, standing
from orch_sidecar.pools.engine_watcher import EngineWatcher
from orch_sidecar.pools.routing import PoolSnapshot, PrefixUse
from orch_sidecar.pools.status import PoolStatus, status_of
from orch_sidecar.wire import backpressure
from orch_sidecar.wire.backpressure import RejectionReader
from orch_sidecar.wire.engine_connection import ConnectionPool
from vllm_plugin.contracts.profile import BULK, INTERACTIVE, AdmissionRules, Profile, ServiceClass

logger = logging.getLogger("orch.sidecar")

# Seconds for which an engine may send nothing of a response: at most, and if it is not heard of.
LONGEST_SILENCE_S: Final = 600.0
_HUNG_S: Final = 30.0
_HUNG_STEPS: Final = 20
_HUNG_TIMES: Final = 3

# At most one log line about failed connections per second.
_LOG_EVERY_S: Final = 1.0

_BULK_CLASS: Final = field_line(X_ORCH_CLASS, BULK.value)
_NO_WAIT: Final = field_line(X_ORCH_QUEUE_POSITION, "0") + field_line(
    X_ORCH_PREDICTED_START_MS, "0"
)


class Pool:
    """An upstream and its admission. Belongs to one event loop."""

    def __init__(
        self,
        settings: PoolSettings,
        profile: Profile,
        rules: AdmissionRules,
        session: aiohttp.ClientSession,
        connect_timeout_s: float,
        *,
        keeps_queue: bool,
        group: str | None = None,
        changes_every_s: Callable[[], float] = float,
        sidecar_key: SecretStr | None = None,
        durations_s: dict[Reason, float] | None = None,
        on_ready: Callable[[Pool], None] | None = None,
    ) -> None:
        """`keeps_queue`: requests stay queued while the engine is unavailable. `group`: the name of
        the headless pool that this is one address of. `changes_every_s`: see EngineWatcher.
        `sidecar_key`: by which engines know this sidecar; child sidecars are not sent it.
        `durations_s`: how long the addresses of its group were absent. `on_ready`: called when it
        begins to take requests."""
        self.name = settings.name
        self.group = group or settings.name
        self.on_request = settings.on_request
        self.keeps_queue = keeps_queue
        self.url = settings.url
        self.tier = settings.tier
        self.rejection: RejectionReader = (
            backpressure.sidecar_rejection if settings.tier else backpressure.engine_rejection
        )
        self.profile = profile
        self.admission = controller = AdmissionController(rules)
        controller.keeps_queue = keeps_queue
        self.gate = Gate(controller, durations_s)
        self.ledger, self.queues = controller.ledger, controller.queues
        self.claims = self.gate.claims
        self.connections = ConnectionPool(settings.url, connect_timeout_s)
        # The first lines of every request head.
        self.address = field_line(HOST, self.connections.authority.decode())
        if settings.below is not None:
            self.address += field_line(X_ORCH_POOL, settings.below)
        key = None if settings.api_key is None else f"Bearer {settings.api_key.get_secret_value()}"
        self.authorization = None if key is None else key.encode("ascii")
        fields: dict[str, str] = {} if key is None else {AUTHORIZATION: key}
        if sidecar_key is not None and not settings.tier:
            fields[X_ORCH_SIDECAR_KEY] = own = sidecar_key.get_secret_value()
            self.address += field_line(X_ORCH_SIDECAR_KEY, own)
        self.watcher = EngineWatcher(
            session,
            settings.url,
            fields,
            self.gate,
            profile,
            keeps_queue=keeps_queue,
            tier=settings.tier,
            child_pool=settings.below,
            changes_every_s=changes_every_s,
            on_ready=None if on_ready is None else partial(on_ready, self),
        )
        self._kind: PoolKind | None = None
        self._kind_models: Collection[str] | None = None  # as the watcher has them
        self.prompt_size = PromptSize()
        # Requests that were placed here, by whether the pool last served the beginning of theirs.
        self.by_prefix: Counter[PrefixUse] = Counter()
        self.labels = labels_of(settings, profile)
        # The span attributes of a request.
        self.class_labels = {
            each: self.labels | {"orch.class": each.value} for each in ServiceClass
        }
        # Header lines for clients: of each answer, and of one whose request did not wait.
        self.response_fields = field_line(X_MEASUREMENT_TYPE, profile.measurement_type)
        self.response_fields_at_once = self.response_fields + _NO_WAIT
        self._unreachable_log_at = float("-inf")
        # Header lines for the engine: the priority, where vLLM reads it, and that a request is
        # bulk, which determines the place of its claim.
        policy = profile.engine.get("scheduling_policy")
        # Only this policy of vLLM reads priorities; a child sidecar sets its own.
        priorities = not self.tier and policy is not None and policy.value == "priority"
        # A child gets the class by `backpressure.child_fields`. To an engine, which only has to
        # know which claims are urgent, idle requests are bulk ones of a lower priority.
        self.class_fields = {
            each: b""
            if self.tier
            else (field_line(X_VLLM_PRIORITY, str(each.rank)) if priorities else b"")
            + (b"" if each is INTERACTIVE else _BULK_CLASS)
            for each in ServiceClass
        }

    @property
    def state(self) -> PoolState:
        """The engine's state, or `draining` while the pool itself drains."""
        return PoolState.DRAINING if self.admission.draining else self.watcher.state

    @property
    def unavailable(self) -> Refusal | None:
        """The refusal of new requests while the pool takes none, else None."""
        return self._drained() or self.admission.unavailable

    def _drained(self) -> Refusal | None:
        drain = self.admission.draining
        return None if drain is None else refusals.draining(drain.ordered_by)

    def unreachable(self, error: OSError) -> Refusal:
        """Logs a failed connection and returns the refusal, which does not reveal the address."""
        now = self.connections.loop.time()
        if now >= self._unreachable_log_at:
            self._unreachable_log_at = now + _LOG_EVERY_S
            cause = error_text(error)
            logger.warning("pool %s: no connection to %s: %s", self.name, self.url, cause)
        text = "no connection to the engine could be opened"
        return self.admission.away_refusal(now) or Refusal(Reason.ENGINE_DOWN, text)

    def silence_limit_s(self) -> float:
        """Returns the seconds for which a response of the engine may be silent.

        An engine that is heard of tells itself when it makes no progress. Of one that is not, as
        the plugin judges stalls: many of its steps, and longer than it was not heard of before.
        """
        if self.watcher.state in ANSWERING_STATES:
            return LONGEST_SILENCE_S
        admission = self.admission
        steps_s = _HUNG_STEPS * (admission.service_times.pace_s(0) or 0.0)
        before_s = _HUNG_TIMES * admission.absence.last_duration_s(Reason.ENGINE_STALE)
        return min(LONGEST_SILENCE_S, max(_HUNG_S, steps_s, before_s))

    def admission_request(self, call: GenerationRequest, spent_ms: float) -> AdmissionRequest:
        """Returns what `call` asks of this pool's admission, `spent_ms` after its arrival."""
        options, service_class = call.options, call.service_class
        if service_class is INTERACTIVE and self.admission.rules.interactive is None:
            service_class = BULK
        prompt_tokens = call.prompt_tokens
        if prompt_tokens is None:
            ctx_max = self.watcher.ctx_max
            most = None if ctx_max is None else ctx_max * call.cost
            prompt_tokens = self.prompt_size.estimate(call.body_bytes, most)
        adapters = self.watcher.adapters
        ask = AdmissionRequest(
            service_class,
            call.cost,
            prompt_tokens,
            call.max_tokens,
            call.key,
            call.weight,
            call.model if adapters and call.model in adapters else None,
            call.is_later_part,
        )
        if not options.empty:
            ask.deadline_ms = _remaining_ms(options.deadline_ms, spent_ms)
            ask.max_wait_ms = _remaining_ms(options.max_wait_ms, spent_ms)
            ask.may_queue = not options.do_not_queue
            ask.key = options.flow or call.key  # it has none unless it may name flows
            ask.tpot_ms = options.tpot_ms
        return ask

    def fits(self, service_class: ServiceClass, cost: int) -> bool:
        """Whether so many sequences of a class can start now."""
        free = self.admission.constraints.free_slots(service_class, self.connections.loop.time())
        return not self.queues.urgent and free >= cost

    def standing(self) -> Standing | None:
        """Returns how the pool compares with others for the next request; None: it takes none."""
        admission, watcher, ledger = self.admission, self.watcher, self.ledger
        if admission.draining is not None or admission.unavailable is not None:
            return None
        # What the next request of the most urgent class has to expect.
        pace_s, now = admission.service_times.pace_s(), self.connections.loop.time()
        urgent = BULK if admission.rules.interactive is None else INTERACTIVE
        free = admission.constraints.free_slots(urgent, now)
        waiting = self.queues.urgent
        kind, models = self._kind, watcher.models
        if (
            kind is None
            or models is not self._kind_models
            or kind.ctx_max != watcher.ctx_max
            or kind.slots_total != ledger.slots_total
            or kind.predicts is not (pace_s is not None)
        ):
            self._kind_models = models
            kind = self._kind = PoolKind(
                None if self.group == self.name else self.group,
                self.profile.measurement_type,
                self.on_request,
                None if models is None else frozenset(models),
                watcher.ctx_max,
                ledger.slots_total,
                pace_s is not None,
            )
        return standing(kind, pace_s, free, waiting, ledger.room + ledger.idle)

    def snapshot(self, request: AdmissionRequest | None = None) -> PoolSnapshot:
        """Returns the pool as it is compared now. With `request` (and while the pool takes
        requests) it predicts when that request would end here."""
        watcher, admission, ledger = self.watcher, self.admission, self.ledger
        now, forecast, unavailable = self.connections.loop.time(), None, self._drained()
        if unavailable is None and admission.unavailable is not None:
            unavailable = admission.away_refusal(now)
        if request is not None and unavailable is None:
            forecast = admission.forecast(request, now)
        return PoolSnapshot(
            name=self.name,
            group=self.group,
            measurement_type=self.profile.measurement_type,
            on_request=self.on_request,
            unavailable=unavailable,
            models=watcher.models,
            ctx_max=watcher.ctx_max,
            slots_total=ledger.slots_total,
            # Without a call: this runs for each pool that is compared.
            room=ledger.slots_total - ledger.leased - ledger.foreign + ledger.idle,
            queue_depth=self.queues.urgent,
            end_ms=None if forecast is None else forecast.end_ms,
        )

    def status(self) -> PoolStatus:
        """Returns the pool as it is now, in all detail."""
        watcher, now, drained = self.watcher, self.connections.loop.time(), self._drained()
        heard_at = watcher.heard_at
        return PoolStatus(
            name=self.name,
            profile=self.profile,
            admission=status_of(self.admission, now),
            tier=self.tier,
            state=self.state,
            message=watcher.message if drained is None else drained.message,
            answers=watcher.state in ANSWERING_STATES,
            error=watcher.message,
            since_s=watcher.since_s,
            document=watcher.document or {},
            models=watcher.models or (),
            busy_ratio=watcher.busy_ratio,
            age_ms=None if heard_at is None else int((now - heard_at) * 1e3),
        )


def _remaining_ms(limit_ms: float | None, spent_ms: float) -> float | None:
    return None if limit_ms is None else max(0.0, limit_ms - spent_ms)
