"""Leases and errors without their secrets."""

from __future__ import annotations

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from orch_sidecar.api.redaction import error_text, short_lease

LEASE = f"{'1' * 16}.{'a' * 32}.1"


def test_secret_part_of_a_lease_is_not_shown() -> None:
    assert short_lease(LEASE) == f"{'1' * 16}.{'a' * 7}"


def test_error_is_shown_without_the_request_that_it_belongs_to() -> None:
    headers = CIMultiDictProxy(CIMultiDict({"Authorization": "Bearer secret"}))
    url = URL(f"http://engine/v1/capabilities/leases/{LEASE}")
    request = aiohttp.RequestInfo(url, "DELETE", headers, url)
    error = aiohttp.ContentTypeError(request, (), status=502, message="no JSON")
    assert error_text(error) == "ContentTypeError(status=502, message='no JSON')"


def test_other_errors_are_shown_as_they_are() -> None:
    assert error_text(KeyError("ended")) == "KeyError('ended')"
