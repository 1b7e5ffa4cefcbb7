"""Creates the tables of files, batches, rows and workers."""

import sqlalchemy as sa
from alembic import op

revision = "first_tables"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables."""
    op.create_table(
        "files",
        sa.Column("id", sa.String(80), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False, index=True),
        sa.Column("purpose", sa.String(20), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(80), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False, index=True),
        sa.Column("endpoint", sa.String(80), nullable=False),
        sa.Column("input_file_id", sa.String(80), nullable=False),
        sa.Column("completion_window", sa.String(20), nullable=False),
        sa.Column("status", sa.String(20), nullable=False, index=True),
        sa.Column("output_file_id", sa.String(80)),
        sa.Column("error_file_id", sa.String(80)),
        sa.Column("errors", sa.JSON, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("completed", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("output_lifetime_s", sa.BigInteger),
        *(
            sa.Column(f"{moment}_at", sa.BigInteger, nullable=moment not in ("created", "expires"))
            for moment in (
                "created", "expires", "in_progress", "finalizing", "completed", "failed",
                "expired", "cancelling", "cancelled",
            )
        ),
        sa.Column("taken_by", sa.String(32)),
    )  # fmt: skip
    op.create_table(
        "rows",
        sa.Column("batch_id", sa.String(80), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("custom_id", sa.String(512), nullable=False),
        sa.Column("url", sa.String(80), nullable=False),
        sa.Column("begin", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("lost", sa.BigInteger, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("taken_by", sa.String(32)),
    )
    for name, where in (("free", "state = 0 AND taken_by IS NULL"), ("open", "state = 0")):
        op.create_index(
            f"rows_{name}",
            "rows",
            ["batch_id", "lost", "number"],
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("beat", sa.BigInteger, nullable=False),
    )
