"""The pages of this sidecar: capabilities, models, metrics, readiness and health of pools; and the
files of the page for people, from `orch_sidecar/ui`.

A sidecar of one engine is ready while the engine takes requests: a rollout waits for that. A
sidecar of several engines, or of other sidecars, is ready while it can answer, if only by a
refusal with a time to retry: if it were not, clients would get no answer at all.

The files are public and static. They contain nothing of this sidecar: its data come by
`GET /v1/live`, with an API key where clients need one. The content security policy allows scripts,
styles and data of this origin only, none of them inline, and no other page may frame this one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from orch_sidecar.api.endpoints import LOAD, METRICS, PAGE, PING, ROOT, UI_FILES
from orch_sidecar.api.headers import (
    ACCEPT,
    CACHE_CONTROL,
    CONTENT_SECURITY_POLICY,
    CONTENT_TYPE,
    CROSS_ORIGIN_RESOURCE_POLICY,
    LOCATION,
    REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
)
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.keys import ApiKey
from orch_sidecar.config.configuration import ReloadState
from orch_sidecar.config.installation import VERSION, build
from orch_sidecar.control import capabilities
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.observability.metrics import PIECE_S, Metrics
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry

Answer = web.StreamResponse | Refusal | None
Page = Callable[[web.BaseRequest, ApiKey | None], Answer | Awaitable[Answer]]

_UI_FOLDER: Final = Path(__file__).parents[1] / "ui"
_UI_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_UI_HEADERS: Final = {
    CONTENT_SECURITY_POLICY: "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    X_CONTENT_TYPE_OPTIONS: "nosniff",
    REFERRER_POLICY: "no-referrer",
    CROSS_ORIGIN_RESOURCE_POLICY: "same-origin",
    CACHE_CONTROL: "no-cache",  # a new release must not meet scripts of the old one
}
_NOT_INSTALLED: Final = Refusal(
    Reason.NOT_FOUND,
    "this installation of orch-sidecar has no page: install its wheel as it is built, with the "
    "files of orch_sidecar/ui",
)


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


class Pages:
    """Renders the pages. `at`: those with a path of their own, for the key that asks."""

    def __init__(
        self,
        pools: PoolRegistry,
        metrics: Metrics,
        reloads: ReloadState,
        authorizer: Authorizer,
    ) -> None:
        self._pools = pools
        self._authorizer = authorizer
        self._metrics = metrics
        self._reloads = reloads
        self._readiness = Readiness(pools)
        self._build = build()
        self._started = int(time.time())
        self.at: Mapping[str, Page] = {
            ROOT: lambda http, _: redirect_to_ui(http),
            **ui_files(),
            "/v1/capabilities": lambda _, key: self.capabilities(key),
            METRICS: self.metrics,
            "/metrics/model-server": lambda http, _: self.model_server(http),
            "/livez": lambda *_: web.json_response({"live": True}),
            "/readyz": lambda *_: self.readiness(),
            "/healthz": lambda *_: self.readiness(),
            "/health": lambda *_: web.Response(status=200 if self._readiness.is_live else 503),
            PING: lambda *_: web.Response(status=200 if self._readiness.is_live else 503),
            LOAD: lambda *_: self.load(),
        }
        if pools.one is None:  # no single engine serves all models
            self.at = {**self.at, "/v1/models": lambda *_: self.models()}

    def capabilities(self, key: ApiKey | None) -> web.Response:
        """Describes this sidecar and all of its pools, piece by piece as `metrics` does."""
        pieces = self._capabilities(key)
        return web.Response(body=pieces, content_type="application/json", charset="utf-8")

    async def _capabilities(self, key: ApiKey | None) -> AsyncIterator[bytes]:
        head = capabilities.head(
            state=self._pools.state.value,
            states=self._pools.states(),
            sidecar_version=VERSION,
            sidecar_build=self._build,
            generation=self._reloads.generation,
        )
        text, comma = json.dumps(head)[:-1] + ', "engines": [', ""
        until = time.monotonic() + PIECE_S
        for entry in self._entries(key):
            text, comma = text + comma + json.dumps(entry), ", "
            if time.monotonic() > until:
                yield text.encode()
                await asyncio.sleep(0)
                text, until = "", time.monotonic() + PIECE_S
        yield (text + "]}").encode()

    def _entries(self, key: ApiKey | None) -> Iterator[dict[str, Any]]:
        """Returns the entries of all pools, and then of the absent ones, each as it is when it is
        its turn."""
        absent, private = self._pools.absent(), self._authorizer.sees_all(key)
        requests, tokens = (None, None) if key is None else self._authorizer.budget_of(key)
        budgets = {"key_requests_per_minute": requests, "key_tokens_per_minute": tokens}
        names = self._authorizer.names() if private or key is None else {key.digest: key.name}
        for pool in self._pools:
            entry = capabilities.entry(pool.status(), key)
            entry["rate_limits"] |= budgets
            if not private:
                entry.pop(capabilities.PRIVATE_FIELD, None)
            if names:
                entry["shares"] = capabilities.shares_of_keys(pool.queues, names)
            yield entry
        for status in absent:
            entry = capabilities.entry(status, key)
            entry["rate_limits"] |= budgets
            yield entry

    def load(self) -> web.Response:
        """Tells how many requests run or wait, as vLLM does."""
        load = sum(len(each.ledger.in_use()) + each.queues.depth for each in self._pools)
        return web.json_response({"server_load": load})

    def models(self) -> web.Response:
        """Lists the models of all pools, in the form and the order of the engines' own lists."""
        return web.json_response({"object": "list", "data": list(self._models().values())})

    def model(self, name: str) -> web.Response | Refusal:
        """Describes one model of any pool."""
        models = self._models()
        if name in models:
            return web.json_response(models[name])
        served = ", ".join(models) or "none yet"
        return Refusal(
            Reason.NOT_FOUND,
            f"there is no model {name[:100]!r}; those served are {served}",
            "model",
        )

    def _models(self) -> dict[str, dict[str, Any]]:
        longest: dict[str, int | None] = {}
        for pool in self._pools:
            for model in pool.watcher.models or ():
                longest.setdefault(model, pool.watcher.ctx_max)
        return {
            model: {
                "id": model,
                "object": "model",
                "created": self._started,
                "owned_by": "vllm",
                "max_model_len": ctx_max,
            }
            for model, ctx_max in longest.items()
        }

    def metrics(self, http: web.BaseRequest, key: ApiKey | None) -> web.Response:
        """Exposes the metrics in the format that the `Accept` header selects, piece by piece."""
        private = self._authorizer.sees_all(key)
        pieces, content_type = self._metrics.exposition(_accepted(http), private=private)
        return web.Response(body=pieces, headers={CONTENT_TYPE: content_type})

    def model_server(self, http: web.BaseRequest) -> web.Response:
        """Exposes what endpoint pickers read, as `metrics` does."""
        text, content_type = self._metrics.model_server(_accepted(http))
        return web.Response(body=text, headers={CONTENT_TYPE: content_type})

    def readiness(self) -> web.Response:
        """Reports whether clients should send requests here (see Readiness)."""
        pools = self._pools
        several = pools.one is None
        errors = [
            f"{pool.name}: {pool.watcher.message}" if several else pool.watcher.message
            for pool in pools
            if pool.watcher.message
        ]
        errors += [refusal.message for refusal in pools.without_address.values()]
        body = {
            "live": True,
            "ready": self._readiness.is_ready,
            "draining": pools.draining,
            "state": pools.state.value,
            "pools": pools.states(),
            "last_error": "; ".join(errors) or None,
            **self._reloads.document(),
        }
        return web.json_response(body, status=200 if body["ready"] else 503)

    def health(self, pool: Pool) -> dict[str, Any]:
        """Reports the health of one pool. `live`: its engine answers, ready or not."""
        status = pool.status()
        admission = status.admission
        return {
            "pool": pool.name,
            "live": status.answers,
            "ready": status.state is PoolState.READY,
            "draining": admission.draining is not None,
            "drain": capabilities.drain_entry(admission.draining),
            "state": status.state.value,
            "engine_epoch": admission.epoch,
            "metrics": {
                "slots_total": admission.slots_total,
                "slots_leased": admission.leased,
                "slots_foreign": admission.foreign,
                "leases_closing": len(pool.ledger.closing()),
                "queue_depth": status.queued,
                "oversubscription_violations_total": admission.violations,
                "engine_busy_ratio": status.busy_ratio,
                "age_ms": status.age_ms,
            },
            "batching": asdict(status.batching),
            "last_error": status.error or None,
            **self._reloads.document(),
        }


def _accepted(http: web.BaseRequest) -> str:
    return ",".join(http.headers.getall(ACCEPT, ()))


def ui_files() -> Mapping[str, Page]:
    """Returns what answers a GET of each file of the page for people; reads the files, once."""
    return {path: _file(_UI_FOLDER / name) for path, name in UI_FILES.items()}


def redirect_to_ui(http: web.BaseRequest) -> web.Response | None:
    """Sends a browser that asks for `/` to the page; None: it is another client."""
    if "text/html" not in _accepted(http):
        return None
    return web.Response(status=307, headers={LOCATION: PAGE.lstrip("/"), CACHE_CONTROL: "no-cache"})


def _file(path: Path) -> Page:
    try:
        body = path.read_bytes()
    except OSError:
        return lambda *_: _NOT_INSTALLED
    headers = _UI_HEADERS | {CONTENT_TYPE: f"{_UI_TYPES[path.suffix]}; charset=utf-8"}
    return lambda *_: web.Response(body=body, headers=headers)
