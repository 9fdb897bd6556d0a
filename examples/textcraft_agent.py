"""An agent of its own that crafts in TextCraft by tool calls, and knows nothing of training.

env: rllm_gym/Program-v0
env_config: {command: [python, examples/textcraft_agent.py], tasks: [{seed: 0}, {seed: 1}]}
max_episode_steps: 12
"""

import json
import sys

import gymnasium
from openai import BadRequestError, OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Do something: get 2 oak logs; craft 4 oak planks using 1 oak logs; inventory.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def main() -> None:
    task = json.load(sys.stdin)
    env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type="text")
    observation, info = env.reset(seed=task["seed"])
    client, reward, is_over = OpenAI(), 0.0, False
    messages = [{"role": "system", "content": "Craft what the goal says."}, {"role": "user", "content": observation}]
    while not is_over:
        try:
            answer = client.chat.completions.create(model="any", messages=messages, tools=[TOOL]).choices[0].message
        except BadRequestError:  # no turns are left
            break
        messages.append(answer)
        for call in answer.tool_calls or ():
            command = json.loads(call.function.arguments).get("command", "")
            observation, reward, is_over, _, info = env.step(f"Action: {command}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": observation})
        if not answer.tool_calls:
            messages.append({"role": "user", "content": "Call act."})
    print(json.dumps({"reward": reward, "is_success": info["is_success"]}))


if __name__ == "__main__":
    main()
