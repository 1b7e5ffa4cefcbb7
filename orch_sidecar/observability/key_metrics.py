"""Prometheus metrics of the API keys' shares, sampled at a scrape; none without keys.

A key is labelled by the name of its entry in the key file: neither the key nor its digest appears.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import Metric

from orch_sidecar.admission.fairness.key_share import KeyShare
from orch_sidecar.observability.metric_family import Family, Sample
from orch_sidecar.pools.pool import Pool

_LABELS: Final = ("class", "key")


def key_metrics(pools: Sequence[Pool], names: Mapping[bytes, str]) -> Iterable[Metric]:
    """Yields all families. `names`: of the keys that are known, by their digests."""

    def shares(pool: Pool) -> list[tuple[list[str], KeyShare]]:
        return [
            ([service_class.value, names[digest]], share)
            for service_class in pool.classes
            for digest, share in pool.queues.shares(service_class).items()
            if digest in names
        ]

    def tokens(pool: Pool) -> Iterable[Sample]:
        return [(labels, share.served) for labels, share in shares(pool)]

    def queued(pool: Pool) -> Iterable[Sample]:
        return [(labels, len(share.queue)) for labels, share in shares(pool)]

    def running(pool: Pool) -> Iterable[Sample]:
        return [(labels, share.running) for labels, share in shares(pool)]

    for family in (
        Family(
            "orch_key_tokens",
            "Tokens charged to the key for requests that ended: prompt, and twice the generated.",
            tokens,
            _LABELS,
            counts=True,
        ),
        Family("orch_key_queue_depth", "Queued requests of the key.", queued, _LABELS),
        Family("orch_key_running", "Requests of the key that have slots.", running, _LABELS),
    ):
        yield family.collect(pools)
