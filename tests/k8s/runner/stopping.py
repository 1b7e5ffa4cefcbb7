"""How a running container is stopped: the steps and times of the kubelet's killContainer.

preStop, then the container's turn, then TERM, then KILL when the grace is over, and never less than
two seconds between TERM and KILL. Waiting counts in whole seconds that are over, as it does there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from tests.k8s.runner import probe as probes
from tests.k8s.runner.events import What
from tests.k8s.runner.health import Result
from tests.k8s.runner.probe import Target
from tests.k8s.runner.schema.container import Hook

MINIMUM_GRACE_S = 2.0  # the kubelet's minimumGracePeriodInSeconds
_ENDLESS_S = 10.0**6  # a hook's time is bounded by who waits for it

# Waits until the containers that must end before this one have ended.
Turn = Callable[[], Awaitable[object]]


class Note(Protocol):
    """Records an event of a container."""

    def __call__(self, what: What, container: str, detail: str = "") -> None: ...


async def stop(target: Target, grace_s: float, turn: Turn | None, note: Note) -> None:
    """Stops a run within the grace; returns when its process 1 has ended."""
    run, container = target.run, target.container
    loop = asyncio.get_running_loop()
    name = container.name
    left_s = float(grace_s)
    hook: asyncio.Task[Result] | None = None
    if container.lifecycle.pre_stop is not None and left_s > 0:
        began = loop.time()
        note(What.PRE_STOP_BEGAN, name)
        hook = asyncio.create_task(_hook(container.lifecycle.pre_stop, target))
        await asyncio.wait({hook}, timeout=left_s)
        late = f"still running after {left_s} s"
        note(What.PRE_STOP_ENDED, name, hook.result().detail if hook.done() else late)
        left_s -= math.floor(loop.time() - began)
    if turn is not None and left_s > 0:
        began = loop.time()
        with suppress(TimeoutError):
            await asyncio.wait_for(turn(), left_s)
        left_s -= math.floor(loop.time() - began)
    if run.alive:
        note(What.TERM, name)
        run.terminate()
        try:
            async with asyncio.timeout(max(left_s, MINIMUM_GRACE_S)):
                await run.ended()
        except TimeoutError:
            note(What.KILL, name)
            await run.kill()
    if hook is not None:
        hook.cancel()  # it died with the container; only its answer is not read yet
        await asyncio.wait({hook})


async def _hook(hook: Hook, target: Target) -> Result:
    """Runs until the hook is over; who waits for it bounds the time."""
    if hook.exec is not None:
        return await probes.execute(hook.exec, target, _ENDLESS_S)
    if hook.http_get is not None:
        return await probes.http_get(hook.http_get, target, _ENDLESS_S)
    assert hook.sleep is not None
    ended = asyncio.create_task(target.run.ended())
    await asyncio.wait({ended}, timeout=hook.sleep.seconds)
    ended.cancel()
    return Result(True, f"slept up to {hook.sleep.seconds} s")
