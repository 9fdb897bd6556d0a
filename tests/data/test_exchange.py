"""Trajectories as others write and read them: nothing that their formats can hold is lost on the way."""

from __future__ import annotations

import json
import zipfile

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app
from rllm_gym.data import EpisodeRecord, TrajectoryWriter, TurnRecord, read_episodes
from rllm_gym.data.exchange import import_records
from rllm_gym.errors import ConfigError, TrajectoryError

app = make_rllm_gym_app()


def record(number, *, item="textcraft_1", replies=("left", "right"), rewards=(0.0, 1.0), closing="Done.", **fields):
    messages = [{"role": "system", "content": "Rules."}]
    for k, reply in enumerate(replies):
        messages += [{"role": "user", "content": f"Room {k}."}, {"role": "assistant", "content": reply}]
    messages += [{"role": "user", "content": closing}] if closing else []
    turns = [
        TurnRecord(observation_ids=[1], action_ids=[2], logp=[0.0], reward=reward, policy_version=3, env_step=k)
        for k, reward in enumerate(rewards)
    ]
    fields = {"end_reason": "terminated", "is_success": sum(rewards) == 1, "train_step": number, **fields}
    return EpisodeRecord(
        env_id="rllm_gym/TextCraft-v0", item_id=item, episode_id=f"e{number}", seed=0,
        messages=messages, turns=turns, final_observation_ids=[], **fields,
    )  # fmt: skip


RECORDS = [
    record(0),
    record(1, rewards=(0.0, 0.0), end_reason="horizon", max_episode_steps=2),
    record(1, item="textcraft_2", replies=("go “there” \x07",), rewards=(1.0,), closing=""),
    record(2, item="textcraft_2", end_reason="error", error="the server died"),
]


@pytest.fixture
def convert(tmp_path):
    with TrajectoryWriter(tmp_path / "run" / "trajectories") as writer:
        writer.append(RECORDS)

    def convert_to(*arguments, source="run", exit_code=0):
        result = CliRunner().invoke(app, ["convert", str(tmp_path / source), str(tmp_path / "out"), *arguments])
        assert result.exit_code == exit_code, result.output
        return tmp_path / "out"

    return convert_to


def test_agentgyms_conversations_come_back_as_they_were(convert, tmp_path):
    file = convert("--to", "agentgym")
    [first, _, _] = json.loads(file.read_text())
    assert first == {
        "item_id": "textcraft_1",
        "conversations": [
            {"from": "system", "value": "Rules.", "loss": None},
            {"from": "human", "value": "Room 0.", "loss": None},
            {"from": "gpt", "value": "left", "loss": True},
            {"from": "human", "value": "Room 1.", "loss": None},
            {"from": "gpt", "value": "right", "loss": True},
            {"from": "human", "value": "Done.", "loss": None},
        ],
    }
    back = list(import_records(file, env_id="rllm_gym/TextCraft-v0"))
    assert [(r.item_id, r.messages) for r in back] == [(r.item_id, r.messages) for r in RECORDS[:3]]
    assert [len(r.turns) for r in back] == [2, 2, 1] and {r.is_success for r in back} == {None}


def test_executer_logs_come_back_with_step_and_reward(convert, tmp_path):
    folder = convert("--to", "executer_logs")
    assert sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.json")) == [
        "step0/0.json", "step1/0.json",
    ]  # fmt: skip
    [first, second] = json.loads((folder / "step1" / "0.json").read_text())
    assert (first["reward"], second["reward"], second["item_id"]) == (0.0, 1.0, "textcraft_2")
    convert_back = CliRunner().invoke(app, ["convert", str(folder), str(tmp_path / "back"), "--from", "TextCraft-v0"])
    assert convert_back.exit_code == 0, convert_back.output
    back = list(read_episodes(tmp_path / "back"))
    assert [(r.train_step, r.item_id, r.messages, r.total_reward, r.is_success, r.env_id) for r in back] == [
        (r.train_step, r.item_id, r.messages, r.total_reward, r.is_success, r.env_id) for r in RECORDS[:3]
    ]
    assert len({r.episode_id for r in back}) == 3


def test_step_10_comes_after_step_2(tmp_path):
    for step in (10, 2):
        (tmp_path / f"step{step}").mkdir()
        one = {"item_id": step, "conversations": [
            {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], "reward": 0}  # fmt: skip
        (tmp_path / f"step{step}" / "0.json").write_text(json.dumps([one]))
    assert [record.train_step for record in import_records(tmp_path, env_id="e")] == [2, 10]


def test_an_inspect_log_has_a_sample_for_each_episode_and_the_error_of_those_that_failed(convert):
    with zipfile.ZipFile(convert("--to", "inspect")) as archive:
        assert archive.testzip() is None
        header = json.loads(archive.read("header.json"))
        summaries = json.loads(archive.read("summaries.json"))
        samples = [json.loads(archive.read(f"samples/{s['id']}_epoch_{s['epoch']}.json")) for s in summaries]
        assert json.loads(archive.read("_journal/start.json"))["eval"] == header["eval"]
    assert [(s["id"], s["epoch"]) for s in samples] == [
        ("textcraft_1", 1), ("textcraft_1", 2), ("textcraft_2", 1), ("textcraft_2", 2),
    ]  # fmt: skip
    assert [s["scores"].get("success", {}).get("value") for s in samples] == [1, 0, 1, None]
    assert samples[3]["error"]["message"] == "the server died"
    assert [m["content"] for m in samples[0]["messages"]] == [m["content"] for m in RECORDS[0].messages]
    assert samples[1]["metadata"]["max_episode_steps"] == 2 and samples[0]["input"] == "Room 0."
    assert (header["eval"]["task"], header["eval"]["config"]["epochs"]) == ("TextCraft-v0", 2)
    assert header["results"]["scores"][0]["metrics"]["mean"]["value"] == pytest.approx(2 / 3)


def test_solved_episodes_alone_may_be_exported(convert):
    assert len(json.loads(convert("--to", "agentgym", "--solved").read_text())) == 2


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        ([], "run"),
        (["--to", "agentgym", "--from", "TextCraft-v0"], "run"),
        (["--to", "agentjim"], "run"),
        (["--to", "agentgym"], "nowhere"),
        (["--from", "TextCraft-v0"], "run"),
    ],
)
def test_what_cannot_be_converted_is_said(convert, arguments, source):
    convert(*arguments, source=source, exit_code=2)


def test_nothing_is_written_over(convert, tmp_path):
    (tmp_path / "out").write_text("mine")
    convert("--to", "agentgym", exit_code=2)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_reward_that_is_no_number_is_named(tmp_path):
    file = tmp_path / "a.json"
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    file.write_text(json.dumps([{"conversations": chat, "reward": "high"}]))
    with pytest.raises(TrajectoryError, match="record 0: reward must be a number; got 'high'"):
        list(import_records(file, env_id="e"))
    with pytest.raises(ConfigError, match="must be a JSON file, or a folder"):
        import_records(tmp_path / "empty", env_id="e")
