"""The ring of the requests that ended last."""

from __future__ import annotations

from orch_sidecar.observability.recent import RecentRequests
from tests.orch_sidecar.records import record_of


def test_last_ones_are_kept_and_all_are_numbered() -> None:
    recent = RecentRequests(most=3)
    records = [record_of() for _ in range(5)]
    recent.add([(record, at) for at, record in enumerate(records[:2])])
    recent.add([(record, at) for at, record in enumerate(records[2:], 2)])
    assert [at for _, at in recent.all()] == [2, 3, 4]
    assert recent.total == 5
