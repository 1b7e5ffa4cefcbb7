"""Files and batches of one sidecar: puts the parts together, starts and stops them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import web
from sqlalchemy.exc import SQLAlchemyError

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.batches.catalog import Quotas
from orch_sidecar.batches.connections import RowConnections
from orch_sidecar.batches.endpoints import Endpoints
from orch_sidecar.batches.jobs import Jobs
from orch_sidecar.batches.runner import Runner
from orch_sidecar.batches.storage import Storage, StoreFault
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.wire.client_connection import Handler, ResourceRequest

logger = logging.getLogger("orch.batches")


class Batches:
    """Serves files and batches, and runs their rows. Must be created on the event loop."""

    def __init__(
        self,
        settings: SidecarSettings,
        storage: Storage,
        serve_row: Handler,
        is_admitted: Callable[[str, str], bool],
        common_headers: Mapping[str, str],
    ) -> None:
        """`serve_row`: serves a request that `RowConnections` makes. `is_admitted`: whether the
        request with this id, of this owner, has slots."""
        self._database, self._store = storage
        quotas = Quotas(
            settings.batches_file_bytes,
            settings.batches_quota_bytes,
            settings.batches_quota_rows,
            settings.max_body_bytes,
        )
        self.rows = RowConnections(serve_row, common_headers)
        self.runner = Runner(
            self._database,
            self._store,
            partial(Jobs, self._database, self._store, quotas, settings.batches_keep_days),
            self.rows,
            is_admitted,
        )
        self._endpoints = Endpoints(
            self._database,
            self._store,
            self.runner.jobs,
            quotas,
            settings.body_timeout_s,
            self.runner.look,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> list[asyncio.Task[None]]:
        """Starts to run rows. Returns the tasks, none of which must end by itself."""
        runner = self.runner
        self._tasks = [
            asyncio.create_task(each, name=name)
            for each, name in (
                (runner.keep_alive(), "look at batches"),
                (runner.run_jobs(), "check and end batches"),
                (runner.run_rows(), "run rows of batches"),
            )
        ]
        return self._tasks

    async def stop(self) -> None:
        """Stops to run rows, and gives those back that run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runner.stop()
        await self.rows.close()

    async def close(self) -> None:
        """Closes the storage; no request may be answered after that."""
        await asyncio.to_thread(self._database.close)

    async def answer(self, request: ResourceRequest) -> web.StreamResponse | Refusal:
        """Answers a request for files or batches."""
        try:
            return await self._endpoints.answer(request)
        except (SQLAlchemyError, StoreFault, FileNotFoundError) as error:
            method, what = request.http.method, request.what
            logger.error("%s %s: the storage of batches failed: %s", method, what, error)
            text = "files and batches cannot be stored or read now: retry later"
            return Refusal(Reason.STORAGE_FAILED, text, retry_after_ms=5000)
