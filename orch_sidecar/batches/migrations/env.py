"""What Alembic runs: the migrations, on the connection that the sidecar has."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
