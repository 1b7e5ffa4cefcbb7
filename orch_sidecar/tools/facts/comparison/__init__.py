"""Comparisons of facts that were measured under the same conditions, and what their tokens cost.

May import `facts.tables` and `labels`; `cost` the evidence of rows, too (`signing`).
"""
