"""Agents of other projects, unmodified, as programs: each plays TextCraft through a tool of its own, by a script."""

import json
import os
import textwrap
from pathlib import Path

import gymnasium
import pytest

from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.tool_calls import load_parser
from rllm_gym.types import AGENT, SamplingParams, TaskGroup
from tests.envs.test_program import ScriptedEngine

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("RLLM_GYM_AGENTS", ROOT / ".interop" / "agents")) / "bin" / "python"
SEED = 3
pytestmark = [
    pytest.mark.slow,
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON.exists(), reason="the agents are installed by make test-interop"),
]

HEAD = """
import json, sys
import gymnasium
task = json.load(sys.stdin)
env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type="text")
observation, info = env.reset(seed=task["seed"])
total = 0.0

def act(command: str) -> str:
    \"\"\"Do something in the world.

    Args:
        command: what to do.
    \"\"\"
    global total, info
    text, reward, _, _, info = env.step(f"Action: {command}")
    total += reward
    return text
"""
TAIL = """
print()
print(json.dumps({"reward": total, "is_success": info["is_success"]}))
"""
CHAT = """
    import os
    from openai import OpenAI
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tools = [{"type": "function", "function": {"name": "act", "parameters": parameters}}]
    messages = [{"role": "system", "content": "Craft."}, {"role": "user", "content": observation}]
    while True:
        options = {"model": "any", "messages": messages, "tools": tools}
        if os.environ["STREAMED"] == "1":
            with OpenAI().chat.completions.stream(**options) as stream:
                answer = stream.get_final_completion().choices[0].message
        else:
            answer = OpenAI().chat.completions.create(**options).choices[0].message
        messages.append(answer)
        if not answer.tool_calls:
            break
        for call in answer.tool_calls:
            said = act(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
"""
RESPONSES = """
    import os
    from openai import OpenAI
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tools = [{"type": "function", "name": "act", "parameters": parameters, "strict": False}]
    items = [{"role": "user", "content": observation}]
    while True:
        options = {"model": "any", "instructions": "Craft.", "input": items, "tools": tools}
        if os.environ["STREAMED"] == "1":
            with OpenAI().responses.stream(**options) as stream:
                answer = stream.get_final_response()
        else:
            answer = OpenAI().responses.create(**options)
        items += [item.to_dict() for item in answer.output]
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            break
        for call in calls:
            said = act(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": said})
"""
MESSAGES = """
    import os
    from anthropic import Anthropic
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    tools = [{"name": "act", "input_schema": schema}]
    messages = [{"role": "user", "content": observation}]
    while True:
        options = {"model": "any", "max_tokens": 200, "system": "Craft.", "messages": messages, "tools": tools}
        if os.environ["STREAMED"] == "1":
            with Anthropic().messages.stream(**options) as stream:
                answer = stream.get_final_message()
        else:
            answer = Anthropic().messages.create(**options)
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            break
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": act(**call.input)} for call in calls]
        messages.append({"role": "user", "content": results})
"""
# The world of the program in another language: it reads a command a line, and answers with a line of JSON.
BEGIN = """
print(json.dumps({"text": observation, "reward": 0.0, "is_success": False}), flush=True)
"""
WORLD = """
for line in iter(sys.stdin.readline, ""):
    text = act(line.strip())
    print(json.dumps({"text": text, "reward": total, "is_success": info["is_success"]}), flush=True)
"""
NODE = r"""
const { OpenAI } = require("openai");
const { spawn } = require("child_process");
const readline = require("readline");
const world = spawn(process.env.PYTHON, [process.env.WORLD], { stdio: ["pipe", "pipe", "inherit"] });
world.stdin.write(process.env.RLLM_GYM_TASK + "\n");
const lines = readline.createInterface({ input: world.stdout })[Symbol.asyncIterator]();
const read = async () => JSON.parse((await lines.next()).value);
const parameters = { type: "object", properties: { command: { type: "string" } }, required: ["command"] };
const tools = [{ type: "function", function: { name: "act", parameters } }];
(async () => {
  const client = new OpenAI();
  let last = await read();
  const messages = [{ role: "system", content: "Craft." }, { role: "user", content: last.text }];
  for (;;) {
    const options = { model: "any", messages, tools };
    const completion = process.env.STREAMED === "1"
      ? await client.chat.completions.stream(options).finalChatCompletion()
      : await client.chat.completions.create(options);
    const answer = completion.choices[0].message;
    messages.push(answer);
    if (!answer.tool_calls?.length) break;
    for (const call of answer.tool_calls) {
      world.stdin.write(JSON.parse(call.function.arguments).command + "\n");
      last = await read();
      messages.push({ role: "tool", tool_call_id: call.id, content: last.text });
    }
  }
  world.stdin.end();
  console.log(JSON.stringify({ reward: last.reward, is_success: last.is_success }));
})();
"""
AGENTS = {
    **{
        f"{name}-{how}": source
        for how in ("whole", "streamed")
        for name, source in (("openai", CHAT), ("responses", RESPONSES), ("anthropic", MESSAGES), ("node", NODE))
    },
    "openai-agents": """
        from agents import Agent, Runner, function_tool, set_tracing_disabled
        set_tracing_disabled(True)
        agent = Agent(name="crafter", instructions="Craft.", tools=[function_tool(act)])
        print(Runner.run_sync(agent, observation, max_turns=30).final_output)
    """,
    "pydantic-ai": """
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        agent = Agent(OpenAIChatModel("any"), system_prompt="Craft.")
        agent.tool_plain(act)
        print(agent.run_sync(observation).output)
    """,
    "langchain": """
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI
        model = ChatOpenAI(model="any").bind_tools([tool(act)])
        messages = [("system", "Craft."), ("user", observation)]
        while True:
            answer = model.invoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                break
            messages += [tool(act).invoke(call) for call in answer.tool_calls]
    """,
    "smolagents": """
        import os
        from smolagents import OpenAIModel, ToolCallingAgent, tool
        model = OpenAIModel("any", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
        print(ToolCallingAgent(tools=[tool(act)], model=model, max_steps=30).run(observation))
    """,
}


