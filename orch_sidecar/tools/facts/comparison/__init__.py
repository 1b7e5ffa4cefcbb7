"""Comparisons of facts that were measured under the same conditions, as text, JSON and charts.

Pure but for `report`. May import `facts.tables`.
"""
