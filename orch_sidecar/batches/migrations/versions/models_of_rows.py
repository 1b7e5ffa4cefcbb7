"""Adds the models of rows, by which they are taken.

Rows that exist have none: as one model, they are taken in their order.
"""

import sqlalchemy as sa
from alembic import op

revision = "models_of_rows"
down_revision = "first_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns, and the model to the index of the rows that nobody has."""
    op.add_column("rows", sa.Column("model", sa.String(256), nullable=False, server_default=""))
    op.add_column("batches", sa.Column("models", sa.JSON, nullable=False, server_default='[""]'))
    op.drop_index("rows_free", "rows")
    free = sa.text("state = 0 AND taken_by IS NULL")
    op.create_index(
        "rows_free",
        "rows",
        ["batch_id", "model", "lost", "number"],
        sqlite_where=free,
        postgresql_where=free,
    )
