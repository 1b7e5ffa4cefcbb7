"""Decides what an engine can prove of its work, and signs it: `chains` keeps what was done.

`setup` creates all of it when the engine starts: a key for the epoch, and the digests of what runs.

Pure: `chains`. May import `state` and `contracts`.
"""
