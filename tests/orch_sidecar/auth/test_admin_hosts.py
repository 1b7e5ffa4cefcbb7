"""Which `Host` is accepted on the operators' listener."""

from __future__ import annotations

import pytest

from orch_sidecar.auth.admin_hosts import AdminHosts

HOSTS = AdminHosts(["10.0.0.5", "orch-admin.example", "[fd00::1]", "2001:db8::5"])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9080", "127.0.0.1", "127.1.2.3:1", "[::1]:9080", "[::1]", "localhost:9080",
        "LOCALHOST", "localhost.", "orch.localhost:9080", "10.0.0.5:9080", "orch-admin.example",
        "Orch-Admin.Example:9080", "[fd00::1]:9080", "[FD00::1]",
        "[2001:db8::5]:9080",
    ],
)  # fmt: skip
def test_loopback_names_and_configured_names_are_accepted(host: str) -> None:
    assert HOSTS.check([host]) is None


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:9080"], ["evil.example"], ["127.0.0.1.evil.example"], ["localhost.evil"],
        ["notlocalhost"], ["10.0.0.6"], ["0.0.0.0"], ["[::]"], ["[::1"], [""], [" "], [":9080"],
        [], ["127.0.0.1", "evil.example"], ["evil.example, 127.0.0.1"], ["127.0.0.1@evil.example"],
        ["x.orch-admin.example"], ["2001"], ["2001:9080"],
    ],
)  # fmt: skip
def test_any_other_name_is_rejected_with_the_remedy(hosts: list[str]) -> None:
    refusal = HOSTS.check(hosts)
    assert refusal is not None
    assert "admin_allowed_hosts" in refusal.message


def test_long_name_is_truncated() -> None:
    refusal = HOSTS.check(["x" * 8000])
    assert refusal is not None
    assert len(refusal.message) < 400
