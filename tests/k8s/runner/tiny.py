"""What the harness's own tests are made of: objects as short as a manifest can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHELL = "shell:1"  # the image name that these use


def deployment(name: str, pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Deployment whose pods are labelled `app: <name>` and leave within 2 s unless told else."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"note": "n"}},
                "spec": {"terminationGracePeriodSeconds": 2, **pod},
            },
            **spec,
        },
    }


def shell(text: str, name: str = "c", **fields: Any) -> dict[str, Any]:
    """A container that runs a shell script."""
    return {"name": name, "image": SHELL, "command": ["sh", "-c", text], **fields}


def plain(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    """A ConfigMap, Secret or claim."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def processes(command: str) -> int:
    """How many processes of the machine have exactly this command line."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    count = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += entry.read_bytes() == wanted
        except OSError:
            continue  # ended meanwhile
    return count
