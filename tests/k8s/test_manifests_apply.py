"""What repeated applies, scaling and changes of the overlay do to objects in a cluster."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.k8s.objects import DEFAULT, SETS, all_manifests, manifests, named, of_kind
from tests.k8s.serverside import apply, leaves

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
