"""What a manifest may say here, as pydantic models that forbid everything else.

A field typed `Unused` is accepted and has no effect in the harness; a field that no model names is
an error, so that nothing in a manifest is passed over silently.

    objects    Deployments, Services, ConfigMaps, Secrets, claims, policies
    pod        the pod's spec
    container  containers, their probes, hooks and environment
    volume     volumes and where their content comes from
    part       what all models share, and how their errors read
"""
