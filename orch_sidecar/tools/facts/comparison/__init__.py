"""Comparisons of facts that were measured under the same conditions, as text, JSON and plots.

Pure but for `plot`, which writes files and loads matplotlib when it draws. May import
`facts.evidence` and `facts.tables`.
"""
