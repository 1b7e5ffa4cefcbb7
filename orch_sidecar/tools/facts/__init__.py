"""Labelled throughput figures: where they come from, which are valid, which can be compared.

No row has a label that its measurement did not earn. Of `orch_sidecar` nothing else is imported.
Dependencies point down: `cli`, `commands`, then `comparison` and `traces`, `evidence`, `tables`.
"""
