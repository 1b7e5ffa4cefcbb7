"""Runs a request that is larger than the free slots in parts, and answers it as if it were whole.

Nothing else knows that a request is divided: each part is placed, admitted and forwarded as any
request is, and takes its own slots.
"""
