"""Chooses the pool of a request: by what it requires, by the prefixes of prompts, by predicted end.

Pure. May import `snapshot` of the package above, and what that imports.
"""
