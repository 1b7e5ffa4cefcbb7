"""Labelled throughput figures: where they come from, which are valid, which can be compared.

No row has a label that its measurement did not earn. Of `orch_sidecar` nothing else is imported,
and of the plugin only the form of signed statements. Dependencies point down: `cli`, `commands`,
then `comparison`, `traces`, `signing` and `evidence`, `labels`, `tables`.
"""
