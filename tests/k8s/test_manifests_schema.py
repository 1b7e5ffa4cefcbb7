"""Every manifest holds against the schemas of the oldest and the newest Kubernetes minor, strictly.

The schemas are those that kubernetes-validate ships, one set per minor, with nothing allowed that
they do not name. Kinds that come from elsewhere (Prometheus Operator, Gateway API, LeaderWorkerSet,
KServe) have none there: what is asked of them is written out in the tests of what they are for.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped] # ships no types
import pytest
from kubernetes_validate.utils import all_versions  # type: ignore[import-untyped]

from tests.k8s.objects import DEFAULT, Manifest, all_manifests, named

FOREIGN: Final = {
    "PodMonitor": "monitoring.coreos.com",
    "ServiceMonitor": "monitoring.coreos.com",
    "PrometheusRule": "monitoring.coreos.com",
    "ScaledObject": "keda.sh",
    "InferencePool": "inference.networking.k8s.io",
    "Gateway": "gateway.networking.k8s.io",
    "HTTPRoute": "gateway.networking.k8s.io",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io",
    "LLMInferenceService": "serving.kserve.io",
}
# Three minors are supported at a time; two more, for clusters that lag behind.
MINORS: Final = 5


def minors() -> list[str]:
    """The newest minor that schemas are shipped for, and the oldest that counts, as `1.37`."""
    shipped = {tuple(map(int, each.split("-")[0].split(".")[:2])) for each in all_versions()}
    newest = [f"{major}.{minor}" for major, minor in sorted(shipped)[-MINORS:]]
    return [newest[0], newest[-1]]


def ours() -> list[Manifest]:
    """The distinct objects of all overlays that have a schema."""
    return [each for each in all_manifests() if each.kind not in FOREIGN]


def check(body: Any, minor: str) -> None:
    """Raises ValidationError for what that minor's schema does not allow."""
    _check(json.dumps(body, sort_keys=True), minor)


@cache  # most objects are the same in many overlays, and each look reads a schema of megabytes anew
def _check(body: str, minor: str) -> None:
    used = kubernetes_validate.validate(json.loads(body), minor, strict=True)
    assert used == minor, f"{minor} was asked for, {used} was used"


def test_schemas_are_shipped_for_minors_that_have_native_sidecars() -> None:
    """They are stable since 1.33, on by default since 1.29; `1.33` was a minor of its own."""
    oldest, newest = (int(minor.split(".")[1]) for minor in minors())
    assert newest - oldest == MINORS - 1
    assert oldest >= 33


@pytest.mark.parametrize("minor", minors())
def test_manifests_are_valid(minor: str) -> None:
    for manifest in ours():
        check(manifest.body, minor)


@pytest.mark.parametrize("minor", minors())
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replica"), 1),
        (("spec", "template", "spec", "containers", 0, "livenessprobe"), {}),
        (("spec", "template", "spec", "terminationGracePeriodSeconds"), "soon"),
    ],
    ids=["unknown", "misspelt", "mistyped"],
)
def test_validation_sees_what_is_wrong(path: tuple[Any, ...], value: Any, minor: str) -> None:
    body: Any = copy.deepcopy(dict(named(DEFAULT, "Deployment", "orch-home").body))
    place = body
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        check(body, minor)


def test_only_what_has_no_schema_is_left_to_other_tests() -> None:
    for manifest in all_manifests():
        group = manifest.body["apiVersion"].partition("/")[0]
        assert FOREIGN.get(manifest.kind, group) == group, manifest.file
        assert (group in FOREIGN.values()) == (manifest.kind in FOREIGN), manifest.file
