"""The stages of a request's path, from the client to an engine and back.

Pure: `in_flight`. `app.pipeline` puts the stages together. May import `admission`, `api`, `auth`,
`config`, `observability`, `pools` and `wire`.
"""
