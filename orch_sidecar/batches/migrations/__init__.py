"""The migrations of the database, which Alembic runs when a sidecar starts."""
