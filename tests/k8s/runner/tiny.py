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


def server(text: str, port: int = 8080, name: str = "c", **fields: Any) -> dict[str, Any]:
    """A container that answers every GET with `text`, and leaves on TERM at once."""
    code = f"""
import http.server, os, signal
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = os.path.expandvars({text!r}).encode()
        self.send_response(200 if self.path != "/bad" else 500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.ThreadingHTTPServer((os.environ.get("BIND", "0.0.0.0"), {port}), Answer).serve_forever()
"""
    return {
        "name": name,
        "image": SHELL,
        "command": ["python3", "-c", code],
        "ports": [{"name": "http", "containerPort": port}],
        "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 1},
        **fields,
    }


def service(name: str, *, app: str | None = None, **spec: Any) -> dict[str, Any]:
    """A Service of port 80 for a Deployment's pods."""
    ports = [{"port": 80, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": app or name}, "ports": ports, **spec},
    }


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
