"""The shell script that turns a new mount and PID namespace into a container, and ends in `exec`.

Pure: from values to text. The script is the container's process 1 from its first line, so that the
command it becomes is process 1, too. To standard input (the write end of a pipe) it writes its
process id as the host sees it, and `ready` when all that is left is the command itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}  # minors of major 1


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of the host (or of the pod's own memory) at a path of the container."""

    source: str
    target: str
    read_only: bool = False
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Rights:
    """The user and groups of a process, and whether it may have capabilities."""

    user: int
    group: int
    groups: tuple[int, ...]
    no_new_privileges: bool
    capabilities: bool


@dataclass(frozen=True, slots=True)
class Process:
    """A command as it runs in a container: the container's own, a probe's, a hook's."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    working_dir: str
    rights: Rights

    def argv(self) -> list[str]:
        """The command behind setpriv (rights) and env (a clean environment, the directory)."""
        rights = self.rights
        groups = ",".join(map(str, rights.groups))
        return [
            *("/usr/bin/setpriv", "--reuid", str(rights.user), "--regid", str(rights.group)),
            *("--groups", groups),
            *(["--no-new-privs"] if rights.no_new_privileges else []),
            *([] if rights.capabilities else ["--bounding-set=-all"]),
            *("--inh-caps=-all", "--", "/usr/bin/env", "-i", "-C", self.working_dir),
            *(f"{name}={value}" for name, value in self.environment.items()),
            *self.command,
        ]


@dataclass(frozen=True, slots=True)
class Root:
    """A container's file system: image layer, its own writable layer, what is mounted into it."""

    layer: str
    writable: str
    point: str
    binds: tuple[Bind, ...]
    read_only: bool


def script(root: Root, process: Process) -> str:
    """The whole script, for `sh`."""
    lines = ["set -e", "read -r pid _ < /proc/self/stat", 'echo "$pid" >&0']
    lines += _overlay(root)
    lines += _system(root.point)
    lines += [
        _call("mkdir", f"{root.point}/.host"),
        _call("cd", root.point),
        "pivot_root . .host",
        "cd /",
    ]
    # After the pivot, so that a link in the image leads to where it leads in the container.
    # Shorter paths first, as the container runtimes do it: a mount may lie inside another one.
    for bind in sorted(root.binds, key=lambda bind: len(Path(bind.target).parts)):
        lines += _bind(bind)
    lines += [_call("mkdir", "-p", process.working_dir), "umount -l /.host", "rmdir /.host"]
    if root.read_only:
        lines.append("mount -o remount,bind,ro /")
    lines += ["echo ready >&0", f"exec {_call(*process.argv())} < /dev/null"]
    return "\n".join(lines) + "\n"


def _overlay(root: Root) -> list[str]:
    upper, work = f"{root.writable}/upper", f"{root.writable}/work"
    options = f"lowerdir={root.layer}:/,upperdir={upper},workdir={work}"
    return [
        _call("mkdir", "-p", upper, work, root.point),
        _call("mount", "-t", "overlay", "-o", options, "overlay", root.point),
    ]


def _system(point: str) -> list[str]:
    """/proc of the new PID namespace, /sys read-only, a /dev of the harmless devices."""
    lines = [
        _call("mount", "-t", "proc", "-o", "nosuid,nodev,noexec", "proc", f"{point}/proc"),
        _call("mount", "--bind", f"{point}/proc/sys", f"{point}/proc/sys"),
        _call("mount", "-o", "remount,bind,ro", f"{point}/proc/sys"),
        _call("mount", "-t", "sysfs", "-o", "ro,nosuid,nodev,noexec", "sysfs", f"{point}/sys"),
        _call("mount", "-t", "tmpfs", "-o", "nosuid,mode=755,size=64k", "tmpfs", f"{point}/dev"),
        _call("mkdir", f"{point}/dev/pts", f"{point}/dev/shm"),
    ]
    for name, minor in _DEVICES.items():
        lines.append(_call("mknod", "-m", "666", f"{point}/dev/{name}", "c", "1", str(minor)))
    lines.append(_call("mknod", "-m", "666", f"{point}/dev/tty", "c", "5", "0"))
    for name, end in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        lines.append(_call("ln", "-s", f"/proc/self/fd{end}", f"{point}/dev/{name}"))
    pts = "newinstance,ptmxmode=0666,mode=620"
    lines.append(_call("mount", "-t", "devpts", "-o", pts, "devpts", f"{point}/dev/pts"))
    lines.append(_call("ln", "-s", "pts/ptmx", f"{point}/dev/ptmx"))
    return lines


def _bind(bind: Bind) -> list[str]:
    target = bind.target
    if bind.is_file:
        make = [
            _call("mkdir", "-p", str(Path(target).parent)),
            f"[ -e {shlex.quote(target)} ] || {_call('touch', target)}",
        ]
    else:
        make = [_call("mkdir", "-p", target)]
    lines = [*make, _call("mount", "--bind", f"/.host{bind.source}", target)]
    if bind.read_only:
        lines.append(_call("mount", "-o", "remount,bind,ro", target))
    return lines


def _call(*words: str) -> str:
    return shlex.join(words)
