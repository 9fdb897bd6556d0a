"""A stand-in for a model: an OpenAI endpoint on loopback that plays TextCraft's expert."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator

import gymnasium

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.contract import play

SEED = 5


def expert_turns(item_id: str, seed: int = SEED) -> list[tuple[str, str, float]]:
    """Return the expert's actions, with the replies and rewards that `gymnasium.make` gives."""
    env = gymnasium.make("rllm_gym/TextCraft-v0", obs_type="text")
    return [(action, text, reward) for action, text, reward, *_ in play(env, seed, {"item_id": item_id})[1:]]


@contextlib.contextmanager
def endpoint() -> Iterator[str]:
    """Answer chat completions: the n-th turn of the expert's in the task that the first message names."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = [message for message in request["messages"] if message["role"] == "assistant"]
            user = next(message["content"] for message in request["messages"] if message["role"] == "user")
            text = user if isinstance(user, str) else user[0]["text"]
            turns = expert_turns(json.loads(text)["observation"]["metadata"]["item_id"])
            reply = {"role": "assistant", "content": turns[len(said)][0]}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = {"id": "x", "created": 0, "model": "expert", "usage": usage}
            if request.get("stream"):
                kind, body["object"] = "text/event-stream", "chat.completion.chunk"
                begin = {**body, "choices": [{"index": 0, "delta": reply, "finish_reason": None}]}
                end = {**body, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
                content = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (begin, end)).encode()
                content += b"data: [DONE]\n\n"
            else:
                kind, body["object"] = "application/json", "chat.completion"
                choice = {"index": 0, "message": reply, "finish_reason": "stop"}
                content = json.dumps({**body, "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
