"""Decides what a run amounts to: figures, verdict, result file, text, and a row of facts.

Pure but for `fact`, which writes a file. Imports `load` (its calls and scenarios) and
`tools.facts`.
"""
