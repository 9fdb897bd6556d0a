"""An agent of its own that plays TextCraft by calls of a tool, without an SDK, which takes a second to load."""

import json
import os
import sys
import urllib.error
import urllib.request

import gymnasium

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"type": "function", "function": {"name": "act", "description": "Do something.", "parameters": PARAMETERS}}


def ask(messages: list) -> dict:
    body = json.dumps({"model": "any", "messages": messages, "tools": [TOOL]}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def main() -> None:
    task = json.load(sys.stdin)
    env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type="text")
    observation, info = env.reset(seed=0, options={"item_id": task["item_id"]})
    messages, reward, is_over = [{"role": "user", "content": observation}], 0.0, False
    while not is_over:
        try:
            answer = ask(messages)
        except urllib.error.HTTPError:  # no turns are left
            break
        messages.append(answer)
        for call in answer.get("tool_calls", ()):
            try:
                command = str(json.loads(call["function"]["arguments"])["command"])
            except (ValueError, LookupError, TypeError):
                command = ""
            observation, reward, is_over, _, info = env.step(f"Action: {command}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": observation})
            if is_over:
                break
        if not answer.get("tool_calls"):
            messages.append({"role": "user", "content": "Call act."})
    print(json.dumps({"reward": reward, "is_success": info["is_success"]}))


if __name__ == "__main__":
    main()
