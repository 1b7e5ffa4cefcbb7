"""`orch bench decode`: decode steps on a device, under Poisson arrivals and an admission window.

Dependencies point down this list; nothing imports what stands above it:

    cli        `orch bench decode`
    words      pure: what may be asked for, and the rules of each value
    measure    runs steps on a device: in the order of a schedule, or a sweep over batches
    timing     measures each step on the device, and the gap since the step before
    kernel     a decode step in PyTorch, the same source for CUDA, HIP and CPU
    device     where a step runs; the only module that imports torch, when asked to
    report     pure: a run and a sweep as text and as a JSON document
    figures    pure: figures of a run and of a sweep, from the steps they consist of
    schedule   pure: when each sequence is admitted and each step is run, in virtual time
    shape      pure: what a decode step has to compute and to read

After the microbenchmark of "Throughput, Latency & Batching Policy", with a kernel that is
bound by memory as decoding is, in the place of one that only computes.
"""
