"""Records of releases of vLLM that cannot run here: their symbols, as far as hooks need them.

`record` defines the committed vllm-<version>.json, `ranges` a file that is read by range requests.
`fetch` reads a release from the package index; it needs the network, and is run by developers.
"""
