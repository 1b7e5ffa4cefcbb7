"""Decides which clients are served: API keys with their classes and limits, and names of hosts.

Pure but for `key_file`. May import `api`, the file reader of `config`, and the release rate of
`admission`; knows no engines and no pools.
"""
