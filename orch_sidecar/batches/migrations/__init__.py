"""The migrations of the database, which Alembic runs when a sidecar starts.

They only add, with defaults: while an update rolls, sidecars of before start and run on new tables.
"""
