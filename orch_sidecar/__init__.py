"""Admission and relay in front of a vLLM engine."""
