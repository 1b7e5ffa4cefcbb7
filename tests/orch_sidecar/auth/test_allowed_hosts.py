"""Which `Host` is accepted on a listener."""

from __future__ import annotations

import pytest

from orch_sidecar.auth.allowed_hosts import AllowedHosts, is_loopback

CONFIGURED = ["10.0.0.5", "orch-admin.example", "[fd00::1]", "2001:db8::5"]
HOSTS = AllowedHosts("admin_allowed_hosts", CONFIGURED)
OF_CLIENTS = AllowedHosts("allowed_hosts", ["orch.example"], any_address=True)


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
    assert "admin_allowed_hosts (ORCH_ADMIN_ALLOWED_HOSTS)" in refusal.message


@pytest.mark.parametrize(
    "hosts",
    [
        ["10.0.0.6"], ["10.0.0.6:80"], ["[2001:db8::6]:8080"], ["0.0.0.0:8080"], [],
        ["127.0.0.1"], ["[::1]:8080"], ["localhost:8080"], ["Orch.Example"],
    ],
)  # fmt: skip
def test_clients_may_use_any_address_and_none_for_a_rebound_page_has_a_name(
    hosts: list[str],
) -> None:
    assert OF_CLIENTS.check(hosts) is None


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:8080"], ["10.0.0.6.evil.example"], ["10.0.0.6", "evil.example"], [""],
        ["evil.example, 10.0.0.6"], ["10.0.0.6@evil.example"], ["1.2.3"], ["sub.orch.example"],
    ],
)  # fmt: skip
def test_clients_may_use_no_other_name(hosts: list[str]) -> None:
    for _ in range(2):  # what was accepted before is remembered, and nothing else
        refusal = OF_CLIENTS.check(hosts)
        assert refusal is not None
        assert "to allowed_hosts (ORCH_ALLOWED_HOSTS)" in refusal.message


def test_addresses_to_listen_on_that_this_machine_alone_reaches() -> None:
    names = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "a.localhost"]
    assert all(map(is_loopback, names))
    assert not any(map(is_loopback, ["", "0.0.0.0", "::", "10.0.0.5", "here.example"]))


def test_long_name_is_truncated() -> None:
    refusal = HOSTS.check(["x" * 8000])
    assert refusal is not None
    assert len(refusal.message) < 400
