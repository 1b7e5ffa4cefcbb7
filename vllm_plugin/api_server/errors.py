"""The answers to requests that the engine's API server refuses itself."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import JSONResponse

RETRY_AFTER_S: Final = 1  # the smallest value of `Retry-After`


def refusal(status: int, kind: str, message: str, *, retriable: bool = False) -> JSONResponse:
    """Returns an error as vLLM formats them. `retriable`: soon, or at once elsewhere."""
    error: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": status}
    if not retriable:
        return JSONResponse({"error": error}, status)
    error |= {"retriable": True, "retry_after_ms": RETRY_AFTER_S * 1000}
    return JSONResponse({"error": error}, status, {"Retry-After": str(RETRY_AFTER_S)})
