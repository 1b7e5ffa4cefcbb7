"""Decides what an engine can prove of its work, and signs it: `chains` keeps what was done.

Pure: `chains`. May import `contracts`.
"""
