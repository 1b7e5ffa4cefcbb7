"""A pod's files on the node: its volumes, and the few that a kubelet writes for every pod."""

from __future__ import annotations

import os
from pathlib import Path

from tests.k8s.runner.assemble import Place
from tests.k8s.runner.identity import Identity, Unstartable
from tests.k8s.runner.node import Node
from tests.k8s.runner.sandbox import Sandbox
from tests.k8s.runner.schema.pod import PodSpec
from tests.k8s.runner.schema.volume import EmptyDir, Volume
from tests.k8s.runner.volumes import files_of, own, write


class Layout:
    """`places` says where each volume lies that is made; everything is under `directory`."""

    def __init__(self, node: Node, identity: Identity, spec: PodSpec, directory: Path) -> None:
        self.places: dict[str, Place] = {}
        self._node, self._identity, self._spec = node, identity, spec
        self._directory = directory

    def kubelet_files(self) -> dict[str, str]:
        """The files that a kubelet writes for every pod: path in the container to source.

        Names are in /etc/hosts here, and nowhere else.
        """
        self.write_hosts()
        (self._directory / "hostname").write_text(f"{self._identity.name}\n", encoding="utf-8")
        (self._directory / "resolv.conf").write_text("nameserver 127.0.0.1\n", encoding="utf-8")
        names = ("hosts", "hostname", "resolv.conf")
        return {f"/etc/{name}": str(self._directory / name) for name in names}

    def write_hosts(self) -> None:
        """Brings /etc/hosts to what the Services are now: in place, for it is mounted, and in one
        write, for it is read at any time."""
        identity = self._identity
        own = f"127.0.0.1\tlocalhost\n::1\tlocalhost\n{identity.pod_ip}\t{identity.name}\n"
        content = (own + self._node.hosts(identity.namespace)).encode()
        file = os.open(self._directory / "hosts", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            before = os.fstat(file).st_size
            os.pwrite(file, content + b"\n" * (before - len(content)), 0)
            os.ftruncate(file, len(content))
        finally:
            os.close(file)

    async def lay_out(self, volume: Volume, sandbox: Sandbox) -> None:
        """Makes one volume; raises Unstartable while something that it needs does not exist."""
        self.places[volume.name] = await self._made(volume, sandbox)

    async def _made(self, volume: Volume, sandbox: Sandbox) -> Place:
        security = self._spec.security_context
        group = security.fs_group
        if (claim := volume.persistent_volume_claim) is not None:
            path = self._node.claim(self._identity.namespace, claim.claim_name)
            if path is None:
                raise Unstartable(f"PersistentVolumeClaim {claim.claim_name!r} not found")
            once = security.fs_group_change_policy == "OnRootMismatch"
            own(path, group, read_only=claim.read_only, once=once)
            return Place(str(path), claim.read_only)
        path = self._directory / "volumes" / volume.name
        if volume.empty_dir is not None and volume.empty_dir.medium == "Memory":
            path = sandbox.box / "memory" / volume.name
            await self._mount_memory(sandbox, path, volume.empty_dir)
            own(sandbox.inside(path), group, read_only=False)
            return Place(str(path), False)
        path.mkdir(parents=True)
        try:
            files = files_of(volume, self._node.sources(self._identity.namespace))
        except Unstartable:
            path.rmdir()
            raise
        if files is None:
            path.chmod(0o777)
            own(path, group, read_only=False)
            return Place(str(path), False)
        write(path, files, group)
        return Place(str(path), True)

    async def _mount_memory(self, sandbox: Sandbox, path: Path, memory: EmptyDir) -> None:
        sandbox.inside(path).mkdir()
        # Of Kubernetes' suffixes (Mi, Gi) a mount knows the first letter.
        limit = f",size={memory.size_limit.removesuffix('i')}" if memory.size_limit else ""
        await sandbox.call("mount", "-t", "tmpfs", "-o", f"mode=777{limit}", "tmpfs", str(path))
