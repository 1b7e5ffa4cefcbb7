"""Every manifest holds against the schemas of the oldest and the newest Kubernetes minor, strictly.

The schemas are those that kubernetes-validate ships, one set per minor, with nothing allowed that
they do not name. Kinds that come from elsewhere (Prometheus Operator, Gateway API, LeaderWorkerSet,
KServe) have none there: what is asked of them is written out in the tests of what they are for.

What repeated applies, scaling and changes of the overlay do to objects in a cluster.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped] # ships no types
import pytest
from kubernetes_validate.utils import all_versions  # type: ignore[import-untyped]

from tests.k8s.objects import DEFAULT, SETS, Manifest, all_manifests, manifests, named, of_kind
from tests.k8s.serverside import apply, leaves

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


# Where an empty value has a meaning of its own: all pods, a directory with no limit; in a list, a
# rule that allows all, the API group of pods.
MEANINGFUL: Final = (
    *("podSelector", "emptyDir", "namespaceSelector", "route", "gateway"),
    *("ingress.0", "apiGroups.0"),
)


def values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value of an object with its path, inner ones too."""
    yield path, value
    entries = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else ()
    for key, item in (*entries, *items):
        yield from values(item, f"{path}.{key}")


def test_apply_changes_nothing_a_second_time() -> None:
    for manifest in all_manifests():
        body = dict(manifest.body)
        once = apply({}, None, body)
        assert apply(once, body, body) == once == leaves(body), manifest.file


def test_objects_have_no_field_that_the_server_drops() -> None:
    """It leaves out what is null or empty, and each later `kubectl diff` would show it."""
    dropped = [
        f"{manifest.file}{path}"
        for manifest in all_manifests()
        for path, value in values(manifest.body)
        if (value is None or value in ({}, [], ""))
        and not path.endswith(tuple(f".{name}" for name in MEANINGFUL))
    ]
    assert dropped == []


def test_references_to_fields_name_the_version_that_the_server_adds() -> None:
    """Without it a server-side apply after a client-side one has a conflict for each."""
    found = [
        (manifest.file + path, value)
        for manifest in all_manifests()
        for path, value in values(manifest.body)
        if path.endswith(".fieldRef")
    ]
    assert found
    assert [place for place, value in found if value.get("apiVersion") != "v1"] == []


_QUANTITY: Final = re.compile(r"\.(requests|limits)\.[^.]+$|\.(sizeLimit|storage)$")
_CANONICAL: Final = re.compile(r"[1-9]\d*(m|Ki|Mi|Gi)?")


def test_quantities_are_as_the_server_writes_them() -> None:
    for manifest in all_manifests():
        for path, value in values(manifest.body):
            if _QUANTITY.search(path):
                place = f"{manifest.file}{path}: {value!r}"
                assert isinstance(value, str), place
                assert _CANONICAL.fullmatch(value), place
                number, unit = re.split(r"(?<=\d)(?=\D|$)", value, maxsplit=1)
                assert unit == "" or int(number) % (1000 if unit == "m" else 1024), place


@pytest.mark.parametrize("name", ["orch-home", "orch-cloud"])
def test_apply_keeps_the_replicas_that_were_scaled_to(name: str) -> None:
    body = dict(named(DEFAULT, "Deployment", name).body)
    scaled = apply({}, None, body) | {("spec", "replicas"): 3}
    changed = copy.deepcopy(body)
    changed["spec"]["progressDeadlineSeconds"] = 1
    after = apply(scaled, body, changed)
    assert after["spec", "replicas"] == 3
    assert after["spec", "progressDeadlineSeconds"] == 1


def test_new_pool_starts_with_one_pod_because_the_server_sets_that() -> None:
    """The default of `replicas` is 1: named only where another number is meant, or required."""
    given = {
        each.name: each.body["spec"].get("replicas") for each in of_kind(DEFAULT, "Deployment")
    }
    assert given == {"orch-home": None, "orch-cloud": None, "orch-entry": 2, "orch-jaeger": 1}


# What the server refuses to change, by kind.
IMMUTABLE: Final = {
    "PersistentVolumeClaim": ("spec",),
    "Deployment": ("spec", "selector"),
    "Service": ("spec", "clusterIP"),
}


def fixed(body: Any, kind: str) -> Any:
    if kind == "ConfigMap" and body.get("immutable"):
        return {key: body.get(key) for key in ("data", "binaryData")}
    for step in IMMUTABLE.get(kind, ("kind",)):
        body = body.get(step)
        if body is None:
            return None
    return body


def test_one_installation_can_be_applied_over_another() -> None:
    for one, other in itertools.combinations(SETS, 2):
        here = {(each.kind, each.full_name): each.body for each in manifests(one)}
        there = {(each.kind, each.full_name): each.body for each in manifests(other)}
        for key in set(here) & set(there):
            assert fixed(here[key], key[0]) == fixed(there[key], key[0]), (one, other, key)


def test_claims_differ_by_what_cannot_be_changed() -> None:
    claims = {
        (each.name, str(each.body["spec"]))
        for folder in SETS
        for each in of_kind(folder, "PersistentVolumeClaim")
    }
    assert len({name for name, _ in claims}) == len(claims) == 5
