"""What a scripted engine serves sidecars only, and which peers it knows as such."""

from __future__ import annotations

from tests.integration.wire import Answer, Received
from vllm_plugin.contracts.lease_protocol import CLAIMS_PATH
from vllm_plugin.contracts.senders import SidecarKeys


def is_for_sidecars(request: Received) -> bool:
    """Whether a request names an instance or a lease in its path or query."""
    if request.path == "/v1/capabilities/stream":
        return "instance=" in request.query
    return request.path.startswith(("/v1/capabilities/leases/", CLAIMS_PATH))


def knows(keys: SidecarKeys, answer: Answer) -> bool:
    """Whether a request comes from a sidecar, as the plugin decides it."""
    transport, fields = answer.wire.transport, answer.request.fields
    return transport is not None and keys.know(
        {
            "client": transport.get_extra_info("peername")[:2],
            "server": transport.get_extra_info("sockname")[:2],
            "headers": [(name.encode(), value.encode()) for name, value in fields],
        }
    )
