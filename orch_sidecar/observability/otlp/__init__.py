"""Decides how traces leave the sidecar: spans as bytes of OTLP, in batches, over HTTP or gRPC.

Pure: `attributes`, `encoder`, `protobuf`. May import `api` and the records of `observability`; the
SDK of OpenTelemetry is imported only if an exporter is configured.
"""
