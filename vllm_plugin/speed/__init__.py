"""Decides how fast an engine is, from what its scheduler reports of each step.

`engine_speed` is the whole; `step_time` fits the duration of a step by its batch size.

Pure. Times are arguments. May import `contracts`.
"""
