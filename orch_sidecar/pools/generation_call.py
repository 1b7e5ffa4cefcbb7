"""A request for a generation, before a pool is chosen for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.pools.placement.affinity import Prefixes
from vllm_plugin.contracts.profile import ServiceClass


class PrefixUse(StrEnum):
    """Where a request was placed, by what is known of the prefix of its prompt."""

    HIT = "hit"  # at the pool that last served it
    MOVED = "moved"  # at another pool
    NEW = "new"  # no pool has served any of it


@dataclass(slots=True)
class GenerationCall:
    """A request for a generation, before a pool is chosen for it.

    `key`: the digest of its client's API key, empty without one; `weight`: of that key.
    `cache_owner`: equal for clients that share the engines' prefix cache; empty without keys.
    `prefixes`: of its prompt, where pools are to be chosen by them. `later`: it is a part, not the
    first, of a request.
    """

    generation: GenerationRequest
    options: RequestOptions
    service_class: ServiceClass
    body_bytes: int
    key: bytes = b""
    weight: float = 1.0
    cache_owner: bytes = b""
    prefixes: Prefixes = ()
    later: bool = False
