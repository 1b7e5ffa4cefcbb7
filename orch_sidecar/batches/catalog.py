"""Keeps files and batches of one owner in the database, for the endpoints.

Functions of a transaction's session. Files and batches of other owners are not found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import case, delete, func, select
from sqlalchemy.orm import Session

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.batches.storage import lock
from orch_sidecar.batches.tables import OPEN, Batch, Status, StoredFile

PURPOSE: Final = "batch"
OUTPUT_PURPOSE: Final = "batch_output"
# Of one key: all that have not ended are looked at every second, and shown.
MAX_OPEN_BATCHES: Final = 1000
# What a file counts for, however small: a block of a file system, and its record.
MIN_FILE_BYTES: Final = 4096
_MOMENTS: Final = (
    "created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at",
    "expired_at", "cancelling_at", "cancelled_at",
)  # fmt: skip


class Quotas(NamedTuple):
    """What a key may have: `file_bytes` in one upload, `total_bytes` of files, `rows` of batches
    that have not ended. `line_bytes`: the longest line of an input file."""

    file_bytes: int
    total_bytes: int
    rows: int
    line_bytes: int


class Page(NamedTuple):
    """Which part of a list a client asks for. `after`: the id of the last one that it has."""

    limit: int
    after: str | None = None
    ascending: bool = False
    purpose: str | None = None


class BatchOrder(NamedTuple):
    """A batch that a client wants."""

    endpoint: str
    input_file_id: str
    completion_window: str
    window_s: int
    labels: dict[str, str]
    output_lifetime_s: int | None


def now_s() -> int:
    """Returns Unix seconds, as they are stored."""
    return int(time.time())


def new_name() -> str:
    """Returns an id, without its prefix: later ones sort behind earlier ones."""
    return f"{time.time_ns():016x}{os.urandom(8).hex()}"


def not_found(what: str, name: str) -> Refusal:
    return Refusal(Reason.NOT_FOUND, f"there is no {what} {name[:80]!r} of this API key")


def used_bytes(session: Session, owner: str) -> int:
    """Returns the bytes that all files of an owner count for."""
    counted = case((StoredFile.bytes < MIN_FILE_BYTES, MIN_FILE_BYTES), else_=StoredFile.bytes)
    total = select(func.coalesce(func.sum(counted), 0)).where(StoredFile.owner == owner)
    return int(session.scalar(total) or 0)


def used_rows(session: Session, owner: str) -> int:
    """Returns the rows of an owner's batches that have not ended."""
    total = select(func.coalesce(func.sum(Batch.total), 0))
    return int(session.scalar(total.where(Batch.owner == owner, Batch.status.in_(OPEN))) or 0)


def over_quota(used: int, more: int, most: int) -> Refusal | None:
    """Returns why a file does not fit the quota of its key; None: it does."""
    more = max(more, MIN_FILE_BYTES)
    if used + more <= most:
        return None
    text = (
        f"the files of this API key have {used} of {most} bytes, and this one has {more} or more "
        f"(each counts for {MIN_FILE_BYTES} at least): delete files that are not needed"
    )
    return Refusal(Reason.QUOTA_EXCEEDED, text)


def add_file(session: Session, file: StoredFile, most_bytes: int) -> StoredFile | Refusal:
    """Makes a stored file known, if the quota of its owner still allows it."""
    lock(session.connection(), file.owner)
    over = over_quota(used_bytes(session, file.owner), file.bytes, most_bytes)
    if over is None:
        session.add(file)
    return over or file


def find_file(session: Session, owner: str, name: str) -> StoredFile | Refusal:
    file = session.get(StoredFile, name)
    return not_found("file", name) if file is None or file.owner != owner else file


def find_batch(session: Session, owner: str, name: str) -> Batch | Refusal:
    batch = session.get(Batch, name)
    return not_found("batch", name) if batch is None or batch.owner != owner else batch


def delete_file(session: Session, owner: str, name: str) -> StoredFile | Refusal:
    """Forgets a file, unless a batch still reads it."""
    file = find_file(session, owner, name)
    if isinstance(file, Refusal):
        return file
    reading = select(Batch.id).where(Batch.input_file_id == name, Batch.status.in_(OPEN))
    if (batch := session.scalar(reading.limit(1))) is not None:
        text = f"the file {name} is the input of the batch {batch}: cancel that, or wait for it"
        return Refusal(Reason.INVALID_REQUEST, text)
    session.delete(file)
    return file


