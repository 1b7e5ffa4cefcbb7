"""Cancellation of requests by id and key, and ids that clients choose. No event loop."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.proxy import in_flight as inflight
from orch_sidecar.proxy.in_flight import InFlight, RequestName
from orch_sidecar.proxy.request import Request as Served
from tests.orch_sidecar.broadcasting import Transport, http_of

ID, OTHER = "0123456789abcdef" * 2, "f" * 32
KEY = {"Authorization": "Bearer sk-one"}


class Request(Served):
    """A request that records its cancellations."""

    def __init__(self, **headers: str) -> None:
        self.http = http_of(Transport(), *client(**headers).items())
        self.refusals: list[Refusal] = []

    def cancel(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)


def client(**headers: str) -> CIMultiDict[str]:
    """Headers; `x_api_key` stands for X-Api-Key."""
    return CIMultiDict((name.replace("_", "-"), value) for name, value in headers.items())


def running(request: Request, request_id: str = ID) -> InFlight:
    requests = InFlight()
    requests.begin(request_id, request)
    return requests


def test_request_is_cancelled_by_its_id_and_key() -> None:
    request = Request(**KEY)
    assert running(request).cancel(ID, client(**KEY))
    [refusal] = request.refusals
    assert refusal.reason is Reason.CANCELLED


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer sk-two"},
        {"Authorization": "Bearer "},
        {"Authorization": "bearer sk-one x"},
        {"Authorization": "Basic sk-one"},
        {"x_api_key": "sk-two"},
        {"Authorization": "Bearer sk-two", "x_api_key": "sk-one"},
    ],
)
def test_request_does_not_exist_for_another_key(headers: dict[str, str]) -> None:
    request = Request(**KEY)
    requests = running(request)
    assert not requests.cancel(ID, client(**headers))
    assert not requests.cancel(OTHER, client(**headers))
    assert request.refusals == []
    requests.end(ID)
    assert not requests.cancel(ID, client(**headers))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"Authorization": "Bearer sk"}, {"Authorization": "bearer  sk"}),
        ({"Authorization": "Bearer sk"}, {"x_api_key": "sk"}),
        ({"x_api_key": "sk"}, {"Authorization": "Bearer sk"}),
        ({"Authorization": "Basic dTpw"}, {"Authorization": "Basic dTpw"}),
        ({"x_api_key": "\udcff\udcfe"}, {"x_api_key": "\udcff\udcfe"}),
        ({}, {}),
    ],
)
def test_key_is_the_same_however_it_is_sent(ours: dict[str, str], theirs: dict[str, str]) -> None:
    requests = running(Request(**ours))
    assert requests.cancel(ID, client(**theirs))
    requests.end(ID)
    assert requests.cancel(ID, client(**theirs))


def test_cancelling_a_request_that_ended_recently_succeeds() -> None:
    request = Request(**KEY)
    requests = running(request)
    requests.end(ID)
    assert requests.cancel(ID, client(**KEY))
    assert request.refusals == []


def test_long_key_is_remembered_by_a_digest() -> None:
    long = {"Authorization": "Bearer " + "k" * 4000}
    requests = running(Request(**long))
    requests.end(ID)
    assert len(requests._ended[ID]) == 128
    assert requests.cancel(ID, client(**long))
    assert not requests.cancel(ID, client(Authorization="Bearer " + "k" * 3999))
    assert requests.cancel(ID, client(x_api_key="k" * 4000))


def test_memory_of_ended_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "ENDED_KEPT", 4)
    requests = InFlight()
    ids = [f"{number:032x}" for number in range(50)]
    for request_id in ids:
        requests.begin(request_id, Request(**KEY))
        requests.end(request_id)
        assert len(requests._ended) + len(requests._ended_before) <= 8
    assert all(requests.cancel(request_id, client(**KEY)) for request_id in ids[-4:])
    assert not any(requests.cancel(request_id, client(**KEY)) for request_id in ids[:-8])
    assert len(requests) == 0


def begin_named(requests: InFlight, request: Request, given: str = ID) -> RequestName:
    """Begins a request whose client chose its id."""
    name = requests.name_for(given, request.http.headers)
    assert name is not None
    requests.begin(name, request)
    return name


@pytest.mark.parametrize("given", ["", "x", ID[1:], ID + "0", ID.upper(), ID[1:] + "g", ID + "\n"])
def test_id_that_is_not_32_digits_is_refused_with_the_rule(given: str) -> None:
    requests = InFlight()
    assert requests.name_for(given, client()) is None
    refusal = requests.unusable_name(given)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert refusal.param == "X-Orch-Request-Id"
    assert "32 lowercase hexadecimal digits" in refusal.message


def test_chosen_id_is_refused_to_its_key_while_it_is_in_flight() -> None:
    requests = InFlight()
    name = begin_named(requests, Request(**KEY))
    assert requests.name_for(ID, client(**KEY)) is None
    assert "in flight" in requests.unusable_name(ID).message
    requests.end(name)
    assert requests.name_for(ID, client(**KEY)) == name


def test_chosen_id_reveals_nothing_to_another_key_and_affects_none_of_its_requests() -> None:
    requests, theirs, mine = InFlight(), Request(**KEY), Request(x_api_key="sk-two")
    running_id = "a" * 32
    requests.begin(running_id, theirs)
    name = begin_named(requests, theirs)
    begin_named(requests, mine)
    begin_named(requests, mine, running_id)
    requests.end(name)
    assert requests.cancel(ID, client(x_api_key="sk-two"))
    assert requests.cancel(running_id, client(x_api_key="sk-two"))
    assert theirs.refusals == []
    assert requests.cancel(ID, client(**KEY)), "it has ended, and is still theirs"
    assert requests.cancel(running_id, client(**KEY))
    assert len(theirs.refusals) == 1


def test_registry_and_refusal_do_not_show_the_key() -> None:
    requests = running(Request(**KEY))
    requests.cancel(ID, client(**KEY))
    assert "sk-one" not in repr(requests) + str(inflight.CANCELLED)


def test_client_finds_its_request_and_nobody_elses() -> None:
    request = Request(**KEY)
    requests = running(request)
    assert requests.find(ID, client(**KEY)) == [request]
    assert requests.find(ID, client()) is None
    assert requests.find(OTHER, client(**KEY)) is None
    requests.end(ID)
    assert requests.find(ID, client(**KEY)) == []
    assert requests.find(ID, client()) is None


def test_operator_finds_requests_of_every_client_by_their_whole_ids() -> None:
    requests, mine, theirs = InFlight(), Request(**KEY), Request(x_api_key="sk-two")
    names = [requests.name_for(ID, each.http.headers) for each in (mine, theirs)]
    for name, request in zip(names, (mine, theirs), strict=True):
        assert name is not None
        requests.begin(name, request)
    assert requests.find(ID, None) == [mine, theirs]
    assert requests.find(OTHER, None) is None
    assert requests.find(ID[:1], None) is None
    assert requests.cancel(ID, None)
    assert [len(each.refusals) for each in (mine, theirs)] == [1, 1]
    for name in names:
        assert name is not None
        requests.end(name)
    assert requests.find(ID, None) == []
    assert requests.cancel(ID, None)
    assert not requests.cancel(OTHER, None)
