"""Checks by which host name a listener is called, against DNS rebinding.

Pure. A web page can let its own name resolve to the loopback address; a browser then treats the
listener there as the page's own server and sends no `Origin`. The page cannot change `Host`, which
is its name. So only the names of the loopback and the configured names are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts import senders

_SHOWN_CHARACTERS: Final = 80
_MAX_ACCEPTED_HOSTS: Final = 256


class AllowedHosts:
    """The host names and addresses by which a listener may be called."""

    def __init__(
        self, setting: str, configured: Iterable[str], *, any_address: bool = False
    ) -> None:
        """`configured`: besides those of the loopback, without a port, by the `setting` of that
        name. An IPv6 address may be in brackets, as in a URL, or not, as an address to listen on.

        `any_address`: any address is accepted, and a request without `Host`. A rebound page has a
        name, and its browser sends that.
        """
        self._setting = setting
        self._any_address = any_address
        self._configured = frozenset(
            _name(f"[{each}]" if isinstance(parse_address(each), IPv6Address) else each)
            for each in configured
        )
        # Of those that were accepted a few, as they are sent: a client says the same each time.
        self.accepted: set[bytes] = set()

    def check(self, hosts: Sequence[str]) -> Refusal | None:
        """Returns the refusal of a request with these `Host` fields; None if it is accepted."""
        if len(hosts) == 1:
            accepted = self._is_accepted(hosts[0])
        else:
            accepted = self._any_address and not hosts
        if accepted:
            if hosts and len(self.accepted) < _MAX_ACCEPTED_HOSTS:
                self.accepted.add(hosts[0].encode("utf-8", "surrogateescape"))
            return None
        shown = ", ".join(hosts)[:_SHOWN_CHARACTERS]
        return Refusal(
            Reason.FORBIDDEN,
            f"the Host {shown!r} is not allowed on this listener: call it by a loopback name or by "
            f"its address, or add the name to {self._setting} (ORCH_{self._setting.upper()})",
        )

    def _is_accepted(self, host: str) -> bool:
        name = _name(host)
        if name in self._configured or is_loopback(name):
            return bool(name)
        return self._any_address and parse_address(name) is not None


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is that of the loopback."""
    return host.endswith(".localhost") or senders.is_loopback(host)


def _name(host: str) -> str:
    """Returns the name or address in a `Host` field; empty if there is none."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def parse_address(name: str) -> IPv4Address | IPv6Address | None:
    """Returns an address; None for another name."""
    try:
        return ip_address(name)
    except ValueError:
        return None
