"""Decides which upstream serves a request, and keeps the state and the admission of each.

Pure: `affinity`, `membership`, `parent_leases`, `routing`, `snapshot`. May import `admission`,
`api`, `config`, `engine_state` and `wire`.
"""
