"""What this sidecar says of itself: pages to be read, by people, probes and programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from aiohttp import web

from orch_sidecar.api.headers import ACCEPT, CONTENT_TYPE
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.config.changes import ReloadState
from orch_sidecar.control import capabilities
from orch_sidecar.control.readiness import Readiness
from orch_sidecar.engine_state.states import ANSWERING, EngineState
from orch_sidecar.observability.exposition import render
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry

Page = Callable[[web.BaseRequest, ApiKey | None], web.Response]


class Pages:
    """The pages. `at`: those that have a path of their own, for the key that asks for them."""

    def __init__(self, pools: PoolRegistry, metrics: Metrics, reloads: ReloadState) -> None:
        self._pools = pools
        self._metrics = metrics
        self._reloads = reloads
        self._readiness = Readiness(pools)
        self._version = version("orch-sidecar")
        self._started = int(time.time())
        self.at: Mapping[str, Page] = {
            "/v1/capabilities": lambda _, key: self.capabilities(key),
            "/metrics": lambda http, _: self.metrics(http),
            "/livez": lambda *_: web.json_response({"live": True}),
            "/readyz": lambda *_: self.readiness(),
            "/healthz": lambda *_: self.readiness(),
            "/health": lambda *_: self.readiness(),  # vLLM's name for it, which its clients ask
        }
        if pools.one is None:  # no single engine has them all
            self.at = {**self.at, "/v1/models": lambda *_: self.models()}

    def capabilities(self, key: ApiKey | None) -> web.Response:
        document = capabilities.document(
            [pool.seen(pool.state.value) for pool in self._pools],
            self._pools.absent(),
            key,
            state=self._pools.state.value,
            states=self._pools.states(),
            sidecar_version=self._version,
            generation=self._reloads.generation,
        )
        return web.json_response(document)

    def models(self) -> web.Response:
        """The models of all pools, in the form and the order of the engines' own lists."""
        longest: dict[str, int | None] = {}
        for pool in self._pools:
            for model in pool.follower.models or ():
                longest.setdefault(model, pool.follower.ctx_max)
        models = [
            {
                "id": model,
                "object": "model",
                "created": self._started,
                "owned_by": "vllm",
                "max_model_len": ctx_max,
            }
            for model, ctx_max in longest.items()
        ]
        return web.json_response({"object": "list", "data": models})

    def metrics(self, http: web.BaseRequest) -> web.Response:
        """In the format that is asked for."""
        accept = ",".join(http.headers.getall(ACCEPT, ()))
        body, content_type = render(self._metrics.registry, accept)
        return web.Response(body=body, headers={CONTENT_TYPE: content_type})

    def readiness(self) -> web.Response:
        """Whether clients should come here: see Readiness. `state`: what the pools do."""
        pools = self._pools
        several = pools.one is None
        errors = [
            f"{pool.name}: {pool.follower.message}" if several else pool.follower.message
            for pool in pools
            if pool.follower.message
        ]
        errors += [refusal.message for refusal in pools.missing.values()]
        body = {
            "live": True,
            "ready": self._readiness.ready,
            "draining": pools.draining,
            "state": pools.state.value,
            "pools": pools.states(),
            "last_error": "; ".join(errors) or None,
            **self._reloads.document(),
        }
        return web.json_response(body, status=200 if body["ready"] else 503)

    def health(self, pool: Pool) -> dict[str, Any]:
        """Of one pool. Live: its engine answers, whether it can serve or not."""
        core, follower = pool.gate.core, pool.follower
        return {
            "pool": pool.name,
            "live": follower.state in ANSWERING,
            "ready": pool.state is EngineState.READY,
            "draining": core.draining is not None,
            "drain": capabilities.drain_of(core),
            "state": pool.state.value,
            "engine_epoch": core.ledger.epoch,
            "metrics": {
                "slots_total": core.ledger.slots_total,
                "slots_leased": core.ledger.leased,
                "slots_foreign": core.ledger.foreign,
                "leases_closing": len(core.ledger.closing()),
                "queue_depth": {each.value: core.queued(each) for each in pool.classes},
                "oversubscription_violations_total": core.ledger.violations,
                "engine_busy_ratio": follower.busy_ratio,
                "age_ms": follower.age_ms,
            },
            "last_error": follower.message or None,
            **self._reloads.document(),
        }
