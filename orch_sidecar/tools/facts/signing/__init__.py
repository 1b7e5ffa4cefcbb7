"""Signed evidence of a measurement: its file, and its verification without the engine.

Pure. `vllm_plugin.contracts.statement` defines what is signed.
"""
