"""Admission and relay in front of a vLLM engine.

Dependencies point down this list; nothing imports what stands above it:

    __main__      `python -m orch_sidecar`
    cli           the command line
    local         everything on this machine: a small model, the engine, a check
    app           the composition root of the sidecar, and its lifecycle
    serving       a request's way through the sidecar
    server        the client's side of a connection
    watch         ends relays in which nothing moves
    relay         an engine's answer on its way to the client
    upstream      connections to an engine
    engine        follows one engine: its state, and the end of leases
    telemetry     traces; the only module that knows OpenTelemetry
    metrics       Prometheus metrics
    settings      where the sidecar is told what to do
    capabilities  pure: the `/v1/capabilities` document
    admission     never more in the engine than it has slots; pure but for its gate
    routes        pure: the paths of this sidecar
    errors        pure: what a refusal looks like on the wire
    exchange      what is known of one request and its answer
    heads         pure: heads on their way to the engine and to the client
    http1         pure: HTTP/1.1 framing as an engine sends it
    usage         pure: token counts from the end of an answer
    openai        pure: a request body in, its cost in sequences out
    reasons       pure: the closed set of reasons for a refusal

Of `vllm_plugin` only `vllm_plugin.profile` may be imported, and vLLM never. The pure modules
know no clock, no event loop, no HTTP library, no vLLM and no OpenTelemetry.
"""
