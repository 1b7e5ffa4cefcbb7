"""`orch bench decode`: runs decode steps on a device, under Poisson arrivals and a window.

After the microbenchmark of "Throughput, Latency & Batching Policy", but with a kernel that is bound
by memory bandwidth, as decoding is, instead of by computation. Pure but for `cli`. Imports
`results` (what a file is, and its curve) and `tools.facts`.
"""
