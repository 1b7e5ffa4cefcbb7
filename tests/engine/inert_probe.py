"""vLLM's own OpenAI server, which writes what it is made of instead of serving: see test_inert.

It has no engine core: a process of its own, of which nothing is written. There are two servers,
forks of one process that has imported vLLM: the second one finds the plugin.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import site
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock


def parts(app: Any) -> dict[str, Any]:
    """What a plugin could have changed in a server that is about to listen."""
    from opentelemetry import trace
    from prometheus_client import REGISTRY
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories

    engine = app.state.engine_client
    provider: Any = trace.get_tracer_provider()
    processors = provider._active_span_processor._span_processors
    loggers = [logging.getLogger(name) for name in sorted(logging.root.manager.loggerDict)]
    config = re.sub(r" at 0x[0-9a-f]+|instance_id='\w+'", "", repr(engine.vllm_config))
    return {
        "statistics": [engine.log_stats, str(engine.logger_manager)],
        "stat loggers": [each.__name__ for each in load_stat_logger_plugin_factories()],
        "settings": config,
        "wrapped": hasattr(EngineArgs.create_engine_config, "__wrapped__"),
        "environment": dict(os.environ),
        "path": [path for path in sys.path if path],
        "routes": sorted(
            [getattr(route, "path", ""), sorted(getattr(route, "methods", None) or ())]
            for route in app.routes
        ),
        "middlewares": [str(each.cls) for each in app.user_middleware],
        "metrics": sorted(family.name for family in REGISTRY.collect()),
        "threads": sorted(re.sub(r"\d+", "N", each.name) for each in threading.enumerate()),
        "spans": [type(provider).__name__, *(type(each).__name__ for each in processors)],
        "resource": sorted(provider.resource.attributes),
        "filters": [[each.name, len(each.filters)] for each in loggers if each.filters],
    }


def main() -> None:
    """`PACKAGES FOLDER ARGUMENTS`: writes `without.json` and `with.json` to FOLDER, of servers with
    these arguments; the second one has the plugin in PACKAGES, a folder of packages."""
    packages, folder = sys.argv.pop(1), Path(sys.argv.pop(1))
    gc.disable()  # as vllm_plugin.serve does: a fifth of the imports' time
    from vllm.entrypoints.launchers.api_server import entry

    gc.enable()
    for name in ("without", "with"):
        if not (child := os.fork()):
            if name == "with":
                site.addsitedir(packages)
                assert entry_points(group="vllm.general_plugins", name="orch")
            serve(entry, folder / f"{name}.json", packages)
            sys.exit()
        assert not os.waitpid(child, 0)[1], name


def serve(entry: Any, target: Path, packages: str) -> None:
    from vllm.v1.engine.core_client import EngineCoreClient

    async def never() -> None:
        await asyncio.Event().wait()

    core = AsyncMock(**{"get_supported_tasks_async.return_value": ("generate",)})
    core.get_output_async = never
    EngineCoreClient.make_async_mp_client = lambda *_, **__: core

    def write(app: Any) -> None:
        found = parts(app)
        found["path"] = [path for path in found["path"] if path != packages]
        target.write_text(json.dumps(found), encoding="utf-8")

    async def serve_http(app: Any, **_: Any) -> asyncio.Task[None]:
        write(app)
        return asyncio.create_task(asyncio.sleep(0))

    entry.serve_http = serve_http
    entry.main()


if __name__ == "__main__":
    main()
