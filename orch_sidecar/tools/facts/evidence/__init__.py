"""Evidence for figures: their definitions, runs of other tools, and whether a label was earned.

Pure. May import `facts.tables`.
"""
