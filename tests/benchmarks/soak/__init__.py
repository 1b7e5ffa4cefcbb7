"""A randomised soak test of a sidecar process in front of scripted engine processes.

    python -m tests.benchmarks.soak --minutes 20        # or: make soak MINUTES=20

Clients disconnect at any moment, cancel, pipeline, send half bodies and set short waits; engines
are killed, stopped and restarted, hang, and break their answers and state streams; settings,
profiles and API keys change. A printed seed determines all of it. Every answer is checked against
its request and the faults meanwhile; slots, leases, memory, descriptors, tasks and the log are
checked all the time and at the end. Any violation makes the exit code 1.

Dependencies point down this list:

    __main__   the command line
    run        one scene after another: starts processes, load and faults, stops them
    final      the checks at the end, without load
    watch      the continuous checks
    faults     faults of the engines
    changes    changes of the sidecar: settings, profiles, API keys, drains
    clients    the clients and their behaviours
    oddities   invalid requests, and requests to the sidecar itself
    requests   random requests, and the answers that each may get
    verdict    checks an answer against those
    events     the text, ids and failures in the body of an answer
    responses  a strict reader of HTTP/1.1 responses
    engine     the scripted engine, a separate program
    answers    the answers of the scripted engine
    processes  handles on the processes of engines and sidecar
    ends       how often engines accepted single requests, and how long these outlived clients
    trouble    when which pool or key was unreliable
    keys       API keys, and when each of them changed
    orders     the instructions of a request to the scripted engine
    scenes     pools, event loop and duration
    report     counts events and violations
"""
