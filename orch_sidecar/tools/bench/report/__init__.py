"""Makes reports of results, as pages that anybody can open. Pure.

`intervals`, `timeline`, `measures` and `conditions` read a result;
`figures` draws a run; `run`, `sweep`, `decode` and `compare` make pages.
Imports `drawing`, `results`, and the result of `decode`.
"""
