"""Admission: never more sequences in the engine than it has slots.

Dependencies point down this list:

    gate     the asyncio shell: futures and timers around the core
    core     pure: who gets a slot, who waits, who is refused
    ledger   pure: which leases are out, and how many slots are left
    drain    pure: how fast slots come free, for Retry-After

The core knows no clock and no event loop: time is an argument (seconds of any monotonic
clock), decisions are return values. A lease is given only while leased + foreign + cost stay
within the slots the engine reported, and it comes back when the engine's answer has ended or
the engine says that the lease has.
"""