def expert_commands():
    env = gymnasium.make("rllm_gym/TextCraft-v0", obs_type="text")
    env.reset(seed=SEED)
    commands, total, is_over = [], 0.0, False
    while not is_over:
        action = env.unwrapped.expert_action()
        commands.append(action.rpartition("Action:")[2].strip())
        _, reward, is_over, _, _ = env.step(action)
        total += reward
    return commands, total


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_of_another_project_plays_to_the_reward_of_gymnasiums_environment(name, tmp_path):
    pytest.importorskip("vllm")
    commands, total = expert_commands()
    last = call("final_answer", answer="done") if name == "smolagents" else "done"
    answers = iter([*(call("act", command=command) for command in commands), last])
    chat = ChatTokenizer(chat_template=ROOT / "tests" / "chat_templates" / "qwen2_5.jinja")
    load_parser("hermes", chat.tokenizer)  # takes seconds, in which a client would wait
    variables = {"STREAMED": "1" if name.endswith("streamed") else "0"}
    if name.startswith("node"):
        agent, world = tmp_path / "agent.cjs", tmp_path / "world.py"
        agent.write_text(AGENTS[name])
        world.write_text(HEAD.replace("json.load(sys.stdin)", "json.loads(sys.stdin.readline())") + BEGIN + WORLD)
        command = [str(PYTHON.with_name("node")), str(agent)]
        modules = PYTHON.parents[1] / "node_modules"
        variables |= {"PYTHON": str(PYTHON), "WORLD": str(world), "NODE_PATH": str(modules)}
    else:
        agent = tmp_path / "agent.py"
        agent.write_text(HEAD + textwrap.dedent(AGENTS[name]) + TAIL)
        command = [str(PYTHON), str(agent)]
    options = {"command": command, "tasks": [{"seed": SEED}], "tokenizer": chat, "variables": variables}
    loop = RolloutLoop(
        lambda index: gymnasium.make("rllm_gym/Program-v0", disable_env_checker=True, **options),
        {"main": ScriptedEngine(chat, lambda messages: next(answers))},
        module_of=lambda agent_id, episode: "main",
        num_envs=1,
        num_env_workers=1,
        params=SamplingParams(max_new_tokens=256),
        max_model_len=32_000,
        max_retries=0,
    )
    try:
        loop.submit([TaskGroup((0, 0, 0), None, 1)], max_episode_steps=30)
        [group] = loop.finished_groups()
    finally:
        loop.close()
    assert not group.failed, group.failed[0].error
    [episode] = group.episodes
    stream = episode.streams[AGENT]
    assert (stream.total_reward, episode.info["is_success"]) == (total, True)
    assert len(stream.turns) == len(commands) + 1
    # smolagents tells the model in words of its own what it has called, so that each of its requests begins anew.
    contexts = {turn.context_index for turn in stream.turns}
    assert contexts == (set(range(len(stream.turns))) if name == "smolagents" else {0})
