"""`orch bench decode`: runs decode steps on a device, under Poisson arrivals and a window.

After the microbenchmark of "Throughput, Latency & Batching Policy", but bound by memory bandwidth,
as decoding is. Pure but for `cli`. Imports `results` (a file, and its curve) and `tools.facts`.
"""
