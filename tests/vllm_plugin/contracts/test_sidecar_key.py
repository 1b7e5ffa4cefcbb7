"""From whom an engine takes claims: from those with its key, or without one from its own host."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_plugin.contracts.sidecar_key import VARIABLE, SidecarKeys, parse_keys

HERE = ("127.0.0.1", 40_000)
ELSEWHERE = ("10.1.2.3", 40_000)
TCP, UNIX = ("127.0.0.1", 8000), ("/run/vllm.sock", None)


def scope(client: tuple[str, int] | None, server: Any = TCP, **fields: str) -> dict[str, Any]:
    """A request as uvicorn describes it; its fields are in lower case."""
    headers = [(name.replace("_", "-").encode(), v.encode()) for name, v in fields.items()]
    return {"client": client, "server": server, "headers": headers}


@pytest.mark.parametrize(
    ("client", "server", "known"),
    [
        (HERE, TCP, True),
        (("127.0.0.2", 1), TCP, True),
        (("::1", 1), TCP, True),
        (("::ffff:127.0.0.1", 1), ("::", 8000), True),
        (ELSEWHERE, TCP, False),
        (("::ffff:10.1.2.3", 1), ("::", 8000), False),
        (("fe80::1%eth0", 1), TCP, False),
        (("testclient", 1), TCP, False),
        (None, UNIX, True),
        (None, None, True),
    ],
)
def test_without_a_key_the_engine_knows_its_own_host(client: Any, server: Any, known: bool) -> None:
    assert SidecarKeys({}).know(scope(client, server)) is known


def test_peer_that_is_gone_before_its_address_was_read_is_not_taken_for_a_unix_socket() -> None:
    """uvicorn has no address of either; what was sent before the reset is still read."""
    assert not SidecarKeys({}).know(scope(None, TCP))


@pytest.mark.parametrize(
    "name", ["forwarded", "via", "x_forwarded_for", "x_forwarded_proto", "x_forwarded_user"]
)
def test_what_a_proxy_on_the_same_host_forwards_is_not_known(name: str) -> None:
    assert not SidecarKeys({}).know(scope(HERE, **{name: "127.0.0.1"}))
    assert SidecarKeys({VARIABLE: "k"}).know(scope(HERE, **{name: "1"}, x_orch_sidecar_key="k"))


@pytest.mark.parametrize("client", [HERE, ELSEWHERE, None])
@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({}, False),
        ({"x_orch_sidecar_key": ""}, False),
        ({"x_orch_sidecar_key": "wrong"}, False),
        ({"x_orch_sidecar_key": "new,old"}, False),
        ({"authorization": "Bearer new"}, False),
        ({"x_orch_sidecar_key": "new"}, True),
        ({"x_orch_sidecar_key": "old"}, True),
    ],
)
def test_with_keys_only_a_sidecar_that_sends_one_of_them_is_known(
    client: Any, given: dict[str, str], known: bool
) -> None:
    keys = SidecarKeys({VARIABLE: "new,old"})
    assert keys.know(scope(client, **given)) is known


@pytest.mark.parametrize("text", ["", ",", "a,", ",a", "a,,b", "a b", "a\n", "schlüssel", "a, b"])
def test_invalid_keys_are_an_error_that_does_not_show_them(text: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as raised:
        SidecarKeys({VARIABLE: text})
    assert str(raised.value).startswith(f"{VARIABLE} (not shown) must be")
    assert len(text) < 3 or text not in str(raised.value)


def test_sidecar_sends_the_first_of_several() -> None:
    assert parse_keys("new,old") == ["new", "old"]
