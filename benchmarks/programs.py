"""Program-v0 beside the built-in environment: what its endpoint costs, and whether a policy gains as much by it.

    python -m benchmarks.programs cost                     # CPU time of a turn, by a scripted policy
    python -m benchmarks.programs learn FOLDER             # every run that has no row yet, then the table
    python -m benchmarks.programs learn FOLDER --seeds 0   # fewer
    python -m benchmarks.programs report FOLDER

Both play TextCraft's tasks of depth 1 and read the same prompts. In words they begin with the shipped tiny model, and
the program is `play_in_words`, an agent with OpenAI's SDK. With `--calls` they play by calls of the environment's
functions, the built-in environment with `format: tools` and `examples/textcraft_agent.py`; there the replies to turns
that are no call differ. The start is the model after SFT on the expert's calls, and then on those of an expert that
makes mistakes, each dialogue under names of its own. GRPO trains on the training tasks.

A run's gain is the success of its last five train steps less that of its first five, where a seed's shorter run had
sampled a quarter, half and all of its tokens. By calls every training task is played before and after, too. A row is
appended to FOLDER/rows.jsonl as a run ends.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from openai import BadRequestError, OpenAI

from benchmarks.equal_tokens import append_row, report, run_missing, train
from examples.textcraft_agent import play
from rllm_gym.types import Completion
from tools.tiny_model.mistakes import textcraft_mistakes
from tools.tiny_model.renaming import rename_items

ARMS = ("built-in", "program")
HORIZON = 4
NUM_SEEDS = 8  # of each task, where a program plays it
BUILT_IN = {"system_prompt": "Craft what the goal says.", "agent": {"format": "tools"}}
AGENT = "examples.textcraft_agent:play"
TIMES = "PROGRAMS_TIMES"  # a variable of the programs: the file that they write their CPU time to
SFT_COPIES = 80  # of each task's dialogue, every one under names of its own
MISTAKE_RATE, REPEAT_RATE = 0.5, 0.6  # as in the data of the shipped model: before a turn, and after a mistake
NUM_ERRING = 8  # dialogues of each task that differ in their mistakes
# No names of items, though "end" and "tool" are words of some.
MARKERS = re.compile(r"(<\|im_start\|>\w+|<\|\w+\|>|</?\w+>)")
Plans = dict[str, tuple[str, list[str]]]  # of each task its first observation and the expert's turns
# The tiny model's own, and tools in a line each: what is written of them by larger models' templates fills its context.
TEMPLATE = """
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}{{- tool.function.name ~ ': ' ~ tool.function.description ~ '\\n' }}{% endfor %}
{{- '<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call><|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' ~ (call.function | tojson) ~ '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def expert_plans(template: str | Path, split: str, depth: int = 1, errs: np.random.Generator | None = None) -> Plans:
    """Return of each task of a depth its first observation and the expert's turns.

    Args:
        errs: draws the mistakes that the expert makes before its turns; None, and it makes none.
    """
    from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
    from rllm_gym.tokens import ChatTokenizer

    config = {**BUILT_IN, "depth": depth, "split": split}
    env = make_token_env(EnvironmentSpec("T", "rllm_gym/TextCraft-v0", config), ChatTokenizer(chat_template=template))
    plans = {}
    for item_id in env.unwrapped.item_ids:
        _, info = env.reset(seed=0, options={"item_id": item_id})
        observation, turns, is_over = info["messages"][-1]["content"], [], False
        rate = MISTAKE_RATE
        while not is_over:
            wrong = textcraft_mistakes(env.unwrapped, observation, "") if errs and errs.random() < rate else []
            said = str(errs.choice(wrong)) if errs and wrong else env.unwrapped.expert_action()
            rate = REPEAT_RATE if wrong else MISTAKE_RATE
            with mock.patch.object(env.unwrapped, "expert_action", lambda said=said: said):
                turns.append(env.get_wrapper_attr("expert_action")())
            is_over = env.step(env.get_wrapper_attr("encode_action")(turns[-1]))[2]
        plans[item_id] = observation, turns
    return plans


class Expert:
    """An engine that says what the expert does."""

    policy_version, max_context_tokens = 0, 4096

    def __init__(self, chat: Any, plans: Plans) -> None:
        self._chat = chat
        self._plans = {observation.strip(): turns for observation, turns in plans.values()}
        self._requests: list[Any] = []

    def submit(self, request: Any) -> None:
        self._requests.append(request)

    def step(self) -> list[Completion]:
        done = []
        for request in self._requests:
            said = sum(message["role"] == "assistant" for message in request.messages)
            task = next(message["content"] for message in request.messages if message["role"] == "user")
            ids = np.asarray(self._chat.encode_action(self._plans[task.strip()][said]), np.int64)
            done.append(Completion(request.request_id, ids, np.zeros(len(ids), np.float32)))
        self._requests = []
        return done

    def abort(self, request_id: str) -> None:
        self._requests = [request for request in self._requests if request.request_id != request_id]

    def close(self) -> None:
        pass


def play_in_words(task: Any) -> Any:
    """Play a task as the model was trained to, without tools; return its reward."""
    env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type="text")
    observation, info = env.reset(seed=task["seed"], options={"item_id": task["item_id"]})
    client, reward, is_over = OpenAI(), 0.0, False
    messages: list[Any] = [{"role": "user", "content": observation}]
    while not is_over:
        try:
            answer = client.chat.completions.create(model="any", messages=messages).choices[0].message
        except BadRequestError:  # no turns are left
            break
        observation, reward, is_over, _, info = env.step(answer.content or "")
        messages += [answer, {"role": "user", "content": observation}]
    return {"reward": reward, "is_success": info["is_success"]}


def timed(task: Any) -> Any:
    """Play as the example does, and write down the CPU seconds since this process was forked."""
    result = play(task)
    with Path(os.environ[TIMES]).open("a") as file:
        file.write(f"{time.process_time()}\n")
    return result


def play_expert(arm: str, plans: Plans, template: str | Path, times: Path | None = None) -> list[Any]:
    """Let the expert play each task once; return the episodes."""
    from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
    from rllm_gym.rollout.loop import RolloutLoop
    from rllm_gym.tokens import ChatTokenizer
    from rllm_gym.types import SamplingParams, TaskGroup

    chat = ChatTokenizer(chat_template=template)
    if arm == "program":
        tasks = [{"item_id": item_id, "seed": 0} for item_id in plans]
        config = {"command": "benchmarks.programs:timed", "tasks": tasks, "variables": {TIMES: str(times or "")}}
        spec = EnvironmentSpec("Program-v0", "rllm_gym/Program-v0", config)
        names: list[Any] = [f"program_{k}" for k in range(len(plans))]
    else:
        spec, names = EnvironmentSpec("T", "rllm_gym/TextCraft-v0", {"split": "all", **BUILT_IN}), list(plans)
    loop = RolloutLoop(
        lambda index: make_token_env(spec, chat),
        {"main": Expert(chat, plans)},
        module_of=lambda agent_id, episode: "main",
        num_envs=2,
        num_env_workers=2,
        params=SamplingParams(max_new_tokens=96),
        max_model_len=2048,
        max_retries=0,
    )
    try:
        loop.submit([TaskGroup((0, 0, k), name, 1, seed=0) for k, name in enumerate(names)], max_episode_steps=20)
        groups = list(loop.finished_groups())
    finally:
        loop.close()
    failed = [episode.error for group in groups for episode in group.failed]
    assert not failed, failed[0]
    return [episode for group in groups for episode in group.episodes]


def cost(num_tasks: int) -> None:
    """Print the CPU time of a turn of both, with a policy that costs nothing."""
    with tempfile.TemporaryDirectory() as name:
        template, times = write_template(Path(name)), Path(name) / "times"
        plans = dict(list(expert_plans(template, "all").items())[:num_tasks])
        rows, said = {}, {}
        for arm in (*ARMS, *reversed(ARMS)):  # the first of each loads what it needs
            times.write_text("")
            before_s = time.process_time()
            episodes = play_expert(arm, plans, template, times)
            spent_s = time.process_time() - before_s
            turns = [turn for e in episodes for stream in e.streams.values() for turn in stream.turns]
            said[arm] = sorted(tuple(turn.observation_ids.tolist()) for turn in turns)
            rows[arm] = {"arm": arm, "run_ms": 1e3 * spent_s / len(turns), "turns": len(turns)}
            if spent := list(map(float, times.read_text().split())):
                rows[arm] |= {"program_ms": 1e3 * statistics.mean(spent)}
    for arm in ARMS:
        print(json.dumps({name: round(value, 3) if name != "arm" else value for name, value in rows[arm].items()}))
    print(f"ratio of the run's own CPU time a turn: {rows['program']['run_ms'] / rows['built-in']['run_ms']:.2f}")
    print(f"both have read the same prompts: {said['program'] == said['built-in']}")


def write_template(folder: Path) -> Path:
    file = (folder / "programs_template.jinja").absolute()
    file.write_text(TEMPLATE.strip())
    return file


def expert_calls(maker: Any) -> Iterator[Any]:
    """Yield the expert's calls, each time under other names of the items: what is learnt is to read them."""
    rng = np.random.default_rng(0)
    yield from renamed(maker, expert_plans(maker.chat.chat_template, "all"), SFT_COPIES, rng)


def erring_calls(maker: Any) -> Iterator[Any]:
    """Yield the same of an expert that makes mistakes and goes on from them: what is learnt is to go on."""
    rng = np.random.default_rng(1)
    for _ in range(NUM_ERRING):
        plans = expert_plans(maker.chat.chat_template, "all", errs=rng)
        yield from renamed(maker, plans, SFT_COPIES // NUM_ERRING, rng)


def renamed(maker: Any, plans: Plans, copies: int, rng: np.random.Generator) -> Iterator[Any]:
    """Yield the dialogues of plans, `copies` times, each time under other names."""
    tokenizer = maker.chat.tokenizer
    episodes = play_expert("built-in", plans, maker.chat.chat_template)  # in the order in which they ended
    streams = [stream for e in sorted(episodes, key=lambda e: e.item_id) for stream in e.streams.values()]
    for _ in range(copies):
        for stream in streams:
            pieces = [ids for turn in stream.turns for ids in (turn.observation_ids, turn.action_ids)]
            texts = [MARKERS.split(tokenizer.decode(ids)) for ids in pieces]
            words = [{"role": "user", "content": part} for parts in texts for part in parts[::2]]
            names = iter([message["content"] for message in rename_items(tuple(words), rng)])
            said = ("".join(next(names) if k % 2 == 0 else part for k, part in enumerate(parts)) for parts in texts)
            new_pieces = (np.asarray(tokenizer.encode(text), np.int64) for text in said)
            turns = [
                replace(
                    turn,
                    observation_ids=next(new_pieces),
                    action_ids=(ids := next(new_pieces)),
                    logp=np.zeros(len(ids), np.float32),
                )
                for turn in stream.turns
            ]
            yield maker.of_turns(turns)


def warm_start(folder: Path, num_steps: int) -> Path:
    """Return the tiny model after SFT on the expert's calls, and then on those of one that errs; it is made once."""
    folder.mkdir(parents=True, exist_ok=True)
    template = str(write_template(folder))
    read = sft("tiny", "expert_calls", folder / "reads", num_steps, template)
    return sft(str(read), "erring_calls", folder / "sft", num_steps // 2, template)


def sft(base_model: str, data: str, model: Path, num_steps: int, template: str) -> Path:
    """Train on this file's data where MODEL is not there; goes on from the checkpoint beside it, if there is one."""
    if (model / "config.json").is_file():
        return model
    from rllm_gym.algorithms.sft import SFTConfig
    from rllm_gym.cli.ray_session import prepare_driver
    from rllm_gym.evaluation.export import export_policy

    prepare_driver(None)
    config = SFTConfig().update_from_dict({
        "base_model": base_model, "data": f"benchmarks.programs:{data}", "samples_per_step": 32, "lr": 5e-4,
        "max_model_len": 1024, "tokens_per_micro_batch": 4096, "observation_weight": 0.1, "seed": 0,
        "evaluation_interval": None, "num_cpus_for_main_process": 2, "chat_template": template,
    })  # fmt: skip
    algo, checkpoint = config.build_algo(), model.with_name(f"{model.name}-checkpoint")
    if checkpoint.is_dir():
        algo.restore_from_path(str(checkpoint.absolute()))
    for step in range(algo.training_iteration + 1, num_steps + 1):
        loss = algo.train()["learners"]["default_policy"]["loss"]
        if step % 25 == 0 or step == num_steps:
            print(json.dumps({"data": data, "step": step, "loss": round(float(loss), 3)}), flush=True)
    algo.save_to_path(str(checkpoint.absolute()))
    algo.stop()
    export_policy(checkpoint, model)
    return model


def task_ids(split: str, depth: int = 1) -> list[str]:
    env = gymnasium.make("rllm_gym:rllm_gym/TextCraft-v0", obs_type="text", depth=depth, split=split)
    return list(env.unwrapped.item_ids)


def panel_of(arm: str) -> list[str]:
    """Return the training tasks, each once, by their names in an arm's environment."""
    item_ids = task_ids("train")
    return [f"program_{NUM_SEEDS * k}" for k in range(len(item_ids))] if arm == "program" else item_ids


def config_of(arm: str, seed: int, folder: Path, *, by_calls: bool) -> Any:
    from rllm_gym.algorithms import GRPOConfig

    config = GRPOConfig()
    item_ids = task_ids("train")
    if arm == "program":
        tasks = [{"item_id": item_id, "seed": k} for item_id in item_ids for k in range(NUM_SEEDS)]
        command = AGENT if by_calls else "benchmarks.programs:play_in_words"
        config.environment("rllm_gym/Program-v0", env_config={"command": command, "tasks": tasks})
    else:
        played = BUILT_IN if by_calls else {"system_prompt": ""}
        config.environment("rllm_gym/TextCraft-v0", env_config={"item_ids": item_ids, **played})
    options = {
        "base_model": str(folder / "sft") if by_calls else "tiny", "seed": seed, "groups_per_step": 8, "group_size": 8,
        "max_model_len": 1024, "max_new_tokens": 96 if by_calls else 48, "max_episode_steps": HORIZON,
        "lr": 1e-4, "clip_low": 0.2, "clip_high": 0.28, "kl_coeff": 0.0, "filter_groups": "advantage",
        "num_envs_per_env_runner": 64,
        "num_env_workers": 16 if arm == "program" else 0, "tokens_per_micro_batch": 4096, "num_env_runners": 1,
        "engine_options": {"kv_cache_memory_bytes": 2**28},
    }  # fmt: skip
    return config.update_from_dict(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("cost").add_argument("--tasks", type=int, default=40)
    for name in ("learn", "report", "warm", "one"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        if name == "one":
            command.add_argument("arm", choices=ARMS)
            command.add_argument("seed", type=int)
        if name in ("warm", "one"):
            command.add_argument("num_steps", type=int)
        if name in ("learn", "one"):
            command.add_argument("--calls", action="store_true")
        if name == "learn":
            command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
            command.add_argument("--steps", type=int, default=32)
            command.add_argument("--sft-steps", type=int, default=400)
    given = parser.parse_args()
    if given.command == "cost":
        cost(given.tasks)
    elif given.command == "warm":
        warm_start(given.folder, given.num_steps)
    elif given.command == "one":
        config = config_of(given.arm, given.seed, given.folder, by_calls=given.calls)
        row = train(config, given.num_steps, panel_of(given.arm) if given.calls else ())
        append_row(given.folder, {"arm": given.arm, "seed": given.seed, **row})
    else:
        if given.command == "learn":
            calls = ["--calls"] if given.calls else []
            given.folder.mkdir(parents=True, exist_ok=True)
            if given.calls:
                warm = [sys.executable, "-m", "benchmarks.programs", "warm", str(given.folder), str(given.sft_steps)]
                subprocess.run(warm, check=True)
            run_missing("benchmarks.programs", given.folder, ARMS, given.seeds, given.steps, calls)
        report(given.folder, ARMS)


if __name__ == "__main__":
    main()
