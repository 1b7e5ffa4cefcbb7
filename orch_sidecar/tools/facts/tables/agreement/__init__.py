"""Fields and notes of which one follows from the other: what a row may not state at once.

Pure. `contradictions` compares the fields of one row, `runs` several rows of one run. Each rule
holds for any run; nothing is refused because it is unlikely.
"""
