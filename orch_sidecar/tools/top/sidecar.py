"""The connection to a sidecar: its stream of events, and orders of an operator."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from orch_sidecar.tools.bench.load.call import shown
from orch_sidecar.tools.bench.load.endpoint import KEY_VARIABLE, Endpoint, EndpointError
from orch_sidecar.wire.event_stream import EventStream

_LIVE: Final = "/v1/live"
_CONNECT_S: Final = 5.0
# A sidecar sends a comment every two seconds: silence for longer is a lost connection.
_SILENT_S: Final = 10.0
# A document has at most some hundred rows of each pool.
_MOST_BYTES: Final = 16 * 2**20

_NO_KEY: Final = (
    f"an API key of the sidecar is read from ${KEY_VARIABLE}; its operators' listener (1000 above "
    "its port, for instance http://127.0.0.1:9080) needs none"
)


Events = AsyncIterator[tuple[str, Any]]


class NoSidecar(Exception):
    """What is at the URL is no sidecar, or refuses this client: trying again is of no use.

    The message gives the URL, the reason and the remedy.
    """


class Away(Exception):
    """The sidecar does not answer now; the message gives the reason."""


@asynccontextmanager
async def sidecar_at(url: str) -> AsyncIterator[Sidecar]:
    """Yields the sidecar at a URL of its clients' or its operators' listener.

    Raises NoSidecar for a URL that is none, or a key that no header can hold.
    """
    try:
        endpoint = Endpoint.of(url)
    except EndpointError as error:
        raise NoSidecar(str(error)) from error
    timeout = aiohttp.ClientTimeout(connect=_CONNECT_S, sock_read=_SILENT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=endpoint.fields) as session:
        yield Sidecar(endpoint.url, session)


class Sidecar:
    """One sidecar."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    async def events(self) -> Events:
        """Yields the events of the live document, with their names, until the stream ends.

        Raises Away when it ends or cannot be had, and NoSidecar.
        """
        try:
            async with self._session.get(self.url + _LIVE, allow_redirects=False) as response:
                await self._check(response)
                stream = EventStream(_MOST_BYTES)
                async for piece in response.content.iter_any():
                    for name, data in stream.feed(piece):
                        yield name, json.loads(data)
        except TimeoutError as error:
            raise Away("it does not answer") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise NoSidecar(f"{self.url}: its certificate is not valid: {error}") from error
        except (aiohttp.ClientResponseError, ValueError) as error:
            text = f"{self.url}: what answers is no sidecar: {shown(str(error))}"
            raise NoSidecar(text) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Away(_cause(error)) from error
        raise Away("it has ended the stream")

    async def order(self, method: str, *path: str) -> str:
        """Sends an order; returns why it was not obeyed, empty if it was."""
        url = self.url + "".join(f"/{quote(part, safe='')}" for part in path)
        try:
            timeout = aiohttp.ClientTimeout(total=_CONNECT_S)
            async with self._session.request(method, url, timeout=timeout) as response:
                return "" if response.status < 300 else await _message(response)
        except TimeoutError:
            return "the sidecar does not answer"
        except (aiohttp.ClientError, OSError) as error:
            return _cause(error)

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raises NoSidecar and Away for a response that is no live stream."""
        status = response.status
        if status == 200 and response.content_type == "text/event-stream":
            return
        text = await _message(response)
        if status in (401, 403):
            raise NoSidecar(f"{self.url} refuses: {text}; {_NO_KEY}")
        if status in (429, 502, 503, 504):
            raise Away(text)
        raise NoSidecar(
            f"{self.url} has no live document ({status} {shown(response.reason or '')}): it must "
            "be the URL of an orch sidecar, without a path, for instance http://127.0.0.1:9080"
        )


def _cause(error: Exception) -> str:
    """Returns the reason of a failed connection in a few words."""
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:  # below 0: of the name service, with a text of its own
        return os.strerror(number).lower()
    return shown(str(error)) or "the connection was lost"


async def _message(response: aiohttp.ClientResponse) -> str:
    """Returns the message of an error document, or the status."""
    try:
        document = json.loads(await response.text())
        text = document["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = f"status {response.status}"
    return shown(str(text))
