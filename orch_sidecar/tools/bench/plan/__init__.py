"""Decides what to measure: reads the options, the prompts and the endpoint's own report.

Imports `results` (the engine's identity) and `load`. Pure but for `plan`.
"""
