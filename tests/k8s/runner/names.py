"""The cluster's name server: Services' names to addresses, over UDP on the bridge.

Answers as CoreDNS's kubernetes plugin does: an ordinary Service is its cluster address, a headless
one all its pods' addresses, NXDOMAIN where there are none; other record types of a name that
exists are an empty answer. Nothing outside the cluster's domain exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

# dnslib ships no types; it is imported nowhere else.
from dnslib import QTYPE, RCODE, RR, A, DNSError, DNSRecord  # type: ignore[import-untyped]

TTL_S = 30  # the Corefile that kubeadm and kind install
PORT = 53

Lookup = Callable[[str], Sequence[str]]


def answer(packet: bytes, lookup: Lookup) -> bytes | None:
    """The reply to one DNS query; None for bytes that are not one.

    `lookup` takes a lower-case name without its last dot and returns addresses, none if the name
    does not exist.
    """
    try:
        query = DNSRecord.parse(packet)
    except DNSError:
        return None
    if query.header.qr or len(query.questions) != 1:
        return None
    reply = query.reply(ra=0)
    addresses = lookup(str(query.q.qname).rstrip(".").lower())
    if not addresses:
        reply.header.rcode = RCODE.NXDOMAIN
    elif query.q.qtype == QTYPE.A:
        for address in addresses:
            reply.add_answer(RR(query.q.qname, QTYPE.A, rdata=A(address), ttl=TTL_S))
    packed: bytes = reply.pack()
    return packed


class NameServer(asyncio.DatagramProtocol):
    """Serves `lookup` until it is closed."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._transport: asyncio.DatagramTransport | None = None
        self._closed = asyncio.Event()

    async def open(self, address: str) -> None:
        """Raises OSError where the port is taken or the address is not this machine's."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=(address, PORT)
        )

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = answer(data, self._lookup)
        if reply is not None and self._transport is not None:
            self._transport.sendto(reply, addr)


def resolv_conf(namespace: str, name_server: str) -> str:
    """/etc/resolv.conf of a pod with dnsPolicy ClusterFirst."""
    domain = "svc.cluster.local"
    return (
        f"nameserver {name_server}\n"
        f"search {namespace}.{domain} {domain} cluster.local\n"
        "options ndots:5\n"
    )