def list_items(
    session: Session, kind: type[StoredFile] | type[Batch], owner: str, page: Page
) -> dict[str, Any]:
    """Returns a page of a list as OpenAI's clients read it. By age: the ids are in that order."""
    query = select(kind).where(kind.owner == owner)
    document: Callable[[Any], dict[str, Any]] = (
        file_document if kind is StoredFile else batch_document
    )
    if page.purpose is not None and kind is StoredFile:
        query = query.where(StoredFile.purpose == page.purpose)
    if page.after is not None:
        query = query.where(kind.id > page.after if page.ascending else kind.id < page.after)
    query = query.order_by(kind.id if page.ascending else kind.id.desc()).limit(page.limit + 1)
    found = session.scalars(query).all()
    data = [document(each) for each in found[: page.limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > page.limit,
    }


def create_batch(
    session: Session, owner: str, order: BatchOrder, most_bytes: int
) -> Batch | Refusal:
    """Adds a batch, to be checked and run by any worker, if the quota of its owner is not used up:
    what rows answer is stored in any case."""
    file = find_file(session, owner, order.input_file_id)
    if isinstance(file, Refusal):
        return file
    if file.purpose != PURPOSE:
        text = f"the file {file.id} has the purpose {file.purpose!r}, it must be {PURPOSE!r}"
        return Refusal(Reason.INVALID_REQUEST, text, param="input_file_id")
    if (used := used_bytes(session, owner)) > most_bytes:
        text = (
            f"the files of this API key have {used} bytes, and {most_bytes} are the most: delete "
            "files that are not needed"
        )
        return Refusal(Reason.QUOTA_EXCEEDED, text)
    opened = select(func.count()).where(Batch.owner == owner, Batch.status.in_(OPEN))
    if (session.scalar(opened) or 0) >= MAX_OPEN_BATCHES:
        text = f"this API key has {MAX_OPEN_BATCHES} batches that have not ended, the most"
        return Refusal(Reason.QUOTA_EXCEEDED, text)
    created = now_s()
    batch = Batch(
        id=f"batch_{new_name()}",
        owner=owner,
        endpoint=order.endpoint,
        input_file_id=order.input_file_id,
        completion_window=order.completion_window,
        status=Status.VALIDATING,
        errors=[],
        labels=order.labels,
        models=[],
        total=0,
        completed=0,
        failed=0,
        output_lifetime_s=order.output_lifetime_s,
        created_at=created,
        expires_at=created + order.window_s,
    )
    session.add(batch)
    return batch


def ended_batches(session: Session, before: int) -> list[str]:
    """Returns the batches that had ended by then."""
    ended_at = func.coalesce(
        Batch.completed_at, Batch.failed_at, Batch.cancelled_at, Batch.expired_at
    )
    query = select(Batch.id).where(Batch.status.not_in(OPEN), ended_at <= before)
    return list(session.scalars(query))


def delete_batch(session: Session, name: str) -> list[str]:
    """Forgets a batch that has ended, and its files. Returns those. Its input stays while another
    batch has it."""
    batch = session.get(Batch, name, with_for_update=True)
    if batch is None:  # another sidecar was first
        return []
    names = [batch.output_file_id, batch.error_file_id]
    others = select(Batch.id).where(Batch.input_file_id == batch.input_file_id, Batch.id != name)
    if session.scalar(others.limit(1)) is None:
        names.append(batch.input_file_id)
    session.delete(batch)
    deleted = [each for each in names if each is not None]
    session.execute(delete(StoredFile).where(StoredFile.id.in_(deleted)))
    return deleted


def unknown_files(session: Session, names: Sequence[str]) -> list[str]:
    """Returns those of which there is no record."""
    known = set(session.scalars(select(StoredFile.id).where(StoredFile.id.in_(names))))
    return [each for each in names if each not in known]


def cancel_batch(session: Session, owner: str, name: str) -> Batch | Refusal:
    """Has the workers end a batch. One that has ended cannot be cancelled."""
    session.get(Batch, name, with_for_update=True)
    batch = find_batch(session, owner, name)
    if isinstance(batch, Refusal) or batch.status == Status.CANCELLING:
        return batch
    if batch.status not in (Status.VALIDATING, Status.IN_PROGRESS):
        text = f"the batch {name} cannot be cancelled: its status is {batch.status}"
        return Refusal(Reason.INVALID_REQUEST, text)
    batch.status, batch.cancelling_at = Status.CANCELLING, now_s()
    return batch


def file_document(file: StoredFile) -> dict[str, Any]:
    """Returns a file as OpenAI's clients read it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def batch_document(batch: Batch) -> dict[str, Any]:
    """Returns a batch as OpenAI's clients read it."""
    errors = {"object": "list", "data": batch.errors} if batch.errors else None
    counts = {"total": batch.total, "completed": batch.completed, "failed": batch.failed}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.models[0] or None if len(batch.models) == 1 else None,
        "errors": errors,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        **{moment: getattr(batch, moment) for moment in _MOMENTS},
        "request_counts": counts,
        "metadata": batch.labels or None,
    }
