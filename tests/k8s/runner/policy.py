"""Whether NetworkPolicies let one pod reach another's port. Pure.

Policies are evaluated here and NOT enforced on the pods' network: that needs nftables, which the
machines this runs on do not have. Ingress only; a policy for egress is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from tests.k8s.runner.schema.objects import NetworkPolicy
from tests.k8s.runner.schema.part import Part, SpecError, read


class Selector(Part):
    """matchLabels only; `{}` selects everything."""

    match_labels: dict[str, str] = Field(default_factory=dict)

    def selects(self, labels: Mapping[str, str]) -> bool:
        return self.match_labels.items() <= labels.items()


class Peer(Part):
    pod_selector: Selector | None = None
    namespace_selector: Selector | None = None


class PolicyPort(Part):
    port: int | str | None = None
    protocol: str = "TCP"


class Rule(Part):
    """A missing or empty `from` means everyone, missing or empty `ports` every port."""

    sources: list[Peer] = Field(default_factory=list, alias="from")
    ports: list[PolicyPort] = Field(default_factory=list)


class Spec(Part):
    pod_selector: Selector
    policy_types: list[Literal["Ingress"]] = Field(default=["Ingress"])
    ingress: list[Rule] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Party:
    """One end of a connection. `namespace_labels` as on the Namespace object."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)


def spec_of(policy: NetworkPolicy) -> Spec:
    """The policy's spec.

    Raises:
        SpecError: it says something that is not evaluated here: egress, ipBlock, matchExpressions.
    """
    return read(Spec, policy.spec, f"NetworkPolicy/{policy.metadata.name}: spec")


def allowed(policies: Iterable[NetworkPolicy], source: Party, target: Party, port: int) -> bool:
    """Whether `source` may open a connection to `target`'s TCP port.

    Everything is allowed to a pod that no policy selects; else what any selecting policy allows.
    """
    selecting = [
        spec
        for policy, spec in ((policy, spec_of(policy)) for policy in policies)
        if policy.metadata.namespace == target.namespace
        and spec.pod_selector.selects(target.labels)
    ]
    return not selecting or any(
        _permits(rule, source, target, port) for spec in selecting for rule in spec.ingress
    )


def _permits(rule: Rule, source: Party, target: Party, port: int) -> bool:
    from_all = not rule.sources
    to_all = not rule.ports
    return (from_all or any(_is_peer(peer, source, target) for peer in rule.sources)) and (
        to_all or any(_is_port(entry, target, port) for entry in rule.ports)
    )


def _is_peer(peer: Peer, source: Party, target: Party) -> bool:
    """Without a namespaceSelector a peer is in the policy's own namespace."""
    if peer.pod_selector is None and peer.namespace_selector is None:
        raise SpecError("a peer of a NetworkPolicy needs a podSelector or a namespaceSelector")
    if peer.namespace_selector is None:
        near = source.namespace == target.namespace
    else:
        names = {"kubernetes.io/metadata.name": source.namespace}
        near = peer.namespace_selector.selects({**source.namespace_labels, **names})
    return near and (peer.pod_selector is None or peer.pod_selector.selects(source.labels))


def _is_port(entry: PolicyPort, target: Party, port: int) -> bool:
    if entry.protocol != "TCP":
        return False
    if isinstance(entry.port, str):
        return target.ports.get(entry.port) == port
    return entry.port is None or entry.port == port
