"""What the harness reads out of manifests: what it refuses, references, variables, numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.k8s.runner.environment import Sources, declared
from tests.k8s.runner.expand import expanded
from tests.k8s.runner.identity import Identity, Unstartable
from tests.k8s.runner.quantity import bytes_of, share_of
from tests.k8s.runner.schema.container import Container
from tests.k8s.runner.schema.objects import parse
from tests.k8s.runner.schema.part import SpecError

LABELS = {"app": "a"}


def deployment(pod: Mapping[str, Any]) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "i"}], **pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": spec},
        },
    }


CONTAINER: dict[str, Any] = {"name": "c", "image": "i"}


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ({"shareProcessNamespace": True}, "spec.template.spec.shareProcessNamespace: is not a"),
        ({"hostNetwork": True}, "spec.template.spec.hostNetwork"),
        ({"containers": [CONTAINER | {"tty": True}]}, "containers[0].tty: is not a field"),
        ({"containers": [CONTAINER | {"env": [{"name": "A", "value": 1}]}]}, "env[0].value"),
        (
            {"containers": [CONTAINER | {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "no volume is named 'v'",
        ),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "volumes[0].hostPath"),
        ({"volumes": [{"name": "v"}]}, "volume 'v' needs exactly one source"),
        ({"containers": [CONTAINER | {"livenessProbe": {}}]}, "exactly one of exec, httpGet"),
        (
            {"initContainers": [{**CONTAINER, "name": "i", "readinessProbe": {"exec": {}}}]},
            "readinessProbe.exec.command",
        ),
        (
            {
                "initContainers": [
                    {**CONTAINER, "name": "i", "readinessProbe": {"tcpSocket": {"port": 1}}}
                ]
            },
            "need restartPolicy Always",
        ),
    ],
)
def test_what_the_harness_does_not_do_is_an_error_that_names_it(
    pod: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError) as wrong:
        parse(deployment(pod))
    assert str(wrong.value).startswith("Deployment/d: ")
    assert said in str(wrong.value)


def test_scheduling_and_resources_are_accepted_without_effect() -> None:
    limits = {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi"}}
    pod = {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}
    parse(deployment({**pod, "containers": [CONTAINER | {"resources": limits}]}))


def test_unknown_kind_is_an_error_that_lists_the_known_ones() -> None:
    data = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}}
    with pytest.raises(SpecError, match=r"StatefulSet/s: kind 'StatefulSet' is not one of .*Depl"):
        parse(data)


def test_selector_must_match_the_templates_labels() -> None:
    data = deployment({})
    data["spec"]["selector"]["matchLabels"] = {"app": "b"}
    with pytest.raises(SpecError, match="does not match the labels"):
        parse(data)


def test_binary_data_must_be_base64() -> None:
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}
    with pytest.raises(SpecError, match=r"ConfigMap/m: binaryData\.k is not base64"):
        parse({**data, "binaryData": {"k": "*"}})


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
    ],
)
def test_references_expand_as_kubernetes_expands_them(text: str, result: str) -> None:
    assert expanded(text, {"A": "1", "B": "2"}) == result


def test_quantities_and_shares() -> None:
    assert bytes_of("64Mi") == 64 * 2**20
    assert bytes_of("1.5k") == 1500
    assert (share_of("25%", 3, round_up=True), share_of("25%", 3, round_up=False)) == (1, 0)
    with pytest.raises(SpecError, match="'64mb' is not a quantity"):
        bytes_of("64mb")
    with pytest.raises(SpecError, match="'x' is neither"):
        share_of("x", 3, round_up=True)


def identity() -> Identity:
    return Identity("p", "ns", "uid", LABELS, {}, "default", "node", "10.0.0.1", "10.0.0.2")


def test_later_variables_win_and_see_those_before_them() -> None:
    container = Container.model_validate(
        CONTAINER
        | {
            "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "P_"}],
            "env": [
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "URL", "value": "http://$(IP):$(P_PORT)/$(LATER)"},
                {"name": "LATER", "value": "x"},
                {
                    "name": "KEY",
                    "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}},
                },
            ],
        }
    )
    sources = Sources({"m": {"PORT": b"80"}}.get, lambda _: None)
    found = declared(container, identity(), sources, {"WEB_PORT": "tcp://x"})
    assert found == {
        "WEB_PORT": "tcp://x",
        "P_PORT": "80",
        "IP": "10.0.0.2",
        "URL": "http://10.0.0.2:80/$(LATER)",
        "LATER": "x",
    }


def test_missing_object_keeps_a_container_from_starting() -> None:
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    container = Container.model_validate(
        CONTAINER | {"env": [{"name": "K", "valueFrom": reference}]}
    )
    sources = Sources(lambda _: None, {"s": {"other": b""}}.get)
    with pytest.raises(Unstartable, match="Secret 's' has no key 'k'"):
        declared(container, identity(), sources, {})
