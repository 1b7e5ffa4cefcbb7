"""Decides which upstream serves a request, and keeps the state and the admission of each.

Pure: `parent_leases`, `status`; and `placement`, which chooses the pool. May import
`admission`, `api`, `config`, `engine_state` and `wire`.
"""
