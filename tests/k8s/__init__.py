"""The manifests in `k8s/`: their shape, their policies, and that they run."""
