"""The metric families, one module for each thing that is measured: pools, engines, keys, requests,
and what endpoint pickers read. Each samples what others keep, and keeps nothing itself but counts.
"""
