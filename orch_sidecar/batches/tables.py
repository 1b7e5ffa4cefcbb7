"""The tables: files, batches, their rows, and the sidecars that work on them.

`owner`: the digest of the API key in hexadecimal, empty without keys. `taken_by`: the worker that
has a row, or that checks or ends a batch. Times are Unix seconds, as in OpenAI's documents.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, LargeBinary, SmallInteger, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from orch_sidecar.batches.rows import MAX_MODEL_CHARACTERS


class Status(StrEnum):
    """The status of a batch, in OpenAI's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


# Those that do not end by themselves.
OPEN = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)


class RowState(IntEnum):
    """What became of a row."""

    OPEN = 0
    COMPLETED = 1
    FAILED = 2


class Base(DeclarativeBase):
    """The tables of this package."""

    type_annotation_map = {int: BigInteger, dict[str, str]: JSON, list[dict[str, Any]]: JSON}  # noqa: RUF012 (SQLAlchemy's own form)


class StoredFile(Base):
    """A file, once all of it is stored. Its content has its id as its name."""

    __tablename__ = "files"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    purpose: Mapped[str] = mapped_column(String(20))
    filename: Mapped[str] = mapped_column(String(255))
    bytes: Mapped[int]
    created_at: Mapped[int]
    expires_at: Mapped[int | None]


class Batch(Base):
    """A batch. `labels`: what OpenAI calls its metadata. `errors`: why it failed, before any row
    ran. `models`: of its rows. `output_lifetime_s`: of its output files, None: until they are
    deleted."""

    __tablename__ = "batches"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    endpoint: Mapped[str] = mapped_column(String(80))
    input_file_id: Mapped[str] = mapped_column(String(80))
    completion_window: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(20), index=True)
    output_file_id: Mapped[str | None] = mapped_column(String(80))
    error_file_id: Mapped[str | None] = mapped_column(String(80))
    errors: Mapped[list[dict[str, Any]]]
    labels: Mapped[dict[str, str]]
    models: Mapped[list[str]] = mapped_column(JSON, server_default='[""]')
    total: Mapped[int] = mapped_column(default=0)
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    output_lifetime_s: Mapped[int | None]
    created_at: Mapped[int]
    expires_at: Mapped[int]
    in_progress_at: Mapped[int | None]
    finalizing_at: Mapped[int | None]
    completed_at: Mapped[int | None]
    failed_at: Mapped[int | None]
    expired_at: Mapped[int | None]
    cancelling_at: Mapped[int | None]
    cancelled_at: Mapped[int | None]
    taken_by: Mapped[str | None] = mapped_column(String(32))


class Row(Base):
    """A row of a batch: where its request is in the input file (`begin`, `length` in bytes), and
    its answer, a line of an output file. `model`: one of its batch. `lost`: how often an engine got
    it and was lost."""

    __tablename__ = "rows"

    batch_id: Mapped[str] = mapped_column(String(80), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    custom_id: Mapped[str] = mapped_column(String(512))
    url: Mapped[str] = mapped_column(String(80))
    model: Mapped[str] = mapped_column(String(MAX_MODEL_CHARACTERS), server_default="")
    begin: Mapped[int]
    length: Mapped[int]
    lost: Mapped[int] = mapped_column(default=0)
    state: Mapped[int] = mapped_column(SmallInteger, default=RowState.OPEN)
    answer: Mapped[bytes | None] = mapped_column(LargeBinary)
    taken_by: Mapped[str | None] = mapped_column(String(32))


class Worker(Base):
    """A sidecar that works on batches. `beat` changes while it lives."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    beat: Mapped[int]
