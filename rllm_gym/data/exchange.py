"""Trajectories to and from others' files: AgentGym's conversations, AgentGym-RL's executer logs, Inspect's `.eval`."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from rllm_gym.data.conversations import Dialogue, read_dialogues
from rllm_gym.data.records import EpisodeRecord, TurnRecord
from rllm_gym.errors import ConfigError
from rllm_gym.types import EndReason

_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}


def import_records(path: str | Path, *, env_id: str) -> Iterator[EpisodeRecord]:
    """Return a lazy iterator over the conversations of others' JSON as episode records.

    The path is a file of AgentGym's conversations or chat messages (see `read_dialogues`), or the folder of
    AgentGym-RL's executer logs: `step<N>/<rank>.json`, whose records have a `reward`, too. Such a record has texts and
    no token ids: methods that learn from it encode them with their own tokenizer. Its reward stands at the last turn;
    an episode whose reward is 1 is a success, as AgentGym counts it. Which messages have `loss: false` is not kept.

    Source: AgentGym-RL, verl/workers/rollout/agent_vllm_rollout/vllm_rollout.py at commit e182a6b: what is written.

    Args:
        env_id: of the environment, which the files do not name.

    Raises:
        ConfigError: there is no such path, or the folder holds no `step<N>` folders.
        TrajectoryError: while iterating: a record is no conversation.
    """
    path = Path(path)
    files: list[tuple[int | None, Path]] = [(None, path)] if path.is_file() else []
    if not files:
        files = [
            (int(file.parent.name.removeprefix("step")), file)
            for file in path.glob("step*/*.json")
            if file.parent.name.removeprefix("step").isdigit()
        ]
        files.sort(key=lambda numbered: (numbered[0] or 0, numbered[1]))
    if not files:
        raise ConfigError(f"import: must be a JSON file, or a folder with step<N>/<rank>.json; got {str(path)!r}.")
    return (
        _make_record(dialogue, f"{file.parent.name}-{file.stem}-{number}", env_id, train_step)
        for train_step, file in files
        for number, dialogue in enumerate(read_dialogues(file))
    )


def _make_record(dialogue: Dialogue, episode_id: str, env_id: str, train_step: int | None) -> EpisodeRecord:
    num_turns = sum(message["role"] == "assistant" for message in dialogue.messages)
    rewards = [0.0] * (num_turns - 1) + [dialogue.reward or 0.0]
    final = [] if dialogue.final_reply is None else [{"role": "user", "content": dialogue.final_reply}]
    return EpisodeRecord(
        env_id=env_id,
        item_id=dialogue.item_id,
        episode_id=episode_id,
        train_step=train_step,
        messages=[*dialogue.messages, *final],
        turns=[
            TurnRecord(
                observation_ids=[], action_ids=[], logp=[], reward=float(reward), policy_version=0, env_step=number
            )
            for number, reward in enumerate(rewards)
        ],
        final_observation_ids=[],
        end_reason=EndReason.TERMINATED,
        seed=0,
        is_success=None if dialogue.reward is None else dialogue.reward == 1,
    )


def export_conversations(records: Iterable[EpisodeRecord], file: Path) -> int:
    """Write AgentGym's conversations, a JSON array of {"item_id", "conversations": [{"from", "value", "loss"}]}.

    Returns:
        how many episodes were written; those that ended in an error are left out.
    """
    with _JsonArray(file) as array:
        for record in _without_errors(records):
            conversations = [
                {
                    "from": _SPEAKERS[message["role"]],
                    "value": message["content"],
                    "loss": True if message["role"] == "assistant" else None,
                }
                for message in record.messages
            ]
            array.append({"item_id": record.item_id, "conversations": conversations})
        return array.num_written


def export_executer_logs(records: Iterable[EpisodeRecord], folder: Path) -> int:
    """Write AgentGym-RL's executer logs, `step<N>/0.json` for each train step (0 outside training).

    Each is a JSON array of {"item_id", "conversations": [{"role", "content"}], "reward"}.

    Returns:
        how many episodes were written; those that ended in an error are left out.
    """
    arrays: dict[int, _JsonArray] = {}
    with ExitStack() as stack:
        for record in _without_errors(records):
            step = record.train_step or 0
            if step not in arrays:
                (folder / f"step{step}").mkdir(parents=True, exist_ok=True)
                arrays[step] = stack.enter_context(_JsonArray(folder / f"step{step}" / "0.json"))
            arrays[step].append(
                {"item_id": record.item_id, "conversations": record.messages, "reward": record.total_reward}
            )
    return sum(array.num_written for array in arrays.values())


def export_inspect(records: Iterable[EpisodeRecord], file: Path) -> int:
    """Write a log that `inspect view` opens: a sample for each episode, with the scores `success` and `return`.

    The task is the environment, a sample's id the item, and its epoch the number of the item's episode. Episodes that
    ended in an error are samples with that error and no score.

    Source: https://inspect.aisi.org.uk/eval-logs.html; log format version 2, as inspect_ai 0.3.285 writes and reads it.

    Returns:
        how many episodes were written.
    """
    epochs: dict[str, int] = defaultdict(int)
    summaries: list[dict[str, Any]] = []
    tasks: dict[str, None] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for record in records:
            item = str(record.item_id if record.item_id is not None else record.episode_id)
            epochs[item] += 1
            tasks.setdefault(record.env_id.rpartition("/")[2] or record.env_id)
            sample = _inspect_sample(record, item, epochs[item])
            archive.writestr(f"samples/{item.replace('/', '_')}_epoch_{epochs[item]}.json", json.dumps(sample))
            summaries.append(
                {key: value for key, value in sample.items() if key not in ("messages", "output")}
                | {"completed": True, "message_count": len(record.messages)}
            )
        header = _inspect_header("+".join(tasks) or "none", summaries, list(epochs), max(epochs.values(), default=1))
        archive.writestr("summaries.json", json.dumps(summaries))
        start = {key: header[key] for key in ("version", "eval", "plan")}
        archive.writestr("_journal/start.json", json.dumps(start))
        archive.writestr("header.json", json.dumps(header))
    return len(summaries)


def _inspect_sample(record: EpisodeRecord, item: str, epoch: int) -> dict[str, Any]:
    messages = [{"id": f"{record.episode_id}-{k}", **message} for k, message in enumerate(record.messages)]
    first = next((message["content"] for message in record.messages if message["role"] == "user"), "")
    said = [message["content"] for message in record.messages if message["role"] == "assistant"]
    is_scored = record.error is None
    about = {
        "episode_id": record.episode_id,
        "agent_id": record.agent_id,
        "split": record.split,
        "category": record.category,
        "end_reason": record.end_reason,
        "train_step": record.train_step,
        "max_episode_steps": record.max_episode_steps,
        "seed": record.seed,
        "turn_rewards": [turn.reward for turn in record.turns],
        "policy_versions": [turn.policy_version for turn in record.turns],
    }
    scores = {"success": {"value": int(bool(record.is_success))}, "return": {"value": record.total_reward}}
    sample: dict[str, Any] = {
        "id": item,
        "epoch": epoch,
        "input": first,
        "target": "",
        "messages": messages,
        "output": {"model": "policy", "choices": [], "completion": said[-1] if said else ""},
        "scores": scores if is_scored else {},
        "metadata": {name: value for name, value in about.items() if value is not None},
    }
    if not is_scored:
        sample["error"] = {"message": record.error, "traceback": "", "traceback_ansi": ""}
    return sample


def _inspect_header(task: str, samples: list[dict[str, Any]], items: list[str], num_epochs: int) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    scored = [sample["scores"] for sample in samples if sample["scores"]]
    scores = [
        {
            "name": name,
            "scorer": name,
            "params": {},
            "metrics": {
                "mean": {"name": "mean", "value": sum(s[name]["value"] for s in scored) / len(scored), "params": {}}
            },
        }
        for name in (("success", "return") if scored else ())
    ]
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "created": now,
            "task": task,
            "dataset": {"name": task, "samples": len(items), "sample_ids": items},
            "model": "rllm_gym/policy",
            "config": {"epochs": num_epochs},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {"total_samples": len(samples), "completed_samples": len(scored), "scores": scores},
        "stats": {"started_at": now, "completed_at": now, "model_usage": {}},
    }


EXPORTS: dict[str, Callable[[Iterable[EpisodeRecord], Path], int]] = {
    "agentgym": export_conversations,
    "executer_logs": export_executer_logs,
    "inspect": export_inspect,
}


def _without_errors(records: Iterable[EpisodeRecord]) -> Iterator[EpisodeRecord]:
    return (record for record in records if record.error is None and record.messages)


class _JsonArray:
    """Writes a JSON array object by object."""

    def __init__(self, file: Path) -> None:
        self._file: IO[str] = file.open("w", encoding="utf-8")
        self._file.write("[")
        self.num_written = 0

    def append(self, value: dict[str, Any]) -> None:
        self._file.write(("," if self.num_written else "") + "\n" + json.dumps(value))
        self.num_written += 1

    def __enter__(self) -> _JsonArray:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.write("\n]\n")
        self._file.close()
