"""Decides whether clients should send requests to this sidecar, for `/readyz`, and whether what
answers here lives, for `/health`.

A sidecar of one engine is ready while the engine takes requests: a rollout waits for that. A
sidecar of several engines, or of other sidecars, is ready while it can answer, if only by a
refusal with a time to retry: if it were not, clients would get no answer at all.
"""

from __future__ import annotations

from orch_sidecar.api.refusal import Reason
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.registry import PoolRegistry


class Readiness:
    """The readiness of this sidecar. It starts only once."""

    def __init__(self, pools: PoolRegistry) -> None:
        self._pools = pools
        self._started = False

    @property
    def is_live(self) -> bool:
        """Whether a restart would not help, as at vLLM's `/health`. Only an engine that accepts
        connections and says nothing needs one; it lives while it loads, drains or is paused."""
        one = self._pools.one
        return one is None or one.tier or one.state is not PoolState.STALE

    @property
    def is_ready(self) -> bool:
        pools = self._pools
        if pools.one is not None and not pools.one.tier:
            return pools.one.state is PoolState.READY
        self._started = self._started or self._knows_all()
        return self._started and not pools.shutting_down and not self._is_drained()

    def _knows_all(self) -> bool:
        """Whether the state of every pool, or the reason of its absence, is known."""
        pools = self._pools
        if any(each.reason is Reason.ENGINE_STARTING for each in pools.without_address.values()):
            return False  # the name has not been looked up yet
        return all(each.watcher.document is not None or each.watcher.failed for each in pools)

    def _is_drained(self) -> bool:
        """Whether an operator has taken this sidecar out of service, by draining each pool."""
        drains = [pool.admission.draining for pool in self._pools]
        return bool(drains) and all(each and not each.ends_with_engine for each in drains)
