"""Performs a plan: one run from end to end, a search for the largest rate, or a sweep.

Imports `results` and `load`. None of it is pure.
"""
