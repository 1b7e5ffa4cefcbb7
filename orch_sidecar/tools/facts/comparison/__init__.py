"""Comparisons of facts that were measured under the same conditions, and what their tokens cost.

May import `facts.tables`; `cost` the evidence of rows, too (`labels`, `signing`).
"""
