"""Makes a vLLM engine obey its batching profile, report its scheduler and label its spans.

Dependencies point down this list; nothing imports what stands above it:

    serve        starts what `vllm serve` starts
    register     entry points and composition root
    enforce      profile -> engine arguments
    endpoint     HTTP: /v1/capabilities, its stream, lease revocation, the lease middleware
    operators    HTTP: calls of operators that hold the engine up
    stat_logger  vLLM's statistics -> the board
    spans        labels on vLLM's spans
    hardware     what an engine runs on, and in which precision
    hooks        what of vLLM this package touches, and the self-test that looks for it
    outline      pure: the names in a module's source
    board        pure: the scheduler's state, who listens to it
    routes       pure: what vLLM's routes do with the engine
    duty         pure: whether the engine takes work
    workloads    pure: the workloads that an engine serves, by its routes
    kv_cache     pure: what a sequence takes of the KV cache
    leases       pure: which requests are in the engine, and whose they are
    steps        pure: engine steps, batch statistics, the rate of prefill
    step_time    pure: how long a decode step takes by its batch size
    curve        pure: the curve that is fitted to that
    pulse        pure: whether the engine still steps
    profile      pure: the profile model
    connectors   pure: which KV connectors take nothing in from elsewhere
    allowlist    VLLM_PLUGINS; knows no other module

The pure modules know no clock, no event loop, no HTTP, no vLLM and no OpenTelemetry.
"""
