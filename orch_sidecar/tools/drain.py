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
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final

_POLL_S: Final = 0.2
_ANSWERS_WITHIN_S: Final = 5.0
# An engine that is to be stopped and has not been heard of for so long finishes nothing: what is
# still waited for keeps the next one from starting. The sidecar hears of an engine each second.
_SILENT_S: Final = 10.0

_HELP: Final = """Has the pools of a sidecar drain: they refuse what comes, and finish what runs
and waits. Returns when nothing is left of it; with 1 when something is after --within seconds,
when the sidecar does not answer, or when a pool takes requests again. `POST
/v1/pools/NAME/resume` at the same address takes it back. With --engine-stops it ends by itself
as soon as another engine reports in the place of this one."""


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
    parser.add_argument(
        "--engine-stops",
        action="store_true",
        help="for what stops the engine, such as a preStop hook: the drain ends by itself when "
        "another engine reports, and an engine that does not answer is not waited for",
    )
    options = parser.parse_args(words)
    if not options.within >= 0:
        parser.error(f"argument --within: {options.within}: must be seconds, from 0")
    try:
        admin = options.admin.rstrip("/")
        drain(admin, options.pool, options.within, engine_stops=options.engine_stops)
    except NotDrained as left:
        sys.exit(f"orch drain: {left}")


def drain(
    admin: str,
    names: list[str] | None,
    within_s: float,
    *,
    engine_stops: bool = False,
    rest: Callable[[float], None] = time.sleep,
) -> None:
    """Drains these pools (None: all). Raises NotDrained.

    `engine_stops`: because their engines are being stopped; else until somebody resumes.
    """
    until = time.monotonic() + within_s
    if names is None:
        # One that is absent has no address, and so nothing that could be left.
        pools = _ask(f"{admin}/readyz")["pools"]
        names = [name for name, state in pools.items() if state != "absent"]
    draining = {name: _Draining(admin, name, engine_stops) for name in names}
    for pool in draining.values():
        pool.begin()
    while left := [text for pool in draining.values() if (text := pool.left())]:
        if time.monotonic() >= until:
            raise NotDrained(f"after {within_s:g} s there are left: {'; '.join(left)}")
        rest(_POLL_S)


class _Draining:
    """One pool that was ordered to drain."""

    def __init__(self, admin: str, name: str, engine_stops: bool) -> None:
        self._name = name
        self._url = f"{admin}/v1/pools/{urllib.parse.quote(name, safe='')}"
        self._engine_stops = engine_stops
        self._heard_at = time.monotonic()

    def begin(self) -> None:
        """Orders it, for a stop under the epoch of the engine that is there now."""
        order = f"{self._url}/drain"
        if self._engine_stops:
            epoch = _ask(f"{self._url}/health")["engine_epoch"]
            order += "?" + urllib.parse.urlencode({"engine_epoch": epoch})
        _ask(order, "POST")

    def left(self) -> str:
        """What the pool still has; empty if nothing. Raises NotDrained if that will not end."""
        health = _ask(f"{self._url}/health")
        if not health["draining"]:
            if self._engine_stops:
                return ""  # the engine that was to be stopped has been replaced
            raise NotDrained(f"pool {self._name}: it takes requests again, somebody has resumed it")
        metrics = health["metrics"]
        counts = {
            "sequences": metrics["slots_leased"],
            "leases whose end is to be confirmed": metrics["leases_closing"],
            "waiting requests": sum(metrics["queue_depth"].values()),
        }
        found = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        left = f"pool {self._name}: {found}" if found else ""
        now = time.monotonic()
        if health["live"]:
            self._heard_at = now
        elif left and self._engine_stops and now - self._heard_at > _SILENT_S:
            raise NotDrained(f"{left}, and its engine has not answered for {_SILENT_S:g} s")
        return left


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
