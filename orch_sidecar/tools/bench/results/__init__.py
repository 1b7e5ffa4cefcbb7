"""Decides what a run amounts to: figures, verdict, result file, and a row of facts. Pure.

Imports `load` (its calls and scenarios) and `tools.facts`.
"""
