"""Runs to look at: TextCraft played by its expert and by one that gives up, as trained, as evaluated, with results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from rllm_gym.data import EpisodeRecord, TrajectoryWriter, make_records
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.types import AGENT, Episode, Stream, TaskGroup, Turn

ENV = "rllm_gym/TextCraft-v0"
HOSTILE = [
    "<script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "</pre></script><svg onload=\"document.title='taken'\">",
    "javascript:document.title='taken'",
    "{{constructor.constructor(\"document.title='taken'\")()}}",
    "\u202egnp.exe\u202c \u200bzero\ufeff",
    "\x00\x07\x1b[31mred\x7f\x9b",
    "<!--<script>",
]


def play(item, *, solves: bool, group=(0, 1, 0), member=0, seed=7, **fields) -> EpisodeRecord:
    """Return the record of an episode whose tokens have log-probabilities and advantages."""
    env = TokenEnv(TextCraftEnv(system_prompt="Craft."))
    observation, info = env.reset(seed=seed, options={"item_id": item})
    stream = Stream(AGENT, "default_policy")
    rng, is_over, reward = np.random.default_rng(member), False, 0.0
    while not is_over and len(stream.turns) < (9 if solves else 2):
        text = env.unwrapped.expert_action() if solves else "Thought: I do not know.\nAction: give up"
        action = env.encode_action(text)
        logp = np.log(rng.uniform(0.2, 1.0, len(action))).astype(np.float32)
        turn = Turn(observation, action, logp, policy_version=group[1], env_step=len(stream.turns))
        stream.turns.append(turn)
        observation, reward, is_over, _, info = env.step(action)
        turn.reward, turn.is_invalid_action = float(reward), info["is_invalid_action"]
    stream.final_observation_ids, stream.messages = observation, info["messages"]
    episode = Episode(
        "-".join(map(str, (*group, member))),
        TaskGroup(group, item, 4),
        member,
        seed,
        env_id=ENV,
        item_id=info["item_id"],
        streams={AGENT: stream},
        end_reason="terminated" if is_over else "horizon",
        info=info,
    )
    given = {"env_version": "v0", "train_step": group[1], "max_episode_steps": 9, "split": "train", **fields}
    [record] = make_records(episode, **given)
    return record


def with_numbers(record: EpisodeRecord, *, advantage: float, difference: float | None = None) -> EpisodeRecord:
    """Return a record with what training computes for its tokens."""
    turns = [
        turn.model_copy(
            update={
                "advantage": [advantage] * len(turn.action_ids),
                "trainer_logp": None if difference is None else [x - difference for x in turn.logp],
            }
        )
        for turn in record.turns
    ]
    return record.model_copy(update={"turns": turns})


def write_run(run: Path, *, num_steps: int = 3) -> Path:
    """Write a run of groups of four, of which the first two solve their task; returns its trial."""
    trial = run / "2026-01-01_00-00-00_00000"
    trial.mkdir(parents=True)
    (trial / "params.json").write_text(json.dumps({"base_model": "tiny", "env": ENV}))
    results = []
    for step in range(1, num_steps + 1):
        result = {
            "training_iteration": step,
            "max_episode_steps": 2 if step < 3 else 6,
            "env_runners": {"success_rate": 0.3 + 0.1 * step, "episode_return_mean": 0.3 + 0.1 * step},
            "config": {"lr": 1.0},
        }
        if step == num_steps:
            result["evaluation_on_start"] = {"eval": {"success_rate": 0.1}}
            result["evaluation"] = {"eval": {"success_rate": 0.6}}
        results.append(json.dumps(result))
    (trial / "result.json").write_text("\n".join(results) + "\n")
    with TrajectoryWriter(trial / "trajectories", shard_bytes=20_000) as writer:
        for step in range(1, num_steps + 1):
            writer.append(group_of(step))
    return trial


def group_of(step: int, item: int = 17) -> list[EpisodeRecord]:
    return [
        with_numbers(
            play(item, solves=member < 2, group=(0, step, 0), member=member),
            advantage=1.0 if member < 2 else -1.0,
            difference=0.01 if step == 2 else None,
        )
        for member in range(4)
    ]


def write_evaluation(folder: Path, *, solved: tuple[int, ...], model: str = "tiny") -> Path:
    """Write what `rllib evaluate` leaves, of the items 140 to 143."""
    folder.mkdir(parents=True)
    (folder / "evaluation.json").write_text(json.dumps({"model": model, "identity": model, "panel_hash": "0"}))
    with TrajectoryWriter(folder / "trajectories") as writer:
        for item in range(140, 144):
            writer.append(
                [
                    play(
                        item,
                        solves=item in solved,
                        group=(1, 0, item),
                        train_step=None,
                        split="eval",
                        is_evaluation=True,
                    )
                ]
            )
    return folder


def write_hostile(folder: Path) -> Path:
    """Write an episode in which the agent, the environment, and every name is hostile."""
    record = play(3, solves=True)
    everything = "\n".join(HOSTILE)
    messages = [
        {
            "role": m["role"],
            "content": f"Thought: {everything}\nAction: {everything}" if m["role"] == "assistant" else everything,
        }
        for m in record.messages
    ]
    changes = {
        "messages": messages,
        "item_id": HOSTILE[1],
        "category": HOSTILE[0],
        "env_id": f"evil/TextCraft-{HOSTILE[0]}-v0",
        "split": HOSTILE[1],
        "info": {HOSTILE[0]: HOSTILE[1]},
        "agent_id": HOSTILE[0],
    }
    with TrajectoryWriter(folder / "trajectories") as writer:
        writer.append([record.model_copy(update=changes)])
        thing = "<img src=x onerror=alert(1)>"
        task = f"Crafting commands:\ncraft 1 {thing} using 2 <b>wood</b>\n\nGoal: craft {thing}."
        writer.append(
            [record.model_copy(update={"messages": [{"role": "user", "content": task}, *record.messages[2:]]})]
        )
    return folder
