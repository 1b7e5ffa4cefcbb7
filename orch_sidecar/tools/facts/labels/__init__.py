"""What a measurement was, and which label it earned: one observation, one judge, one row.

Pure. May import `facts.tables`; what feeds it (traces, signed evidence, other tools) imports it.
"""
