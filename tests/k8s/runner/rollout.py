"""What a Deployment does next about its pods. Pure: from counts to creations and deletions.

Follows the deployment controller: a terminating pod no longer counts (its successor is made while
it leaves), except that `Recreate` waits until every pod of another revision is gone. A rolling
update first takes pods of other revisions that are not ready, then ready ones, and never has fewer
ready pods than replicas minus maxUnavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.k8s.runner.quantity import share_of
from tests.k8s.runner.schema.objects import Strategy


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod of the Deployment. `revision` is the hash of the template it was made from."""

    name: str
    revision: str
    ready: bool
    terminating: bool


@dataclass(frozen=True, slots=True)
class Step:
    """How many pods of the current revision to create, and which pods to delete."""

    create: int = 0
    delete: tuple[str, ...] = ()


def step(replicas: int, revision: str, strategy: Strategy, pods: Sequence[Replica]) -> Step:
    """The next step; called again after every change. `pods` are in the order of their creation."""
    live = [pod for pod in pods if not pod.terminating]
    new = [pod for pod in live if pod.revision == revision]
    old = [pod for pod in live if pod.revision != revision]
    if len(new) > replicas:
        # As a ReplicaSet: those that are not ready go first, then the youngest.
        youngest_first = new[::-1]
        ranked = sorted(youngest_first, key=lambda pod: pod.ready)
        return Step(delete=tuple(pod.name for pod in ranked[: len(new) - replicas]))
    if strategy.type == "Recreate":
        if any(pod.revision != revision for pod in pods):
            return Step(delete=tuple(pod.name for pod in old))
        return Step(create=replicas - len(new))
    return _rolling(replicas, strategy, new, old)


def _rolling(
    replicas: int, strategy: Strategy, new: Sequence[Replica], old: Sequence[Replica]
) -> Step:
    surge = share_of(strategy.rolling_update.max_surge, replicas, round_up=True)
    unavailable = share_of(strategy.rolling_update.max_unavailable, replicas, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1  # the controller's own rule: otherwise nothing could ever move
    at_least = replicas - unavailable
    room = replicas + surge - len(new) - len(old) if old else replicas - len(new)
    create = max(0, min(replicas - len(new), room))

    waiting_new = sum(not pod.ready for pod in new) + create
    spare = len(new) + create + len(old) - at_least - waiting_new
    if spare <= 0:
        return Step(create=create)
    unhealthy = [pod.name for pod in old if not pod.ready][:spare]
    ready = sum(pod.ready for pod in (*new, *old))
    healthy = [pod.name for pod in old if pod.ready][: max(0, ready - at_least)]
    return Step(create=create, delete=(*unhealthy, *healthy))
