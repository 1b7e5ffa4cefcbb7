"""Runs everything on this machine: a small model, the engine, the sidecar, a check.

Imports nothing of the sidecar but its settings and the names of its spans; the sidecar and the
engine are child processes. Pure but for `check` and `up`, which import OpenTelemetry.
"""
