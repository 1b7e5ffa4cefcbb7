"""The API keys in `/v1/capabilities`: the shares and the budgets of the one that asks, to those who
may read them the shares of all.

Pure. Keys appear by their names in the key file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orch_sidecar.admission.queues import Queues
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.keys import ApiKey
from vllm_plugin.contracts.profile import ServiceClass


def shares(queues: Queues, names: Mapping[bytes, str]) -> dict[str, Any]:
    """Returns what each of these keys has in a pool, by class and name.

    `share`: of the tokens that all keys of the class were served since the start, None if there
    were none.
    """
    found: dict[str, Any] = {}
    for service_class in ServiceClass:
        of_class = queues.shares(service_class)
        total = sum(share.served for share in of_class.values())
        found[service_class.value] = {
            names[digest]: {
                "weight": share.weight,
                "queued": len(share.queue),
                "running": share.running,
                "share": round(share.served / total, 4) if total else None,
            }
            for digest, share in of_class.items()
            if digest in names
        }
    return found


def budgets(authorizer: Authorizer, key: ApiKey | None) -> dict[str, float | None]:
    """Returns what this entry grants the key that asks, per minute; None: no limit."""
    requests, tokens = (None, None) if key is None else authorizer.budget_of(key)
    return {"key_requests_per_minute": requests, "key_tokens_per_minute": tokens}
