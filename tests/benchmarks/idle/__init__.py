"""Idle rows beside interactive traffic: what they cost it, and how many are done.

`python -m tests.benchmarks.idle` runs it in virtual time, `virtual.py` says how. With
`--engine` it runs on a real one, `engine.py` says how.
"""
