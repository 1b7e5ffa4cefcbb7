"""Asks an endpoint what it is: its models, its tokenizer, and the state of its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from string import ascii_lowercase
from typing import Any, Final

import aiohttp

from orch_sidecar.api.refusal import error_text
from orch_sidecar.tools.bench.load.call import Call, Fate, shown
from orch_sidecar.tools.bench.load.endpoint import Capabilities, Endpoint, EndpointError
from orch_sidecar.tools.facts.labels.documents import parse_json
from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot

_TIMEOUT_S: Final = 10.0
_PATH: Final = "/v1/capabilities"

# An engine reports its counters once a second, and a sidecar serves the last report.
REPORT_INTERVAL_S: Final = 1.2
# Other traffic may never end: the measurement then records that the engine was not idle.
IDLE_TIMEOUT_S: Final = 12.0
# Often enough to lose little time, and seldom enough to cost a run nothing. Reports come each
# second: the looks begin shortly before the second next one.
WATCH_INTERVAL_S: Final = 1.9
# Together they last as long as REPORT_INTERVAL_S: one of them sees a new report.
_LOOKS: Final = 24
_LOOK_INTERVAL_S: Final = 0.05

READY: Final = "ready"

# Pairs of letters, of which a tokenizer has an ordinary id each, or for its parts.
_PAIRS: Final = " ".join(map("".join, product(ascii_lowercase, repeat=2)))
# 16 ids make 16^16 first blocks of a prompt: no run exhausts them.
LEAST_IDS: Final = 16


async def fetch_json(
    endpoint: Endpoint, path: str, body: Any = None, *, optional: bool = False
) -> Any | None:
    """Returns the JSON of a GET, or of a POST of `body`; None if the path does not exist.

    `optional`: any answer but JSON with status 200 counts as none, as servers answer what they do
    not know in many ways. Raises EndpointError.
    """
    method = "GET" if body is None else "POST"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=endpoint.fields) as session,
            session.request(method, endpoint.url + path, json=body) as response,
        ):
            content = await response.read()
        if response.status == 200:
            return parse_json(content, "")
        if optional or response.status in (404, 405):
            return None
        cause = f"returned {response.status}: {shown(content.decode(errors='replace'), 300)}"
    except TimeoutError:
        cause = f"no response within {_TIMEOUT_S:g} s"
    except aiohttp.ClientError as error:
        cause = error_text(error) if isinstance(error, OSError) else str(error)
    except ValueError as error:
        if optional:
            return None
        cause = str(error)
    raise EndpointError(f"{method} {endpoint.url}{path}: {cause}")


async def read_capabilities(endpoint: Endpoint) -> Capabilities | None:
    """Returns the current capabilities, None if the endpoint has none, whatever it answers instead.

    Raises EndpointError where they are incomplete, and where nothing answers.
    """
    document = await fetch_json(endpoint, _PATH, optional=True)
    if not isinstance(document, Mapping) or "engines" not in document:
        return None
    try:
        return Capabilities(document, parse_snapshot(document, endpoint.pool))
    except ValueError as error:
        raise EndpointError(f"{endpoint.url}{_PATH}: {error}") from error


async def engine_at(endpoint: Endpoint) -> Capabilities:
    """Returns the current capabilities of an engine that must have some. Raises EndpointError."""
    found = await read_capabilities(endpoint)
    if found is None:
        raise EndpointError(
            f"{endpoint.url} has no {_PATH}: it is neither a sidecar nor an engine with the plugin"
        )
    return found


async def served_model(endpoint: Endpoint) -> str:
    """Returns the first model of the pool, or of the endpoint if it reports no pools.

    Raises EndpointError.
    """
    if (found := await read_capabilities(endpoint)) is not None:
        return found.snapshot.models[0]
    match await fetch_json(endpoint, "/v1/models"):
        case {"data": [{"id": str(name)}, *_]}:
            return name
    raise EndpointError(f"{endpoint.url}/v1/models lists no model: choose one with --model")


async def vocabulary(endpoint: Endpoint, model: str) -> tuple[int, ...]:
    """Returns ordinary token ids of a model, ascending, by vLLM's `/tokenize`: LEAST_IDS at least.

    Raises EndpointError, and ValueError for other ids and for too few.
    """
    query = {"model": model, "prompt": _PAIRS, "add_special_tokens": False}
    rule = f"synthetic prompts need {LEAST_IDS} token ids at least, give --prompts"
    match await fetch_json(endpoint, "/tokenize", query):
        case {"tokens": [*tokens]}:
            for each in tokens:
                if type(each) is not int or each < 0:
                    raise ValueError(f"{each!r} is no token id, an integer from 0: {rule}")
            if len(ids := tuple(sorted(set(tokens)))) < LEAST_IDS:
                raise ValueError(f"all pairs of letters have {len(ids)} token ids: {rule}")
            return ids
        case None:
            why = "does not exist"
        case _:
            why = "returned no list of tokens"
    raise EndpointError(f"{endpoint.url}/tokenize {why}: {rule}")


async def wait_until_idle(
    endpoint: Endpoint, since: Capabilities | None, calls: Iterable[Call]
) -> Capabilities | None:
    """Returns the capabilities once the engine is idle, or after IDLE_TIMEOUT_S; None where `since`
    says that there are none.

    The engine is idle when it holds no sequence and two documents, further apart than its report
    interval, agree: while it reads a long prompt its counters do not move either. They must also
    count the answered `calls` beyond `since`, unless the engine was restarted: two documents also
    agree while a report is late. Raises EndpointError.
    """
    if since is None:
        return None
    loop, answered = asyncio.get_running_loop(), sum(call.fate is Fate.ANSWERED for call in calls)
    deadline_s = loop.time() + IDLE_TIMEOUT_S
    found, begun = await engine_at(endpoint), since.snapshot
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        before, found = found, await engine_at(endpoint)
        now = found.snapshot
        idle = before.snapshot == now and not now.in_engine
        counted = now.requests_total >= begun.requests_total + answered
        complete = now.state == READY and (counted or now.epoch != begun.epoch)
        if (idle and complete) or loop.time() > deadline_s:
            return replace(found, idle=idle)


async def accepted_of_others(
    endpoint: Endpoint, since: Capabilities | None, calls: Sequence[Call]
) -> int:
    """Waits until the engine has accepted requests of others, and returns how many; never returns
    where `since` is None, as the engine does not report.

    `calls`: of this run, as they are made. Its requests since the engine's last report hide as many
    of others. An engine that cannot be asked, or was restarted, shows none, either: its states
    before and after the run are compared at the end.
    """
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        if since is None:
            continue
        begun, last_busy_s = since.snapshot, None
        for _ in range(_LOOKS):  # until a new report, which the fewest requests are missing from
            try:
                found = (await engine_at(endpoint)).snapshot
            except EndpointError:  # at the end it is an objection, should it last
                break
            own = sum(call.reached for call in calls)
            others = found.requests_total - begun.requests_total - own
            if found.epoch == begun.epoch and others > 0:
                return others
            if last_busy_s not in (None, found.busy_s):
                break
            last_busy_s = found.busy_s
            await asyncio.sleep(_LOOK_INTERVAL_S)
