"""Answers `/v1/files` and `/v1/batches`, as OpenAI has them.

An upload goes to the store as it arrives, one piece at a time: it takes nothing of the budget of
bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, cast

import msgspec
from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http import HttpProcessingError

from orch_sidecar.api.endpoints import ResourcePath
from orch_sidecar.api.headers import CONTENT_TYPE
from orch_sidecar.api.refusal import Reason, Refusal, well_formed
from orch_sidecar.batches import catalog
from orch_sidecar.batches.catalog import BatchOrder, Page, Quotas, now_s, over_quota
from orch_sidecar.batches.jobs import CHUNK_BYTES, Jobs
from orch_sidecar.batches.rows import serves
from orch_sidecar.batches.storage import Database, FileStore, Opened, StoreFault
from orch_sidecar.batches.tables import Batch, StoredFile
from orch_sidecar.wire.client_connection import ResourceRequest
from orch_sidecar.wire.request_body import send_continue

logger = logging.getLogger("orch.batches")

_MAX_BODY_BYTES: Final = 65_536  # of a batch: ids and metadata
_MAX_FIELD_BYTES: Final = 1024
_MAX_NAME_CHARACTERS: Final = 255
# Besides the content of parts: aiohttp reads all that have come in one turn of the event loop.
_MAX_FORM_LINES: Final = 200
_MAX_LABELS: Final = 16
_FIELDS: Final = frozenset({"purpose", "expires_after[seconds]"})
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_WINDOW_S: Final = 30 * 86_400
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LIFETIME_S: Final = range(3600, 30 * 86_400 + 1)  # as OpenAI has it
_PAGE_FILES: Final = 10_000
_PAGE_BATCHES: Final = 100

Answer = web.StreamResponse | Refusal
_json: Final = web.json_response


class _Lifetime(msgspec.Struct):
    seconds: int
    anchor: Literal["created_at"] = "created_at"


class _Order(msgspec.Struct):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: _Lifetime | None = None


class _LineLimit:
    """Limits the lines of a form; the content of its parts does not count."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content
        self._left = _MAX_FORM_LINES

    async def readline(self, **options: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ValueError("it has too many lines or parts")
        return await self._content.readline(**options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


class _NoRoom(Exception):
    """A file has more bytes than its key may store."""


def _invalid(text: str, param: str | None = None) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, text, param=param)


class Endpoints:
    """The endpoints of files and batches."""

    def __init__(
        self,
        database: Database,
        store: FileStore,
        jobs: Jobs,
        quotas: Quotas,
        body_timeout_s: float,
        look: Callable[[], None],
    ) -> None:
        """`body_timeout_s`: the longest wait for a piece of an upload. `look`: to be called where
        a batch is new, or cancelled."""
        self._database = database
        self._store = store
        self._jobs = jobs
        self._quotas = quotas
        self._timeout_s = body_timeout_s
        self._look = look
        self._arriving = Counter[str]()  # of owners: the most bytes of uploads under way
        self._of: Mapping[tuple[ResourcePath, str], Callable[..., Awaitable[Answer]]] = {
            (ResourcePath.FILES, "POST"): self._upload,
            (ResourcePath.FILES, "GET"): partial(self._list, StoredFile, _PAGE_FILES, _PAGE_FILES),
            (ResourcePath.FILE, "GET"): self._file,
            (ResourcePath.FILE, "DELETE"): self._delete,
            (ResourcePath.BATCHES, "POST"): self._create,
            (ResourcePath.BATCHES, "GET"): partial(self._list, Batch, 20, _PAGE_BATCHES),
            (ResourcePath.BATCH, "GET"): self._batch,
            (ResourcePath.BATCH_CANCEL, "POST"): self._cancel,
        }

    async def answer(self, request: ResourceRequest) -> Answer:
        """Answers a request of a client. Raises SQLAlchemyError, StoreFault or FileNotFoundError
        where the storage fails."""
        if request.what is ResourcePath.FILE_CONTENT:
            return await self._content(request)
        method = request.http.method.replace("HEAD", "GET")
        return await self._of[request.what, method](request.http, request.owner, request.name)

    # Files

    async def _upload(self, http: web.BaseRequest, owner: str, _: str) -> Answer:
        if not http.headers.get(CONTENT_TYPE, "").lower().startswith("multipart/form-data"):
            return _invalid("the upload must be multipart/form-data, with purpose and file")
        length, most = http.content_length or 0, self._quotas.file_bytes
        if length > most + _MAX_FIELD_BYTES * 8:
            return self._too_large()
        used = await self._database.run(partial(catalog.used_bytes, owner=owner))
        name, reserved = f"file-{catalog.new_name()}", min(most, length or most)
        added: StoredFile | Refusal | None = None
        used += self._arriving[owner]
        self._arriving[owner] += reserved
        try:
            send_continue(http)
            added = await self._receive(http, owner, name, used)
        finally:
            self._arriving[owner] -= reserved
            if not isinstance(added, StoredFile):  # a form may break off behind its file
                await asyncio.to_thread(self._store.delete, name)
        return added if isinstance(added, Refusal) else _json(catalog.file_document(added))

    async def _receive(
        self, http: web.BaseRequest, owner: str, name: str, used: int
    ) -> StoredFile | Refusal:
        """Stores the file of a form, and makes it known; `used`: the bytes of its owner's files."""
        most = self._quotas.total_bytes
        try:
            fields = await self._read_form(http, name, min(self._quotas.file_bytes, most - used))
        except TimeoutError:
            text = f"the upload has stopped: no piece of it came for {self._timeout_s:g} s"
            return Refusal(Reason.BODY_TIMEOUT, text)
        except (ValueError, RuntimeError, AssertionError, HttpProcessingError) as error:
            return _invalid(f"the upload is no valid form: {error}"[:300])
        if isinstance(fields, int):
            return over_quota(used, fields, most) or self._too_large()
        file = self._described(fields, name, owner)
        if isinstance(file, Refusal):
            return file
        return await self._database.run(partial(catalog.add_file, file=file, most_bytes=most))

    async def _read_form(self, http: web.BaseRequest, name: str, room: int) -> dict[str, str] | int:
        """Stores the file of a form, and returns the other fields, and `filename` and `bytes`.
        An int: so many bytes had come, which are more than there is room for."""
        fields: dict[str, str] = {}
        reader = MultipartReader(http.headers, cast(StreamReader, _LineLimit(http.content)))
        while True:
            async with asyncio.timeout(self._timeout_s):
                part = await reader.next()
            if part is None:
                return fields
            if not isinstance(part, BodyPartReader):
                raise ValueError("a form within the form")
            if part.name != "file":
                value = await self._piece(part, _MAX_FIELD_BYTES)
                if part.name in _FIELDS:
                    fields[part.name] = value.decode("utf-8", "replace")
                continue
            if "bytes" in fields:
                raise ValueError("it has two files")
            size = await self._store_part(part, name, room)
            if size > room:
                return size
            fields |= {"filename": part.filename or "file", "bytes": str(size)}

    async def _store_part(self, part: BodyPartReader, name: str, room: int) -> int:
        """Stores a part of a form. Returns its bytes; those that have come if they exceed `room`:
        then nothing is stored."""
        size = 0
        try:
            async with self._writing(name) as write:
                while chunk := await self._piece(part, CHUNK_BYTES):
                    size += len(chunk)
                    if size > room:
                        raise _NoRoom
                    await asyncio.to_thread(write, chunk)
        except _NoRoom:
            return size
        return size

    @contextlib.asynccontextmanager
    async def _writing(self, name: str) -> AsyncIterator[Callable[[bytes], object]]:
        """Does what `FileStore.writer` does, in threads."""
        async with contextlib.AsyncExitStack() as stack:
            writer = self._store.writer(name)
            write = await asyncio.to_thread(writer.__enter__)
            stack.push_async_exit(lambda *why: asyncio.to_thread(writer.__exit__, *why))
            yield write

    async def _piece(self, part: BodyPartReader, most_bytes: int) -> bytes:
        async with asyncio.timeout(self._timeout_s):
            return bytes(await part.read_chunk(most_bytes))

    def _described(self, fields: dict[str, str], name: str, owner: str) -> StoredFile | Refusal:
        if "bytes" not in fields:
            return _invalid("the form has no file", "file")
        if fields["bytes"] == "0":
            return _invalid("the file is empty", "file")
        purpose = fields.get("purpose")
        if purpose != catalog.PURPOSE:
            text = f"the purpose is {purpose!r:.80}, it must be {catalog.PURPOSE!r}"
            return _invalid(text, "purpose")
        lifetime = None
        given = fields.get("expires_after[seconds]")
        if given is not None:
            if not _NUMBER.fullmatch(given) or int(given) not in _LIFETIME_S:
                return _bad_lifetime(given, "expires_after")
            lifetime = int(given)
        created = now_s()
        return StoredFile(
            id=name,
            owner=owner,
            purpose=purpose,
            filename=well_formed(fields["filename"]).replace("\0", "")[:_MAX_NAME_CHARACTERS],
            bytes=int(fields["bytes"]),
            created_at=created,
            expires_at=None if lifetime is None else created + lifetime,
        )

    def _too_large(self) -> Refusal:
        most = self._quotas.file_bytes
        return Refusal(Reason.BODY_TOO_LARGE, f"the file has more than {most} bytes, the limit")

    async def _file(self, _: web.BaseRequest, owner: str, name: str) -> Answer:
        file = await self._database.run(partial(catalog.find_file, owner=owner, name=name))
        return file if isinstance(file, Refusal) else _json(catalog.file_document(file))

    async def _delete(self, _: web.BaseRequest, owner: str, name: str) -> Answer:
        deleted = await self._jobs.delete(owner, name)
        gone = {"id": name, "object": "file", "deleted": True}
        return deleted if isinstance(deleted, Refusal) else _json(gone)

    async def _content(self, request: ResourceRequest) -> Answer:
        http, _, name, owner, headers = request
        file = await self._database.run(partial(catalog.find_file, owner=owner, name=name))
        if isinstance(file, Refusal):
            return file
        opened = await asyncio.to_thread(self._store.open, name)
        response = web.StreamResponse(headers=headers)
        response.content_type = "application/octet-stream"
        response.content_length = file.bytes
        try:
            await self._send(http, response, opened)
        except StoreFault:
            if http.transport is not None:
                http.transport.abort()  # the head is sent: no refusal can follow it
            raise
        return response

    async def _send(
        self, http: web.BaseRequest, response: web.StreamResponse, opened: Opened
    ) -> None:
        try:
            await response.prepare(http)
            while http.method != "HEAD" and (
                chunk := await asyncio.to_thread(opened.read, CHUNK_BYTES)
            ):
                await response.write(chunk)
            await response.write_eof()
        finally:
            await asyncio.to_thread(opened.close)

    # Batches

    async def _create(self, http: web.BaseRequest, owner: str, _: str) -> Answer:
        if (http.content_length or 0) > _MAX_BODY_BYTES:
            text = f"the body has more than {_MAX_BODY_BYTES} bytes, the limit"
            return Refusal(Reason.BODY_TOO_LARGE, text)
        try:
            order = _parse_order(await self._short_body(http))
        except TimeoutError:
            text = f"the body did not arrive within {self._timeout_s:g} s"
            return Refusal(Reason.BODY_TIMEOUT, text)
        if isinstance(order, Refusal):
            return order
        most = self._quotas.total_bytes
        creating = partial(catalog.create_batch, owner=owner, order=order, most_bytes=most)
        return self._answer_with(await self._database.run(creating))

    async def _batch(self, _: web.BaseRequest, owner: str, name: str) -> Answer:
        return self._answer_with(
            await self._database.run(partial(catalog.find_batch, owner=owner, name=name)),
            changed=False,
        )

    async def _cancel(self, _: web.BaseRequest, owner: str, name: str) -> Answer:
        cancelling = partial(catalog.cancel_batch, owner=owner, name=name)
        return self._answer_with(await self._database.run(cancelling))

    def _answer_with(self, batch: Batch | Refusal, *, changed: bool = True) -> Answer:
        if isinstance(batch, Refusal):
            return batch
        if changed:
            self._look()
        return _json(catalog.batch_document(batch))

    async def _short_body(self, http: web.BaseRequest) -> bytes:
        body = b""
        async with asyncio.timeout(self._timeout_s):
            while len(body) <= _MAX_BODY_BYTES and (piece := await http.content.readany()):
                body += piece
        return body

    async def _list(
        self,
        kind: type[StoredFile] | type[Batch],
        usual: int,
        most: int,
        http: web.BaseRequest,
        owner: str,
        _: str,
    ) -> Answer:
        # No id and no purpose has it, and PostgreSQL takes none.
        query = {name: value.replace("\0", "") for name, value in http.query.items()}
        limit = query.get("limit", str(usual))
        if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= most:
            return _invalid(f"limit is {limit[:20]!r}, it must be from 1 to {most}", "limit")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            return _invalid(f"order is {order[:20]!r}, it must be asc or desc", "order")
        ascending = order == "asc" and kind is StoredFile
        page = Page(int(limit), query.get("after") or None, ascending, query.get("purpose"))
        listing = partial(catalog.list_items, kind=kind, owner=owner, page=page)
        return _json(await self._database.run(listing))


def _parse_order(body: bytes) -> BatchOrder | Refusal:
    """Reads what a client wants of a batch."""
    try:
        wanted = msgspec.json.decode(body, type=_Order)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _invalid(f"the body: {error}"[:300])
    if not serves(wanted.endpoint):
        return _invalid(f"batches do not serve the endpoint {wanted.endpoint[:80]!r}", "endpoint")
    window = _WINDOW.fullmatch(wanted.completion_window)
    window_s = 0 if window is None else int(window[1]) * _SECONDS[window[2]]
    if not 0 < window_s <= _MAX_WINDOW_S:
        rule = "it must be a number with s, m, h or d, such as 24h, and at most 30d"
        text = f"completion_window is {wanted.completion_window[:20]!r}: {rule}"
        return _invalid(text, "completion_window")
    labels = wanted.metadata or {}
    if len(labels) > _MAX_LABELS or any(
        len(name) > 64 or len(value) > 512 for name, value in labels.items()
    ):
        rule = "at most 16 pairs of names of 64 and values of 512 characters"
        return _invalid(f"metadata must be {rule}", "metadata")
    lifetime = wanted.output_expires_after
    if lifetime is not None and lifetime.seconds not in _LIFETIME_S:
        return _bad_lifetime(lifetime.seconds, "output_expires_after")
    return BatchOrder(
        wanted.endpoint,
        wanted.input_file_id.replace("\0", ""),
        wanted.completion_window,
        window_s,
        labels,
        None if lifetime is None else lifetime.seconds,
    )


def _bad_lifetime(given: object, param: str) -> Refusal:
    rule = f"from {_LIFETIME_S.start} to {_LIFETIME_S.stop - 1} seconds"
    return _invalid(f"{param} is {str(given)[:20]!r}, it must be {rule}", param)
