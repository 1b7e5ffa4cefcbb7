"""Makes pages of results: `measures` reads a result; `run`, `sweep` and `decode` write. Pure.

Imports `drawing`, `results`, and the result of `decode`.
"""
