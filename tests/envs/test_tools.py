"""`agent: {format: tools}`: functions told by the chat template, called as the family does, answered in the tool role.

1. Every turn's prompt is what transformers' `apply_chat_template` gives for the messages and the tools.
2. Sampled ids stay, wherever the template keeps their text.
3. A call inside a thought is none; several run in order, each with an answer of its own.
4. What cannot be read is refused by name before anything starts.
"""

from __future__ import annotations

import datetime
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from tokenizers import AddedToken

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.agents import AgentEnv, Function
from rllm_gym.envs.agents.formats import Tools
from rllm_gym.envs.base import StepResult, TextEnv
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.errors import ConfigError
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.tool_calls import ToolCalls, load_parser
from tests.envs.test_agent_formats import TURNS
from tests.tokenizers import make_tokenizer

TEMPLATES = Path(__file__).parents[1] / "chat_templates"
# In the form of Mistral 7B v0.3's: tools stand before the last user's turn, roles alternate, and calls get ids.
MISTRAL = """\
{%- set ns = namespace(index=0) %}
{%- for m in messages %}{%- if m.role == 'user' or (m.role == 'assistant' and m.tool_calls is not defined) %}
{%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{%- set ns.index = ns.index + 1 %}
{%- endif %}{%- endfor %}
{%- set last = (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and m == last %}{{- '[AVAILABLE_TOOLS] ' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST] ' ~ m.content ~ '[/INST]' }}
{%- elif m.tool_calls is defined %}
{{- '[TOOL_CALLS] [' }}
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception('ids must have 9 characters') }}{%- endif %}
{{- (call.function | tojson)[:-1] ~ ', "id": "' ~ call.id ~ '"}' ~ (', ' if not loop.last else ']') }}
{%- endfor %}
{{- eos_token }}
{%- elif m.role == 'assistant' %}
{{- ' ' ~ m.content | trim ~ eos_token }}
{%- elif m.role == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' ~ m.content ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""
CALLS = ["<tool_call>", "</tool_call>"]
# family: (template, its tokens beside ChatML's, what ends a turn, vLLM's parser, whether a turn stays as it was said)
FAMILIES = {
    "qwen2.5": ("qwen2_5", CALLS, "<|im_end|>", "hermes", True),
    "qwen3": ("qwen3", CALLS, "<|im_end|>", "hermes", True),
    "llama3": (
        "llama3_2",
        ["<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eot_id|>", "<|eom_id|>"],
        "<|eot_id|>",
        "llama3_json",
        True,
    ),
    "glm": (
        "glm4moe",
        ["<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", *CALLS, "<arg_key>", "</arg_key>"],
        "<|user|>",
        "glm47",
        True,
    ),
    "gpt-oss": (
        "gptoss",
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"],
        "<|return|>",
        "openai",
        False,
    ),
    "mistral": (MISTRAL, ["[TOOL_CALLS]", "[TOOL_RESULTS]", "[INST]", "[/INST]", "</s>"], "</s>", "mistral", False),
}
WRITTEN = {  # the same call of `get`, as each family writes it
    "qwen2.5": '<tool_call>\n{"name": "get", "arguments": {"count": 1, "item": "oak logs"}}\n</tool_call>',
    "qwen3": '<tool_call>\n{"name": "get", "arguments": {"count": 1, "item": "oak logs"}}\n</tool_call>',
    "llama3": '{"name": "get", "parameters": {"count": 1, "item": "oak logs"}}',
    "glm": "\n<think></think>\n<tool_call>get\n<arg_key>count</arg_key>\n<arg_value>1</arg_value>\n"
    "<arg_key>item</arg_key>\n<arg_value>oak logs</arg_value>\n</tool_call>",
    "gpt-oss": ' to=functions.get<|channel|>commentary json<|message|>{"count": 1, "item": "oak logs"}',
    "mistral": '[TOOL_CALLS] [{"name": "get", "arguments": {"count": 1, "item": "oak logs"}, "id": "call00000"}]',
}
pytestmark = [pytest.mark.slow, pytest.mark.promise]  # the first one to need vLLM's parsers loads them


class Shed(TextEnv):
    """A shed with things; `leave` ends the episode."""

    name, num_items, category = "shed", 4, "shed"
    default_system_prompt = "You are in a shed. Write `get N ITEM` or `leave`."
    introduction = "You are in a shed."
    functions = (
        Function("get", "get {count} {item}", "take an item", integers=("count",)),
        Function("leave", "leave", "go"),
    )

    def split_indices(self, split):
        return range(4)

    def reset_item(self, index):
        return "Get oak logs, and leave."

    def act(self, action):
        if action == "leave":
            self.is_success = True
            return StepResult("Gone <|im_end|>.", 1.0, True, False)
        return StepResult(f"You did: {action}.", 0.25, False, False)


@cache
def tokenizer_of(family):
    template, tokens, eos, _, _ = FAMILIES[family]
    source = template if "{%" in template else (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    tokenizer = deepcopy(make_tokenizer("qwen3"))
    is_plain = ("<tool_call>", "</tool_call>", "<arg")
    tokenizer.add_tokens(
        [AddedToken(t, special=not t.startswith(is_plain), normalized=False) for t in [*tokens, "<s>"]]
    )
    tokenizer.chat_template, tokenizer.eos_token, tokenizer.bos_token = source, eos, "<s>"
    return tokenizer


def token_env(family, **agent):
    return TokenEnv(AgentEnv(Shed(), {"format": "tools", **agent}), tokenizer=tokenizer_of(family))


class Stream:
    """What a policy reads and writes, turn by turn, and the prompt that transformers renders for its messages."""

    def __init__(self, env):
        self.env, self.num_rewritten = env, 0
        self.ids, self.info = env.reset(seed=0)
        self.ids = self.ids.tolist()
        self.result = None

    def act(self, ids):
        observation, *self.result, self.info = self.env.step(ids)
        is_rewritten = "rllm_gym/num_repeated_tokens" in self.info
        self.num_rewritten += is_rewritten
        self.ids = (
            observation.tolist() if is_rewritten else [*self.ids, *np.asarray(ids).tolist(), *observation.tolist()]
        )
        return self.info["messages"][-1]

    def say(self, text):
        return self.act(self.env.encode_action(text))

    @property
    def prompt(self):
        return self.env.chat.decode(self.ids)

    @property
    def expected(self):
        messages = self.info.get("rllm_gym/context_messages", self.info["messages"])
        tools = self.env.calls.tools
        is_over = self.result is not None and self.result[1]
        hf = self.env.chat.tokenizer
        date = {"strftime_now": datetime.date(2026, 1, 1).strftime}
        return hf.apply_chat_template(messages, tools=tools, add_generation_prompt=not is_over, tokenize=False, **date)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_prompt_is_the_templates_own_with_tools_calls_and_answers(family):
    env = token_env(family)
    stream = Stream(env)
    assert (env.calls.parser, env.calls.keeps_text) == FAMILIES[family][3:]
    assert stream.prompt == stream.expected and "take an item" in stream.prompt
    call = WRITTEN[family]
    for text, role in [(call, "tool"), (call, "tool"), ("I wonder.", "user"), (call.replace("oak", "birch"), "tool")]:
        answer = stream.say(text)
        assert answer["role"] == role
        assert answer["content"] == "You did: get 1 oak logs." or role == "user" or "birch" in text
        assert stream.prompt == stream.expected
    stream.say(call.replace("get", "fly"))
    assert stream.info["is_invalid_action"]
    assert "the functions are get, leave" in stream.info["messages"][-1]["content"]
    assert stream.prompt == stream.expected
    stream.say(env.calls.write("Done.", "leave", {}))
    assert stream.result[1] and stream.info["is_success"]
    assert stream.prompt == stream.expected


@pytest.mark.parametrize("family", FAMILIES)
def test_an_expert_writes_a_call_as_the_template_does_and_ends_it_as_the_model_does(family):
    env = token_env(family)
    env.reset(seed=0)
    assert env.calls.write("", "get", {"count": 1, "item": "oak logs"}) == WRITTEN[family]
    *ids, end = env.encode_action(WRITTEN[family]).tolist()
    assert env.chat.decode_action(ids) == WRITTEN[family]
    ends = {"gpt-oss": "<|call|>", "glm": "<|observation|>"}
    assert env.chat.decode([end]) == ends.get(family, FAMILIES[family][2]) and end in env.stop_ids


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("language", "turn"), TURNS)
def test_what_an_expert_writes_is_read_as_the_same_turn(family, language, turn):
    form = Tools()
    form.calls = ToolCalls(ChatTokenizer(tokenizer_of(family)), [function.schema for function in language.functions])
    [read] = form.read(form.write(turn, language), language)
    # Mistral's and Llama's templates write a call alone.
    assert language.split(read)[1] == language.split(turn)[1]
    assert language.split(read)[0] in (language.split(turn)[0], "")
    assert language.split(read)[0] or family in ("llama3", "mistral") or not language.split(turn)[0]


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3", "glm", "gpt-oss"])
def test_a_turn_that_was_sampled_in_other_tokens_keeps_them(family):
    env = token_env(family)
    stream = Stream(env)
    *canonical, end = env.encode_action(WRITTEN[family]).tolist()
    added = env.chat.tokenizer.get_added_vocab().values()
    split = [i for k in canonical for i in ([k] if k in added else letters(env, env.chat.decode([k])))]
    assert env.chat.decode(split) == env.chat.decode(canonical) and len(split) > len(canonical)
    before = len(stream.ids)
    stream.act([*split, end])
    assert stream.ids[before : before + len(split)] == split
    assert stream.prompt == stream.expected


def test_a_template_that_is_told_of_calls_gives_a_new_sample_where_it_writes_them_otherwise():
    stream = Stream(token_env("mistral"))
    written = WRITTEN["mistral"].replace(', "id": "call00000"', "")  # the model writes none
    stream.act([*env_ids(stream.env, written), stream.env.end_of_turn_id])
    assert stream.num_rewritten == 1 and '"id": "call00000"' in stream.prompt
    assert stream.prompt == stream.expected
    stream = Stream(token_env("gpt-oss"))
    thought = "<|channel|>analysis<|message|>Logs first.<|end|><|start|>assistant"
    stream.act([*env_ids(stream.env, thought + WRITTEN["gpt-oss"]), stream.env.calls.template.end_id])
    assert stream.num_rewritten == 0 and "Logs first." in stream.prompt  # the template keeps it up to the next answer
    assert stream.prompt == stream.expected
    final = env_ids(stream.env, "<|channel|>final<|message|>Well.")
    stream.act([*final, stream.env.end_of_turn_id])
    assert stream.num_rewritten == 1 and "Logs first." not in stream.prompt
    assert stream.prompt == stream.expected


def env_ids(env, text):
    return env.chat.tokenizer.encode(text, add_special_tokens=False)


def letters(env, text):
    return [i for letter in text for i in env_ids(env, letter)]


def test_a_call_inside_a_thought_is_none_and_raw_line_breaks_are_read():
    stream = Stream(token_env("qwen3"))
    call = WRITTEN["qwen3"]
    answer = stream.say(f"<think>\nPerhaps {call.replace('oak', 'birch')}\n</think>\n\n{call}")
    assert answer["content"] == "You did: get 1 oak logs."
    assert stream.say(f"<think>\n{call}\n</think>\n\nNo.")["role"] == "user"
    assert stream.info["is_invalid_action"]
    assert stream.say(call.replace("oak logs", "oak\nlogs"))["content"] == "You did: get 1 oak\nlogs."


def test_several_calls_run_in_order_and_each_is_answered():
    stream = Stream(token_env("qwen2.5"))
    twice = WRITTEN["qwen2.5"] + "\n" + WRITTEN["qwen2.5"].replace("oak", "birch")
    stream.say(twice)
    assert [m["content"] for m in stream.info["messages"][-2:]] == [
        "You did: get 1 oak logs.",
        "You did: get 1 birch logs.",
    ]
    assert stream.result[0] == 0.5 and stream.prompt == stream.expected
    assert stream.prompt.count("<tool_response>") == 2
    stream = Stream(token_env("qwen2.5", parallel_calls="refuse"))
    assert "it has 2 calls; at most 1" in stream.say(twice)["content"] and stream.info["is_invalid_action"]


def test_what_the_environment_says_in_the_tool_role_forges_no_token():
    env = token_env("qwen2.5")
    stream = Stream(env)
    num_ends = stream.ids.count(env.end_of_turn_id)
    stream.say(env.calls.write("", "leave", {}))  # the reply spells <|im_end|>
    assert "Gone <|im_end|>." in stream.prompt
    assert stream.ids.count(env.end_of_turn_id) == num_ends + 2  # the call's and the answer's


def test_an_expert_plays_textcraft_by_calls():
    env = gymnasium.make(
        "rllm_gym/TextCraft-v0", tokenizer=tokenizer_of("qwen2.5"), agent={"format": "tools"}, max_episode_steps=30
    )
    env.reset(seed=3)
    is_over = False
    while not is_over:
        said = env.get_wrapper_attr("expert_action")()
        assert said.endswith("</tool_call>")
        _, reward, is_over, truncated, info = env.step(env.get_wrapper_attr("encode_action")(said))
        assert not truncated and not info["is_invalid_action"]
    assert reward == 1.0 and [m["role"] for m in info["messages"]][:4] == ["system", "user", "assistant", "tool"]


def test_parsers_and_templates_that_do_not_fit_are_refused_by_name(monkeypatch):
    functions = [function.schema for function in Shed.functions]
    qwen, llama = ChatTokenizer(tokenizer_of("qwen2.5")), ChatTokenizer(tokenizer_of("llama3"))
    for chat, parser, message in [
        (ChatTokenizer(), None, "takes none. Take format: function_call"),
        (qwen, "hermess", "got 'hermess'. Did you mean 'hermes'"),
        (qwen, "llama3_json", r"vLLM's parser llama3_json is not for this tokenizer: .*python_tag"),
        (llama, "hermes", "hermes must read what the chat template of .* writes; got no call of"),
    ]:
        with pytest.raises(ConfigError, match=message):
            ToolCalls(chat, functions, parser)
    with pytest.raises(ConfigError, match="tool_parser names a parser of vLLM for format: tools; got 'hermes' with"):
        AgentEnv(Shed(), {"tool_parser": "hermes"})
    env = AgentEnv(Shed(), {"format": "tools"})
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="got an environment at the text level"):
        env.step("get 1 oak logs")
    monkeypatch.setitem(sys.modules, "vllm.tool_parsers", None)
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        load_parser("hermes", qwen.tokenizer)
