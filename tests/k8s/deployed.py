"""The overlay k8s/overlays/cpu, or another without a GPU, running: what stands in for what this
machine has not, and how its parts are reached.

Stand-ins, and no more: vLLM's image is this machine's environment without the project in it, the
model of the hub is a tiny one laid into the pools' cache as the hub's library would, and Jaeger
is a sink that prints what it gets.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from orch_sidecar.auth.keys import RANDOM_BYTES, entry_of, new_key
from orch_sidecar.tools.local.check import ReceivedSpan, decode
from orch_sidecar.tools.local.up import tiny_model
from tests.engine import one_core
from tests.k8s import trace_sink
from tests.k8s.objects import (
    DEPLOYMENTS,
    ROOT,
    Manifest,
    container,
    containers,
    from_config_maps,
    manifests,
    of_kind,
    references,
)
from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.image import Image, python_image
from tests.k8s.runner.pod import Pod
from tests.patience import HANG_S, READY_WITHIN_S

NAMESPACE: Final = "orch"
_COVERED: Final = "/tmp"


class Deployed:
    """The cluster with all of the overlay in it.

    `models` has the name that clients ask for by Deployment, `model` that of cloud.
    """

    def __init__(self, cluster: Cluster, models: dict[str, str], key: str) -> None:
        self.cluster = cluster
        self.models = models
        self.model = models["orch-cloud"]
        self.key = key

    @property
    def url(self) -> str:
        """An entry of the Service, as a client in the cluster reaches it."""
        return f"http://{self.pods('orch-entry')[0].ip}:8080"

    def pods(self, deployment: str) -> list[Pod]:
        return self.cluster.pods(deployment)

    def wait_ready(self, deployment: str, count: int) -> None:
        self.cluster.wait(lambda: self.cluster.ready(deployment) >= count, READY_WITHIN_S)

    def engine(self, pod: Pod) -> dict[str, Any]:
        """What the sidecar of a pool's pod reports of its engine."""
        with urllib.request.urlopen(
            f"http://{pod.ip}:8080/v1/capabilities", timeout=HANG_S
        ) as answer:
            document = json.load(answer)
        state: dict[str, Any] = document["engines"][0]
        return state

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of a trace that have come to Jaeger's place so far."""
        [jaeger] = self.pods("orch-jaeger")
        exports = (base64.b64decode(line) for line in jaeger.log("jaeger").splitlines())
        requests = (ExportTraceServiceRequest.FromString(each) for each in exports)
        return [span for each in requests for span in decode(each) if span.trace_id == trace_id]


@contextmanager
def deployed(state_dir: Path, folder: str = "cpu") -> Iterator[Deployed]:
    """Applies the overlay, with a Secret of one API key, and waits until all of it is ready."""
    found = list(manifests(folder))
    pools = [each for each in of_kind(folder, "Deployment") if each.name in DEPLOYMENTS.values()]
    models = {each.name: from_config_maps(container(each, "download"), folder) for each in pools}
    key = new_key(os.urandom(RANDOM_BYTES))
    with _environment() as venv, Cluster(_images(found, venv), state_dir) as cluster:
        cluster.apply(each.body for each in of_kind(folder, "PersistentVolumeClaim"))
        for pool in pools:
            [claim] = [
                name for kind, name, *_ in references(pool) if kind == "PersistentVolumeClaim"
            ]
            model = models[pool.name]
            _download(cluster.claim(claim), model["MODEL"], model["REVISION"])
        cluster.apply([_secret(key), *(each.body for each in found)])
        names = {pool: model["SERVED_NAME"] for pool, model in models.items()}
        there = Deployed(cluster, names, key)
        for deployment in (*models, "orch-jaeger"):
            there.wait_ready(deployment, 1)
        there.wait_ready("orch-entry", 2)
        yield there


@contextmanager
def _environment() -> Iterator[Path]:
    """The virtual environment, where no volume covers it: the pods have one of their own at /tmp.

    A checkout that lies there is tested with hard links to the files of its environment.
    """
    venv = Path(sys.prefix).resolve()
    if not venv.is_relative_to(_COVERED):
        yield venv
        return
    place = Path(tempfile.mkdtemp(prefix="orch-environment-", dir="/var/lib"))
    try:
        for how in ("-al", "-a"):  # on another file system there are no hard links
            if not subprocess.run(["cp", how, venv, place / "venv"], check=False).returncode:
                break
            shutil.rmtree(place / "venv", ignore_errors=True)
        else:
            raise OSError(f"{venv} cannot be copied to {place}")
        yield place / "venv"
    finally:
        shutil.rmtree(place)


def _images(found: list[Manifest], venv: Path) -> dict[str, Image]:
    references = {
        container["image"]
        for each in found
        if each.kind == "Deployment"
        for container in containers(each)
    }
    [jaeger] = [each for each in references if "jaeger" in each]
    [vllm] = references - {jaeger}
    environment = python_image(
        venv,
        ROOT,
        "orch-sidecar",
        # The hub cannot be reached; and two engines and their tests share two cores. What engines
        # compile before they are ready is for tests/engine/test_warm_up.
        environment={
            "HF_HUB_OFFLINE": "1",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "ORCH_WARM_UP": "off",
            **one_core.ENVIRON,
        },
    )
    sink = "/opt/trace_sink.py"
    return {
        vllm: environment,
        jaeger: Image(
            environment=environment.environment,
            masked=environment.masked,
            passable=environment.passable,
            files={sink: Path(trace_sink.__file__).read_text(encoding="utf-8")},
            instead=("python3", sink),
        ),
    }


def _download(cache: Path, model: str, revision: str) -> None:
    """Lays the tiny model into a cache of the hub, as the revision of the model that pods load;
    and beside it what vLLM has found out of its class here, for which it starts a process."""
    repository = cache / "hub" / f"models--{model.replace('/', '--')}"
    shutil.copytree(tiny_model(), repository / "snapshots" / revision, dirs_exist_ok=True)
    classes = Path.home() / ".cache" / "vllm" / "modelinfos"
    if classes.exists():
        known = cache / "compiled" / "vllm" / "modelinfos"
        shutil.copytree(classes, known, copy_function=shutil.copyfile, dirs_exist_ok=True)


def _secret(key: str) -> dict[str, Any]:
    data = {"keys.yaml": base64.b64encode(entry_of(key, "tests").encode()).decode()}
    metadata = {"name": "orch-api-keys", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
