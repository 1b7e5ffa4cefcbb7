"""Whether requests should come to this sidecar: what `/readyz` answers.

Beside an engine: while that engine takes requests; a rollout waits for that. In front of several
engines, or of other sidecars: while this one can answer, and be it by a refusal that says when to
come back. Were it not ready while no pool takes requests, clients would find nobody to tell them.
"""

from __future__ import annotations

from orch_sidecar.api.refusal import Reason
from orch_sidecar.engine_state.states import EngineState
from orch_sidecar.pools.registry import PoolRegistry


class Readiness:
    """Of one sidecar. What has started once does not start again."""

    def __init__(self, pools: PoolRegistry) -> None:
        self._pools = pools
        self._started = False

    @property
    def ready(self) -> bool:
        pools = self._pools
        if pools.one is not None and not pools.one.tier:
            return pools.one.state is EngineState.READY
        self._started = self._started or self._looked_at_all()
        return self._started and not pools.shutting_down and not self._drained()

    def _looked_at_all(self) -> bool:
        """Whether of each pool something is known: what it takes, or why it takes nothing."""
        pools = self._pools
        if any(each.reason is Reason.ENGINE_STARTING for each in pools.without_address.values()):
            return False  # a name that has not been looked up yet
        return all(each.watcher.document is not None or each.watcher.failed for each in pools)

    def _drained(self) -> bool:
        """Whether an operator has taken this sidecar out, by draining each of its pools."""
        drains = [pool.gate.core.draining for pool in self._pools]
        return bool(drains) and all(each and not each.ends_with_engine for each in drains)
