"""Runs Kubernetes manifests on one Linux machine, without a cluster and without images.

`cluster.Cluster` is the way in; tests need `image` for what stands behind the images' names. It
needs root, util-linux, iproute2, overlayfs and bridges. A module imports only what stands below it.

    tiny         the objects of the harness's own tests
    cluster      the tests' way in: apply, scale, delete, wait, pods, logs, exec
    control      the applied objects, Deployments' pods and the loop that makes them
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
    network      bridge, subnet, veth pairs
    volumes      files of ConfigMaps and Secrets; fsGroup
    script       the shell script that becomes a container
    image        what an image is here
    environment  a container's variables
    health       when probes change a state
    events       what happened and when
    identity     what a pod can learn about itself
    expand       $(VAR)
    tools        the machine's own programs
    schema       what a manifest may say
"""
