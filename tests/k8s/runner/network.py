"""The cluster's network on one machine: a bridge, a subnet, a veth pair into every pod.

The bridge carries its owner's process id and start time in its alias, so that a later run can tell
a bridge in use from one whose owner died. A pod has an on-link route to the subnet and no other.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
from pathlib import Path

from tests.k8s.runner.tools import ToolFailed, call

PREFIX = "k8run"  # names of the harness's links; the kernel's limit is 15 characters
_MARK = "kubernetes-runner"
_PODS = range(10, 250)


class Network:
    """One bridge with a /24."""

    def __init__(self) -> None:
        self.bridge = ""
        self.subnet = ipaddress.IPv4Network("10.0.0.0/24")
        self._taken: set[int] = set()
        self._pod, self._veth = 0, 0

    @property
    def address(self) -> str:
        """The bridge's own address: the node."""
        return str(self.subnet[1])

    async def open(self) -> None:
        """Makes the bridge in a free subnet of 10.0.0.0/8.

        Raises:
            ToolFailed: links cannot be made here (not root, no bridge support), or nothing is free.
        """
        await remove_leftovers()
        self.bridge = f"{PREFIX}{os.getpid():x}{random.randrange(16**3):03x}"
        for _ in range(20):
            self.subnet = ipaddress.IPv4Network((f"10.{random.randrange(64, 250)}.0.0", 16))
            self.subnet = list(self.subnet.subnets(new_prefix=24))[random.randrange(256)]
            if await _free(self.subnet):
                break
        else:
            raise ToolFailed("no free subnet in 10.64.0.0 to 10.249.255.255")
        alias = f"{_MARK} {os.getpid()} {_started(os.getpid())}"
        await call("ip", "link", "add", "name", self.bridge, "type", "bridge")
        await call("ip", "link", "set", "dev", self.bridge, "alias", alias)
        await call("ip", "link", "set", "dev", self.bridge, "addrgenmode", "none", "up")
        await self._add(f"{self.address}/{self.subnet.prefixlen}")

    async def close(self) -> None:
        if self.bridge:
            await call("ip", "link", "delete", "dev", self.bridge)
            self.bridge = ""

    def pod_address(self) -> str:
        """An address that no pod has; freed ones are taken again only after all others."""
        for _ in _PODS:
            offset = _PODS[self._pod % len(_PODS)]
            self._pod += 1
            if offset not in self._taken:
                self._taken.add(offset)
                return str(self.subnet[offset])
        raise ToolFailed(f"all {len(_PODS)} pod addresses of {self.subnet} are in use")

    def free(self, address: str) -> None:
        self._taken.discard(int(ipaddress.IPv4Address(address)) - int(self.subnet[0]))

    async def attach(self, pid: int, address: str) -> str:
        """Gives the network namespace of process `pid` its `eth0` with `address`.

        Returns the name of the host's end, for `detach`.
        """
        self._veth += 1
        end = f"{self.bridge[len(PREFIX) :]}v{self._veth}"
        # Without an address of its own the host's end is only a port of the bridge.
        await call(
            "ip",
            "-batch",
            "-",
            stdin=f"link add name {end} type veth peer name eth0 netns {pid}\n"
            f"link set dev {end} addrgenmode none\n"
            f"link set dev {end} master {self.bridge} up\n",
        )
        await call(
            *("nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"),
            stdin="link set dev lo up\n"
            "link set dev eth0 addrgenmode none\n"
            f"address add {address}/{self.subnet.prefixlen} dev eth0\n"
            "link set dev eth0 up\n",
        )
        return end

    async def detach(self, end: str) -> None:
        """Takes the pod off the network at once; the kernel itself would do it some time later."""
        await call("ip", "link", "delete", "dev", end)

    async def _add(self, address: str) -> None:
        await call("ip", "address", "add", address, "dev", self.bridge)


async def remove_leftovers() -> list[str]:
    """Deletes bridges of harnesses whose process is gone; their names."""
    removed = []
    for link in json.loads(await call("ip", "-json", "link", "show", "type", "bridge") or "[]"):
        words = link.get("ifalias", "").split()
        if len(words) != 3 or words[0] != _MARK or not link["ifname"].startswith(PREFIX):
            continue
        if _started(int(words[1])) != words[2]:
            await call("ip", "link", "delete", "dev", link["ifname"])
            removed.append(link["ifname"])
    return removed


def _started(pid: int) -> str:
    """When the process started (clock ticks since boot); empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    return stat.rpartition(")")[2].split()[19]


async def _free(subnet: ipaddress.IPv4Network) -> bool:
    """Whether no address and no route of the machine touches the subnet."""
    used = []
    for link in json.loads(await call("ip", "-json", "-4", "address", "show") or "[]"):
        used += [f"{entry['local']}/{entry['prefixlen']}" for entry in link.get("addr_info", [])]
    routes = json.loads(await call("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    used += [route["dst"] for route in routes if route["dst"] != "default"]
    return not any(subnet.overlaps(ipaddress.ip_network(entry, strict=False)) for entry in used)
