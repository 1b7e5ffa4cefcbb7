"""The harness's pure rules: order of modules, endpoints, rollout, probes, policies, names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from dnslib import QTYPE, RCODE, DNSRecord  # type: ignore[import-untyped]

from tests.k8s import runner
from tests.k8s.runner.endpoints import Backend, backends, target_port
from tests.k8s.runner.environment import service_links
from tests.k8s.runner.health import Result, Tally
from tests.k8s.runner.names import answer
from tests.k8s.runner.policy import Party, allowed
from tests.k8s.runner.rollout import Replica, Step, step
from tests.k8s.runner.schema.container import Probe
from tests.k8s.runner.schema.objects import NetworkPolicy, Service, Strategy, parse
from tests.k8s.runner.schema.part import SpecError

LABELS = {"app": "a"}
PACKAGE = "tests.k8s.runner"


def test_modules_of_the_harness_import_only_what_stands_below_them() -> None:
    order = re.findall(r"^    (\w+) +\S", runner.__doc__ or "", re.MULTILINE)
    directory = Path(runner.__file__ or "").parent
    names = {path.stem for path in directory.iterdir() if path.name[0] not in "_."}
    assert sorted(order) == sorted(names)
    for name in order:
        paths = directory.rglob("schema/*.py") if name == "schema" else [directory / f"{name}.py"]
        text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
        found = re.findall(
            rf"^from {PACKAGE}(?:\.(\w+)[\w.]*)? import ([\w, ]+)", text, re.MULTILINE
        )
        imported = {module or item for module, items in found for item in items.split(", ")}
        imported = {item.split(" as ")[0] for item in imported} - {name}
        assert imported <= set(order[order.index(name) + 1 :]), name


def service(**spec: Any) -> Service:
    data = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "my-svc"}}
    found = parse({**data, "spec": {"selector": LABELS, **spec}})
    assert isinstance(found, Service)
    return found


def test_service_links_are_those_of_every_cluster() -> None:
    links = service_links([(service(ports=[{"port": 80, "name": "http"}]), "10.1.1.1")])
    assert links["MY_SVC_SERVICE_HOST"] == "10.1.1.1"
    assert links["MY_SVC_PORT"] == "tcp://10.1.1.1:80"
    assert links["MY_SVC_SERVICE_PORT_HTTP"] == links["MY_SVC_PORT_80_TCP_PORT"] == "80"


def backend(ip: str, *, ready: bool, terminating: bool = False) -> Backend:
    return Backend(ip, "default", LABELS | {"x": "y"}, {"http": 8000}, ready, terminating)


def test_terminating_and_unready_pods_are_no_endpoints_unless_published() -> None:
    pods = [
        backend("1", ready=True),
        backend("2", ready=False),
        backend("3", ready=True, terminating=True),
    ]
    assert [pod.ip for pod in backends(service(), pods)] == ["1"]
    assert len(backends(service(publishNotReadyAddresses=True), pods)) == 3


def test_target_port_is_resolved_by_name_in_the_pod() -> None:
    by_name = service(ports=[{"port": 80, "targetPort": "http"}]).spec.ports[0]
    other = service(ports=[{"port": 80, "targetPort": "none"}]).spec.ports[0]
    same = service(ports=[{"port": 80}]).spec.ports[0]
    pod = backend("1", ready=True)
    assert [target_port(port, pod) for port in (by_name, other, same)] == [8000, None, 80]


ROLLING = Strategy.model_validate({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
RECREATE = Strategy.model_validate({"type": "Recreate"})


def replica(name: str, revision: str, *, ready: bool = True, terminating: bool = False) -> Replica:
    return Replica(name, revision, ready, terminating)


def test_deleted_pod_gets_its_successor_while_it_leaves() -> None:
    pods = [replica("a", "1", terminating=True), replica("b", "1")]
    assert step(2, "1", ROLLING, pods) == Step(create=1)
    assert step(2, "1", RECREATE, pods) == Step(create=1)


def test_scaling_down_takes_the_unready_and_then_the_youngest() -> None:
    pods = [replica("a", "1"), replica("b", "1", ready=False), replica("c", "1")]
    assert step(2, "1", ROLLING, pods) == Step(delete=("b",))
    assert step(1, "1", ROLLING, pods) == Step(delete=("b", "c"))


def test_rolling_update_never_has_fewer_ready_pods_than_asked_for() -> None:
    old = [replica("a", "1"), replica("b", "1")]
    assert step(2, "2", ROLLING, old) == Step(create=1)
    assert step(2, "2", ROLLING, [*old, replica("n", "2", ready=False)]) == Step()
    assert step(2, "2", ROLLING, [*old, replica("n", "2")]) == Step(delete=("a",))


def test_recreate_waits_until_the_old_revision_is_gone() -> None:
    old = [replica("a", "1"), replica("b", "1")]
    assert step(2, "2", RECREATE, old) == Step(delete=("a", "b"))
    assert step(2, "2", RECREATE, [replica("a", "1", terminating=True)]) == Step()
    assert step(2, "2", RECREATE, []) == Step(create=2)


def test_probe_state_changes_only_after_its_threshold_in_a_row() -> None:
    probe = {"exec": {"command": ["x"]}, "failureThreshold": 2, "successThreshold": 2}
    tally = Tally(Probe.model_validate(probe), passing=False)
    good, bad = Result(True, ""), Result(False, "")
    assert [tally.add(result) for result in (good, bad, good, good)] == [False, False, False, True]
    assert tally.passing
    assert [tally.add(result) for result in (bad, good, bad, bad)] == [False, False, False, True]
    assert not tally.passing


def network_policy(spec: dict[str, Any]) -> NetworkPolicy:
    data = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    found = parse({**data, "metadata": {"name": "n"}, "spec": spec})
    assert isinstance(found, NetworkPolicy)
    return found


def test_policies_allow_what_any_selecting_one_allows() -> None:
    entry = {"podSelector": {"matchLabels": {"role": "entry"}}}
    other_space = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "mon"}}}
    rule = {"from": [entry, other_space], "ports": [{"port": "http"}]}
    policies = [network_policy({"podSelector": {"matchLabels": LABELS}, "ingress": [rule]})]
    target = Party("default", LABELS, ports={"http": 8000})
    from_entry = Party("default", {"role": "entry"})
    assert allowed(policies, from_entry, target, 8000)
    assert not allowed(policies, from_entry, target, 8001)
    assert not allowed(policies, Party("default", {"role": "x"}), target, 8000)
    assert not allowed(policies, Party("far", {"role": "entry"}), target, 8000)
    assert allowed(policies, Party("mon", {}), target, 8000)
    assert allowed(policies, Party("far", {}), Party("default", {"app": "b"}), 1)


def test_policy_without_ingress_rules_lets_nobody_in() -> None:
    policies = [network_policy({"podSelector": {}, "policyTypes": ["Ingress"]})]
    assert not allowed(policies, Party("default", {}), Party("default", LABELS), 80)


def test_policy_that_cannot_be_evaluated_is_an_error() -> None:
    policies = [network_policy({"podSelector": {}, "policyTypes": ["Egress"]})]
    with pytest.raises(SpecError, match=r"NetworkPolicy/n: spec: policyTypes\[0\]"):
        allowed(policies, Party("default", {}), Party("default", LABELS), 80)


@pytest.mark.parametrize(
    ("name", "kind", "code", "addresses"),
    [
        ("pool.orch.svc.cluster.local", "A", "NOERROR", ["10.0.0.1", "10.0.0.2"]),
        ("POOL.orch.svc.cluster.local.", "A", "NOERROR", ["10.0.0.1", "10.0.0.2"]),
        ("pool.orch.svc.cluster.local", "AAAA", "NOERROR", []),
        ("nothing.orch.svc.cluster.local", "A", "NXDOMAIN", []),
        ("example.com", "AAAA", "NXDOMAIN", []),
    ],
)
def test_name_server_answers_as_coredns(
    name: str, kind: str, code: str, addresses: list[str]
) -> None:
    known = {"pool.orch.svc.cluster.local": ["10.0.0.1", "10.0.0.2"]}
    packet = answer(DNSRecord.question(name, kind).pack(), lambda asked: known.get(asked, []))
    assert packet is not None
    reply = DNSRecord.parse(packet)
    assert RCODE[reply.header.rcode] == code
    assert [str(record.rdata) for record in reply.rr if record.rtype == QTYPE.A] == addresses


def test_bytes_that_are_no_query_get_no_answer() -> None:
    assert answer(b"\x00\x01", lambda _: []) is None
