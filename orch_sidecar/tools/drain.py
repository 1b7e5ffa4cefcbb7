"""`orch drain`: drains pools of a sidecar, and waits until their requests have ended.

For operators, and for hooks that stop an engine: in Kubernetes the engine's container runs this
before it is terminated. Imports only the standard library, so that it starts at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

_POLL_S: Final = 0.2
_TIMEOUT_S: Final = 5.0
# An engine that is being stopped and has not reported for that long finishes no requests, and
# waiting for it only delays the start of the next one. A live engine reports every second.
_SILENT_S: Final = 10.0
# Without the proxies of the environment, which would be asked for 127.0.0.1, too.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_HELP: Final = """Drains the pools of a sidecar: they refuse new requests, and finish those that
are running or queued. Exits with 0 when all of them have ended; with 1 if some remain after
--within seconds, if the sidecar does not answer, or if a pool is resumed meanwhile. `POST
/v1/pools/NAME/resume` at the same address ends the drain. With --engine-stops the drain ends by
itself when another engine reports in place of the stopped one."""


class NotDrained(Exception):
    """A pool is not drained; the message names the requests that remain, or the error."""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="orch drain", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument(
        "--admin",
        default="http://127.0.0.1:9080",
        metavar="URL",
        help="the admin address of the sidecar (its admin_host and admin_port); "
        "default: %(default)s",
    )
    found.add_argument(
        "--pool",
        action="append",
        metavar="NAME",
        help="drain only this pool (repeatable); default: all",
    )
    found.add_argument(
        "--within",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the requests to end; default: %(default)g",
    )
    found.add_argument(
        "--engine-stops",
        action="store_true",
        help="for hooks that stop the engine, such as preStop: the drain ends by itself when "
        "another engine reports, and is given up when the engine does not answer",
    )
    return found


def main(words: list[str]) -> None:
    """Runs the command; exits with 1 if the pools are not drained."""
    usage = parser()
    options = usage.parse_args(words)
    if not options.within >= 0:
        usage.error(
            f"argument --within: {options.within} is invalid: it must be a number of seconds from 0"
        )
    try:
        admin = options.admin.rstrip("/")
        drain(admin, options.pool, options.within, engine_stops=options.engine_stops)
    except NotDrained as left:
        sys.exit(f"orch drain: {left}")


def drain(
    admin: str, names: list[str] | None, within_s: float, *, engine_stops: bool = False
) -> None:
    """Drains these pools (None: all). Raises NotDrained.

    `engine_stops`: the drain belongs to the stop of their engines; else it lasts until a resume.
    """
    until = time.monotonic() + within_s
    if names is None:
        # An absent pool has no address, and so no requests.
        pools = _ask(f"{admin}/readyz")["pools"]
        names = [name for name, state in pools.items() if state != "absent"]
    draining = {name: _Draining(admin, name, engine_stops) for name in names}
    for pool in draining.values():
        pool.begin()
    while left := [text for pool in draining.values() if (text := pool.left())]:
        if time.monotonic() >= until:
            raise NotDrained(f"not drained within {within_s:g} s: {'; '.join(left)}")
        time.sleep(_POLL_S)


class _Draining:
    """A pool that is being drained."""

    def __init__(self, admin: str, name: str, engine_stops: bool) -> None:
        self._name = name
        self._url = f"{admin}/v1/pools/{urllib.parse.quote(name, safe='')}"
        self._engine_stops = engine_stops
        self._heard_at = time.monotonic()

    def begin(self) -> None:
        """Orders the drain; before the stop of an engine, with the current engine's epoch."""
        order = f"{self._url}/drain"
        if self._engine_stops:
            epoch = _ask(f"{self._url}/health")["engine_epoch"]
            order += "?" + urllib.parse.urlencode({"engine_epoch": epoch})
        _ask(order, "POST")

    def left(self) -> str:
        """Returns what remains, empty if nothing. Raises NotDrained if that will not end."""
        health = _ask(f"{self._url}/health")
        if not health["draining"]:
            if self._engine_stops:
                return ""  # another engine has replaced the one that was stopped
            raise NotDrained(f"pool {self._name}: it was resumed and takes requests again")
        metrics = health["metrics"]
        counts = {
            "sequences": metrics["slots_leased"],
            "leases whose end the engine has not confirmed": metrics["leases_closing"],
            "queued requests": sum(metrics["queue_depth"].values()),
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
    """Returns the JSON object of the response; a health page may have the status 503."""
    try:
        request = urllib.request.Request(url, method=method)  # noqa: S310 (an operator's URL)
        with _DIRECT.open(request, timeout=_TIMEOUT_S) as response:
            document = json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            document = _health_page(url, refused)
    except (OSError, ValueError) as error:
        raise NotDrained(f"{url}: the sidecar does not answer: {error}") from error
    if not isinstance(document, dict):
        raise NotDrained(f"{url}: the response is not a sidecar's: {document!r:.200}")
    return document


def _health_page(url: str, refused: urllib.error.HTTPError) -> Any:
    """Returns the body of a 503 health page. Raises NotDrained for any other error response."""
    try:
        document = json.load(refused)
    except ValueError:
        document = None
    if refused.code == 503 and isinstance(document, dict) and "error" not in document:
        return document
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else refused.reason
    raise NotDrained(f"{url}: {refused.code}: {message}")
