"""`orch top`: what a sidecar does, in a terminal.

`live` keeps the document that a sidecar streams (`GET /v1/live`, the one that the page reads),
`view` makes lines of it, `screen` draws them and obeys keys; `sidecar` is the only module that
connects to one. Pure: `live`, `view`.
"""
