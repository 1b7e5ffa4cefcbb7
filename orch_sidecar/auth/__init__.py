"""Decides which clients are served: API keys with their classes and limits, and web pages.

Pure but for `key_file`. May import `api`, the file reader of `config`, and the release rate of
`admission`; knows no engines and no pools.
"""
