"""Signed evidence of a measurement: its file, and its verification without the engine.

Pure. What is signed, by `vllm_plugin.contracts.statement`; by whom, by the file of trusted keys.
"""
