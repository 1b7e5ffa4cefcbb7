"""A randomised soak of a sidecar process in front of scripted engine processes.

    python -m tests.benchmarks.soak --minutes 20        # or: make soak MINUTES=20

Clients leave at any moment, cancel, pipeline, send half bodies and set short waits; engines are
killed, stopped and restarted, hang, break answers and their state streams; settings, profiles and
API keys change. All of it follows from one seed, which is printed. Every answer is judged by what
its request asked for and by what was broken meanwhile; slots, leases, memory, descriptors, tasks
and the log are checked all the time and at the end. Any breach makes the exit code 1.

Dependencies point down this list:

    __main__   the command line
    run        one scene after another: starts processes, load and faults, ends them
    final      what must be true when everything is quiet
    watch      what must be true all the time
    faults     what is done to the engines
    changes    what is done to the sidecar: settings, profiles, API keys, drains
    clients    clients and how each of them behaves
    oddities   requests that are wrong, or for the sidecar itself
    requests   random requests, and what each of them may be answered
    verdict    whether an answer is one of those
    events     the text, ids and failures in the body of an answer
    responses  a strict reader of HTTP/1.1 responses
    engine     the scripted engine, a program of its own
    answers    what the scripted engine writes
    processes  handles on the processes of engines and sidecar
    ends       how often engines took single requests, and how long they outlived clients
    trouble    when which pool or key could not be relied upon
    keys       API keys, and when each of them changed
    orders     what a request asks the scripted engine to do
    scenes     which pools, which event loop, how long
    report     what happened, and what must not have
"""
