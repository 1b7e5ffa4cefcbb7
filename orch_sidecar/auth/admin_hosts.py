"""Which names operators may call their listener by.

Pure. A web page can have its own name resolve to the loopback (DNS rebinding); a browser then takes
what listens there for the page's own server and sends no `Origin`. What it cannot change is `Host`:
it is the page's name. So no name is answered but those of the loopback and those that the operator
gave.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from orch_sidecar.api.refusal import Reason, Refusal

_SHOWN_CHARACTERS: Final = 80


class AdminHosts:
    """The names and addresses that are answered."""

    def __init__(self, own: Iterable[str]) -> None:
        """`own`: besides those of the loopback, without a port. An IPv6 address may stand in
        brackets, as in a URL, or without, as one that is listened on."""
        self._own = frozenset(_name(f"[{each}]" if _is_ipv6(each) else each) for each in own)

    def check(self, hosts: list[str]) -> Refusal | None:
        """The refusal of a request with these `Host` fields; None: it is answered."""
        name = _name(hosts[0]) if len(hosts) == 1 else ""
        if name and (name in self._own or _is_loopback(name)):
            return None
        shown = ", ".join(hosts)[:_SHOWN_CHARACTERS]
        return Refusal(
            Reason.FORBIDDEN,
            f"Host is {shown!r}: operators are answered at names of the loopback, at admin_host, "
            "and at those in admin_allowed_hosts (ORCH_ADMIN_ALLOWED_HOSTS)",
        )


def _name(host: str) -> str:
    """The name or address in a `Host` field; empty if there is none."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
