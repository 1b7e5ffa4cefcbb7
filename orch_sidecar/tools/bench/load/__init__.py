"""Sends the requests of a run and records when each was due, sent, answered and ended.

Imports nothing else of `tools.bench`. Pure but for `capabilities`, `driver` and `response`.
"""
