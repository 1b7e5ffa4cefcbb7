"""Runs Kubernetes manifests on one Linux machine, without a cluster and without images.

`cluster.Cluster` is the way in; tests need `image` for what stands behind the images' names. It
needs root, util-linux, iproute2, overlayfs and bridges. A module imports only what stands below it.

    tiny         the objects of the harness's own tests
    cluster      the tests' way in: apply, scale, delete, wait, pods, logs, exec
    control      Deployments' pods and the loop that makes them
    services     Services' addresses, names and ports as pods come and go
    store        the applied objects
    view         pods as tests see them
    pod          one pod's life: sandbox, volumes, containers in order, leaving
    layout       a pod's files on the node
    supervise    one container over its runs: probes, restarts, stop
    stopping     preStop, TERM, KILL
    probe        one call of a probe or hook
    container    one run of a container
    assemble     from a container's spec to its process and mounts
    sandbox      the namespaces that a pod's containers share
    node         what every pod uses
    forward      a Service's port
    names        the name server
    network      bridge, subnet, veth pairs
    volumes      files of ConfigMaps, Secrets and the downward API; fsGroup
    script       the shell script that becomes a container
    image        what an image is here
    environment  a container's variables
    endpoints    which pods a Service stands for
    rollout      what a Deployment does next
    policy       what NetworkPolicies allow
    health       when probes change a state
    events       what happened and when
    identity     what a pod can learn about itself
    expand       $(VAR)
    quantity     64Mi, 25%
    tools        the machine's own programs
    schema       what a manifest may say
"""
