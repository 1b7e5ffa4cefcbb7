"""The endpoints that take slots, by the name of their API."""

from __future__ import annotations

from orch_sidecar.api.endpoints import ENDPOINTS

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETIONS = ENDPOINTS["/v1/completions"]
RESPONSES = ENDPOINTS["/v1/responses"]
MESSAGES = ENDPOINTS["/v1/messages"]
GENERATING = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
