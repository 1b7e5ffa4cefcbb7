"""Performs a plan: one run from end to end, a search for the largest rate, or a sweep.

Imports `plan`, `results` and `load`. Pure but for `run`, `work`, `evidence` and `series`.
"""
