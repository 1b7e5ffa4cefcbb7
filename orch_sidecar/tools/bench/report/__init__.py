"""Makes reports of results, as pages that anybody can open. Pure.

`measures` reads a result; `run`, `sweep` and `decode` make pages.
Imports `drawing`, `results`, and the result of `decode`.
"""
