"""The cluster's network on one machine: a bridge, a subnet, a veth pair into every pod."""

from __future__ import annotations

import ipaddress
import json
import os
import random
from pathlib import Path
from typing import Final

from tests.k8s.runner.tools import ToolFailed, call

PREFIX: Final = "k8run"  # names of this package's links; the kernel's limit is 15 characters
_FIRST_POD: Final = 10  # addresses below are for the bridge
_MOST_PODS: Final = 240


class Network:
    """One bridge with a /24. Pods have an on-link route to it and no other."""

    def __init__(self) -> None:
        self.bridge = ""
        self.subnet = ipaddress.IPv4Network("10.0.0.0/24")
        self._pods = 0

    async def open(self) -> None:
        """Makes the bridge in a free subnet of 10.0.0.0/8. Raises ToolFailed."""
        for left in _leftovers():
            await call("ip", "link", "delete", "dev", left)
        self.bridge = f"{PREFIX}{os.getpid():x}{random.randrange(16**3):03x}"
        for _ in range(20):
            number = random.randrange(64 * 256, 250 * 256)
            self.subnet = ipaddress.IPv4Network(f"10.{number // 256}.{number % 256}.0/24")
            if await _free(self.subnet):
                break
        else:
            raise ToolFailed("no free subnet in 10.64.0.0 to 10.249.255.255")
        await call("ip", "link", "add", "name", self.bridge, "type", "bridge")
        await call("ip", "link", "set", "dev", self.bridge, "addrgenmode", "none", "up")
        await call("ip", "address", "add", f"{self.subnet[1]}/24", "dev", self.bridge)

    async def close(self) -> None:
        """Removes the bridge."""
        if self.bridge:
            await call("ip", "link", "delete", "dev", self.bridge)
            self.bridge = ""

    def pod_address(self) -> str:
        """Returns an address that no pod has had. Raises ToolFailed when there is none left."""
        if self._pods == _MOST_PODS:
            raise ToolFailed(f"all {_MOST_PODS} pod addresses of {self.subnet} were used")
        self._pods += 1
        return str(self.subnet[_FIRST_POD + self._pods - 1])

    async def attach(self, pid: int, address: str) -> str:
        """Gives the network namespace of process `pid` its `eth0` with `address`.

        Returns the name of the host's end, for `detach`.
        """
        end = f"{self.bridge[len(PREFIX) :]}v{address.rpartition('.')[2]}"
        # Without an address of its own the host's end is only a port of the bridge.
        await call(
            *("ip", "-batch", "-"),
            stdin=f"link add name {end} type veth peer name eth0 netns {pid}\n"
            f"link set dev {end} addrgenmode none\n"
            f"link set dev {end} master {self.bridge} up\n",
        )
        await call(
            *("nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"),
            stdin="link set dev lo up\n"
            "link set dev eth0 addrgenmode none\n"
            f"address add {address}/24 dev eth0\n"
            "link set dev eth0 up\n",
        )
        return end

    async def detach(self, end: str) -> None:
        """Takes a pod off the network at once; the kernel itself would do it some time later."""
        await call("ip", "link", "delete", "dev", end)


def _leftovers() -> list[str]:
    """Returns the bridges of processes that were killed."""
    bridges = [path.name for path in Path("/sys/class/net").glob(f"{PREFIX}*")]
    pids = {name: int(name[len(PREFIX) : -3], 16) for name in bridges}
    return [name for name, pid in pids.items() if not Path(f"/proc/{pid}").exists()]


async def _free(subnet: ipaddress.IPv4Network) -> bool:
    """Whether no address and no route of the machine touches the subnet."""
    used = []
    for link in json.loads(await call("ip", "-json", "-4", "address", "show") or "[]"):
        used += [f"{entry['local']}/{entry['prefixlen']}" for entry in link.get("addr_info", [])]
    routes = json.loads(await call("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    used += [route["dst"] for route in routes if route["dst"] != "default"]
    return not any(subnet.overlaps(ipaddress.ip_network(entry, strict=False)) for entry in used)
