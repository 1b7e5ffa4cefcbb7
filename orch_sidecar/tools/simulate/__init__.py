"""`orch simulate`: compares admission policies in virtual time, on a model of an engine.

The admission is the one that serves: it takes the time as an argument and so runs in virtual time
as in real time. The engine is a model, as accurate as the step time it is given. A run depends on
its arguments alone: the same seed gives the same figures.

Pure. Imports `admission`, `api.refusal`, `tools.traces`, the figures of `tools.facts`, and
`tools.drawing` for its tables.
"""
