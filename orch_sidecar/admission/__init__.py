"""Admission: never more sequences in the engine than it has slots, and the right ones first.

Dependencies point down this list:

    gate         the asyncio shell: futures and a timer around the core
    core         pure: who gets a slot, who waits, who is refused
    waiting_room pure: who may wait, how long, and who makes room
    order        pure: who goes next
    prospects    pure: what a request has to expect
    refusing     pure: what is said to those who are not admitted
    scarce       pure: whether a request may go now, and what it waits for if not
    outlook      pure: how long requests take, and when those who wait will start
    plan         pure: when slots come free
    limits       pure: how many at once, and how long to gather them, from SLO and step time
    kv_cache     pure: room in the KV cache
    budgets      pure: the engine's time for prompts
    queues       pure: who waits, and for how long at most
    aging        pure: how long interactive requests have kept bulk ones waiting
    rates        pure: how often requests come
    lengths      pure: how much requests generate
    decision     pure: what became of requests
    draining     pure: who ordered a drain, and what ends it
    ledger       pure: which leases are out, and how many slots are left
    drain        pure: how fast slots come free, for Retry-After
    ask          pure: what admission is asked and told

The core knows no clock and no event loop: time is an argument (seconds of any monotonic
clock), decisions are return values. A lease is given only while leased + foreign + cost stay
within the slots the engine reported, and it comes back when the engine's answer has ended or
the engine says that the lease has.
"""
