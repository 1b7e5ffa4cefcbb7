"""Runs of other tools: their files, and whether the label that they claim was earned.

Pure. May import `facts.labels` and `facts.tables`.
"""
