"""Files of requests that run in batches, as in OpenAI's Batch API (`/v1/files`, `/v1/batches`).

Decides which rows run next, what becomes of their answers, and what a key may store. Does not know
admission: a row is an ordinary request of its owner's key, on a connection that only this process
has. Imported only where `ORCH_BATCHES` is set; needs the extra `batch`.

The database is the authority, of one sidecar (SQLite) or of several (PostgreSQL): a row's answer is
written to it once, in the transaction that ends the row, and output files are made of that. So
whatever is killed, each row is in the output once.

Pure: `rows`.
"""
