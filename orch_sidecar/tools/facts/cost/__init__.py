"""What a token costs, by label: from rows, prices, and the evidence of rows.

Pure but for `report`. May import `facts.tables`, `labels`, `signing` and `comparison`.
"""
