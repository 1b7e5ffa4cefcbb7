"""Whether a sidecar is ready, and what clients get while it is not."""

from __future__ import annotations

from tests.integration.client import CHAT, MESSAGES, Response
from tests.integration.running import Running, eventually
from tests.patience import HANG_S


async def readiness(running: Running) -> Response:
    """What an orchestrator's probe is answered."""
    return await (await running.client()).get("/readyz")


async def state_is(running: Running, state: str, within_s: float = HANG_S) -> None:
    """Returns when the sidecar says so; fails when it does not within the time."""
    await eventually(lambda: running.sidecar.state == state, within_s)


def assert_unavailable(response: Response, code: str, path: str = CHAT) -> None:
    """A 503 of the API at `path`, which says that and when to come back."""
    assert response.status == 503
    assert response.error["code"] == code
    assert response.error["retriable"] is True
    assert 1 <= int(response.header("retry-after") or "") <= 60
    assert int(response.header("retry-after-ms") or "") > 0
    expected = "overloaded_error" if path == MESSAGES else "service_unavailable_error"
    assert response.error["type"] == expected
