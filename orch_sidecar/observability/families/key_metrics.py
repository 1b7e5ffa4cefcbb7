"""Prometheus metrics of the API keys' shares, sampled at a scrape; no sample without keys.

A key is labelled by the name of its entry in the key file: neither the key nor its digest appears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from orch_sidecar.admission.fairness.key_share import KeyShare
from orch_sidecar.observability.families.metric_family import Family, Sample, Scraped

_LABELS: Final = ("class", "key")


def key_families(names: Mapping[bytes, str]) -> Iterable[Family]:
    """Returns all families. `names`: of the keys that are known, by their digests."""

    def of_each(number: Callable[[KeyShare], float]) -> Callable[[Scraped], Iterable[Sample]]:
        return lambda at: [
            ([service_class.value, names[digest]], number(share))
            for service_class in at.pool.classes
            for digest, share in at.pool.queues.shares(service_class).items()
            if digest in names
        ]

    return (
        Family(
            "orch_key_tokens",
            "Tokens charged to the key for requests that ended: prompt, and twice the generated.",
            of_each(lambda share: share.served),
            _LABELS,
            counts=True,
            private=True,
            of_requests=True,
        ),
        Family(
            "orch_key_queue_depth",
            "Queued requests of the key.",
            of_each(lambda share: len(share.queue)),
            _LABELS,
            private=True,
            of_requests=True,
        ),
        Family(
            "orch_key_running",
            "Requests of the key that have slots.",
            of_each(lambda share: share.running),
            _LABELS,
            private=True,
            of_requests=True,
        ),
    )
