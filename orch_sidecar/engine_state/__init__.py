"""Decides what an engine's state document means: its validity, its report, its outage.

Pure. May import `admission.types`, `api` and the modules that the plugin shares.
"""
