"""An agent of its own that crafts in TextCraft by tool calls, and knows nothing of training.

env: rllm_gym/Program-v0
env_config: {command: "examples.textcraft_agent:play", tasks: [{item_id: textcraft_17, seed: 0}]}
max_episode_steps: 12
"""

import json
import sys

import gymnasium
from openai import BadRequestError, OpenAI


def play(task: dict) -> dict:
    """Play a task; return its reward."""
    env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type="text")
    observation, info = env.reset(seed=task["seed"], options={"item_id": task["item_id"]})
    functions = {function.name: function for function in env.unwrapped.functions}
    tools = [{"type": "function", "function": function.schema} for function in functions.values()]
    messages = [{"role": "system", "content": "Craft what the goal says."}, {"role": "user", "content": observation}]
    client, reward, is_over = OpenAI(), 0.0, False
    while not is_over:
        try:
            answer = client.chat.completions.create(model="any", messages=messages, tools=tools).choices[0].message
        except BadRequestError:  # no turns are left
            break
        messages.append(answer)
        for call in answer.tool_calls or ():
            try:
                action = functions[call.function.name].text(json.loads(call.function.arguments))
            except (LookupError, ValueError, TypeError) as error:
                reply = f"Invalid: {error}"
            else:
                reply, reward, is_over, _, info = env.step(f"Action: {action}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": reply})
            if is_over:
                break
        if not answer.tool_calls:
            messages.append({"role": "user", "content": f"Call one of the functions: {', '.join(functions)}."})
    return {"reward": reward, "is_success": info["is_success"]}


if __name__ == "__main__":
    print(json.dumps(play(json.load(sys.stdin))))
