"""Comparisons of facts that were measured under the same conditions, as text, JSON and plots.

Pure but for `axes`, `text_width`, `plot` and `chart_plot`, which load matplotlib when they draw;
the last two write files. May import `facts.evidence` and `facts.tables`.
"""
