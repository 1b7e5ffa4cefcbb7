"""`orch drain`: has a sidecar take nothing more, and waits for what it has.

For operators, and for what stops an engine: in Kubernetes the engine's container asks for this
before it is told to end. It imports nothing but the standard library, so that it begins at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final

_POLL_S: Final = 0.2
_ANSWERS_WITHIN_S: Final = 5.0

_HELP: Final = """Has the pools of a sidecar drain: they refuse what comes, and finish what runs
and waits. Returns when nothing is left of it; with 1 when something is after --within seconds,
or when the sidecar does not answer. `POST /v1/pools/NAME/resume` at the same address takes it
back."""


class NotDrained(Exception):
    """What is left, or why nobody knows."""


def main(words: list[str]) -> None:
    """Runs the command; exits with 1 if the pools are not drained."""
    parser = argparse.ArgumentParser(
        prog="orch drain", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--admin",
        default="http://127.0.0.1:9080",
        metavar="URL",
        help="the operators' address of the sidecar (its admin_host and admin_port); "
        "default: %(default)s",
    )
    parser.add_argument("--pool", action="append", metavar="NAME", help="only this one; repeatable")
    parser.add_argument(
        "--within", type=float, default=60.0, metavar="SECONDS", help="default: %(default)g"
    )
    options = parser.parse_args(words)
    if not options.within >= 0:
        parser.error(f"argument --within: {options.within}: must be seconds, from 0")
    try:
        drain(options.admin.rstrip("/"), options.pool, options.within)
    except NotDrained as left:
        sys.exit(f"orch drain: {left}")


def drain(
    admin: str,
    names: list[str] | None,
    within_s: float,
    rest: Callable[[float], None] = time.sleep,
) -> None:
    """Drains these pools (None: all). Raises NotDrained."""
    until = time.monotonic() + within_s
    if names is None:
        # One that is absent has no address, and so nothing that could be left.
        pools = _ask(f"{admin}/readyz")["pools"]
        names = [name for name, state in pools.items() if state != "absent"]
    for name in names:
        _ask(f"{admin}/v1/pools/{name}/drain", "POST")
    while left := [text for name in names if (text := _left(admin, name))]:
        if time.monotonic() >= until:
            raise NotDrained(f"after {within_s:g} s there are left: {'; '.join(left)}")
        rest(_POLL_S)


def _left(admin: str, name: str) -> str:
    """What the pool still has; empty if nothing."""
    metrics = _ask(f"{admin}/v1/pools/{name}/health")["metrics"]
    counts = {
        "sequences": metrics["slots_leased"],
        "leases whose end is to be confirmed": metrics["leases_closing"],
        "waiting requests": sum(metrics["queue_depth"].values()),
    }
    left = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"pool {name}: {left}" if left else ""


def _ask(url: str, method: str = "GET") -> dict[str, Any]:
    """The JSON object that is answered, whatever the status says of readiness."""
    try:
        request = urllib.request.Request(url, method=method)  # noqa: S310 (an operator's URL)
        with urllib.request.urlopen(request, timeout=_ANSWERS_WITHIN_S) as response:  # noqa: S310
            document = json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            document = _refusal(url, refused)
    except (OSError, ValueError) as error:
        raise NotDrained(f"{url}: no sidecar answers: {error}") from error
    if not isinstance(document, dict):
        raise NotDrained(f"{url}: this is no sidecar's answer: {document!r:.200}")
    return document


def _refusal(url: str, refused: urllib.error.HTTPError) -> Any:
    """The body of an answer that is not 2xx; a page about health is as good as another."""
    try:
        document = json.load(refused)
    except ValueError:
        document = None
    if refused.code == 503 and isinstance(document, dict) and "error" not in document:
        return document
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else refused.reason
    raise NotDrained(f"{url}: {refused.code}: {message}")
