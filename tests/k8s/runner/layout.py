"""A pod's files on the node: its volumes, and the few that a kubelet writes for every pod."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.k8s.runner.assemble import Place
from tests.k8s.runner.identity import Identity, Unstartable
from tests.k8s.runner.names import resolv_conf
from tests.k8s.runner.node import Node
from tests.k8s.runner.quantity import bytes_of
from tests.k8s.runner.sandbox import Sandbox
from tests.k8s.runner.schema.pod import PodSpec
from tests.k8s.runner.schema.volume import EmptyDir, Volume
from tests.k8s.runner.volumes import File, files_of, own, write


class Layout:
    """`places` says where each volume lies that is made; everything is under `directory`."""

    def __init__(self, node: Node, identity: Identity, spec: PodSpec, directory: Path) -> None:
        self.places: dict[str, Place] = {}
        self._node, self._identity, self._spec = node, identity, spec
        self._directory = directory
        self._written: dict[str, dict[str, File]] = {}

    def kubelet_files(self) -> dict[str, str]:
        """The files that a kubelet writes for every pod: path in the container to source."""
        identity = self._identity
        hosts = f"127.0.0.1\tlocalhost\n::1\tlocalhost\n{identity.pod_ip}\t{identity.name}\n"
        resolv = resolv_conf(identity.namespace, self._node.network.address)
        content = {"hosts": hosts, "hostname": f"{identity.name}\n", "resolv.conf": resolv}
        for name, text in content.items():
            (self._directory / name).write_text(text, encoding="utf-8")
        return {f"/etc/{name}": str(self._directory / name) for name in content}

    def refresh(self) -> None:
        """Brings ConfigMap and Secret volumes to what the objects say now.

        The kubelet does so within a minute or two, here it is at once. As there, a subPath mount
        keeps what it had, and an object that is gone leaves its files.
        """
        for volume in self._spec.volumes:
            if volume.name not in self.places:
                continue
            with suppress(Unstartable):
                sources = self._node.sources(self._identity.namespace)
                files = files_of(volume, sources, self._identity)
                if files is not None and files != self._written[volume.name]:
                    group = self._spec.security_context.fs_group
                    write(Path(self.places[volume.name].path), files, group)
                    self._written[volume.name] = files

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
            files = files_of(volume, self._node.sources(self._identity.namespace), self._identity)
        except Unstartable:
            path.rmdir()
            raise
        if files is None:
            path.chmod(0o777)
            own(path, group, read_only=False)
            return Place(str(path), False)
        write(path, files, group)
        self._written[volume.name] = files
        return Place(str(path), True)

    async def _mount_memory(self, sandbox: Sandbox, path: Path, memory: EmptyDir) -> None:
        sandbox.inside(path).mkdir()
        limit = f",size={bytes_of(memory.size_limit)}" if memory.size_limit else ""
        await sandbox.call("mount", "-t", "tmpfs", "-o", f"mode=777{limit}", "tmpfs", str(path))
