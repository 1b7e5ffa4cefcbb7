"""Makes reports of results, as pages that anybody can open. Pure.

`requests`, `intervals`, `timeline`, `measures` and `conditions` read a result, `comparison` two;
`figures` draws a run; `run`, `sweep`, `decode` and `compare` make pages, `files` reads results and
makes the page of each. Imports `drawing`, `results`, and the schema of `decode`.
"""
