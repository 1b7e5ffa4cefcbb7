"""What vLLM answers: one function per API, streamed or not, short and always the same."""

from __future__ import annotations

from typing import Any

from tests.integration.wire import Answer

NOT_GENERATING = ("/tokenize", "/detokenize", "/v1/messages/count_tokens")

WORDS = ("one ", "two ", "three")
EVENT_STREAM = [("content-type", "text/event-stream; charset=utf-8"), ("server", "uvicorn")]


def usage(choices: int) -> dict[str, int]:
    output = choices * len(WORDS)
    return {"prompt_tokens": 7, "completion_tokens": output, "total_tokens": 7 + output}


async def answer(answer: Answer) -> None:
    """The default script of every path."""
    request = answer.request
    if request.path == "/v1/models":
        model = {"id": "tiny", "object": "model", "created": 1, "owned_by": "vllm"}
        answer.json({"object": "list", "data": [model]})
    elif request.path == "/version":
        answer.json({"version": "0.32.0"})
    elif request.path == "/metrics":
        text = b"# HELP vllm:num_requests_running x\n"
        fields = [("content-type", "text/plain"), ("content-length", str(len(text)))]
        answer.head(200, fields, chunked=False)
        answer.write(text)
    elif request.path == "/tokenize":
        answer.json({"count": 3, "max_model_len": 2048, "tokens": [1, 2, 3]})
    elif request.path == "/detokenize":
        answer.json({"prompt": "one two three"})
    elif request.path == "/v1/messages/count_tokens":
        answer.json({"input_tokens": 7})
    elif request.path in _APIS:
        _APIS[request.path](answer, request.json())
    else:
        answer.json({"detail": "Not Found"}, 404)


def _chat(answer: Answer, body: dict[str, Any]) -> None:
    choices = body.get("n") or 1
    common = {"id": "chatcmpl-1", "created": 1, "model": "tiny"}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "".join(WORDS)}
        answer.json(
            common
            | {"object": "chat.completion", "usage": usage(choices)}
            | {
                "choices": [
                    {"index": i, "message": message, "finish_reason": "stop"}
                    for i in range(choices)
                ]
            }
        )
        return
    common["object"] = "chat.completion.chunk"
    answer.head(200, EVENT_STREAM)
    for word in WORDS:
        for i in range(choices):
            delta = {"index": i, "delta": {"content": word}, "finish_reason": None}
            answer.event(common | {"choices": [delta]})
    for i in range(choices):
        answer.event(common | {"choices": [{"index": i, "delta": {}, "finish_reason": "stop"}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        answer.event(common | {"choices": [], "usage": usage(choices)})
    answer.event("[DONE]")
    answer.end()


def _completions(answer: Answer, body: dict[str, Any]) -> None:
    prompt = body["prompt"]
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    choices = (len(prompt) if several else 1) * (body.get("n") or 1)
    common = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"}
    if not body.get("stream"):
        texts = [
            {"index": i, "text": "".join(WORDS), "finish_reason": "stop", "logprobs": None}
            for i in range(choices)
        ]
        answer.json(common | {"choices": texts, "usage": usage(choices)})
        return
    answer.head(200, EVENT_STREAM)
    for word in WORDS:
        for i in range(choices):
            choice = {"index": i, "text": word, "finish_reason": None, "logprobs": None}
            answer.event(common | {"choices": [choice]})
    answer.event("[DONE]")
    answer.end()


def _responses(answer: Answer, body: dict[str, Any]) -> None:
    part = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
    item = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    }  # fmt: skip
    response = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "tiny",
        "status": "completed", "output": [item], "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    if not body.get("stream"):
        answer.json(response)
        return
    answer.head(200, EVENT_STREAM)
    number = 0
    for number, word in enumerate(WORDS):
        delta = {
            "type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0,
            "content_index": 0, "delta": word, "logprobs": [], "sequence_number": number,
        }  # fmt: skip
        answer.event(delta, "response.output_text.delta")
    completed = {
        "type": "response.completed", "response": response, "sequence_number": number + 1,
    }  # fmt: skip
    answer.event(completed, "response.completed")
    answer.end()


def _messages(answer: Answer, body: dict[str, Any]) -> None:
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "tiny",
        "content": [{"type": "text", "text": "".join(WORDS)}], "stop_reason": "end_turn",
        "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": len(WORDS)},
    }  # fmt: skip
    if not body.get("stream"):
        answer.json(message)
        return
    answer.head(200, EVENT_STREAM)
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": word},
            }
            for word in WORDS
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": len(WORDS)},
        },
        {"type": "message_stop"},
    ]
    for event in events:
        answer.event(event, event["type"])
    answer.end()


_APIS = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/v1/responses": _responses,
    "/v1/messages": _messages,
}
