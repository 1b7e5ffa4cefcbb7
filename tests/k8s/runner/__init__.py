"""Runs the containers of manifests as processes of one Linux machine, without images.

As in a cluster: the command, environment, files, user and probes of each container, an address per
pod, the order in which containers start and stop. Not as in a cluster: images are the machine's
own files, names are in /etc/hosts, a Service is its pods, and nothing is scheduled, limited,
filtered or rolled out. Other tests validate the manifests; this package reads the fields that it
needs.

It needs root, util-linux, iproute2, overlayfs and bridges. `cluster.Cluster` is the way in; a
module imports only what stands below it.

    cluster      applies, scales, deletes, waits; Deployments' pods
    pod          one pod's life: sandbox, volumes, containers in order, leaving
    supervise    one container over its runs: probes, restarts, stop
    probe        one call of a probe or hook
    container    one run of a container
    spec         what a container runs with: command, variables, user, files
    sandbox      the namespaces that a pod's containers share
    network      bridge, subnet, veth pairs
    script       the shell script that becomes a container
    image        what an image is here
    events       what happened
    tools        the machine's own programs
"""
