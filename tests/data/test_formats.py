"""The blocks of docs/trajectories.md that read trajectories with other libraries do what they say."""

import re
from pathlib import Path

import pytest

from rllm_gym.data import EpisodeRecord, TrajectoryWriter, TurnRecord, read_episodes

DOCS = Path(__file__).parents[2] / "docs" / "trajectories.md"


@pytest.fixture
def run(tmp_path):
    """Six records in six shards, the open one with a torn tail. What is null in one shard is not null in others."""
    folder = tmp_path / "runs" / "quickstart" / "trial" / "trajectories"
    writer = TrajectoryWriter(folder, shard_bytes=1)
    for step in range(3):
        computed = {"advantage": [step / 2, -1.0], "trainer_logp": [-0.25, -1.5]}
        sampled = {"action_ids": [4, 5], "logp": [-0.5, -1.0], "reward": 1.0, "policy_version": step}
        turn = TurnRecord(observation_ids=[step], **sampled, **computed)
        shared = {"env_id": "toy", "messages": [{"role": "user", "content": "hi"}], "final_observation_ids": []}
        failed = {"turns": [], "end_reason": "error", "error": "boom"}
        played = {"turns": [turn], "end_reason": "terminated", "info": {f"key{step}": step}}
        for member, fields in enumerate([played, failed] if step else [failed, failed]):
            name = f"{step}-{member}"
            record = EpisodeRecord(**shared, **fields, episode_id=name, seed=member, member=member, train_step=step)
            writer.append([record])
    (folder / "episodes-000005.jsonl").open("ab").write(b'{"env_id": "to')
    yield tmp_path / "runs" / "quickstart"
    writer.close()


def documented_line(heading, run):
    code = re.search(rf"## {heading}\n\n(?:<!--[^\n]*-->\n)?```python\n(.*?)\n```", DOCS.read_text(), re.DOTALL).group(
        1
    )
    names = {"read_episodes": read_episodes}
    exec(code.replace("runs/quickstart", str(run)), names)
    return names


def test_the_documented_pandas_line_gives_a_frame_of_all_records(run):
    frame = documented_line("With pandas", run)["frame"]
    assert list(frame.episode_id) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert frame.turns[2][0]["logp"] == [-0.5, -1.0]
    assert [turns[0]["advantage"] for turns in frame.turns[[2, 4]]] == [[0.5, -1.0], [1.0, -1.0]]
    assert frame.groupby("train_step").seed.count().to_dict() == {0: 2, 1: 2, 2: 2}
    assert list(frame.error.dropna()) == ["boom"] * 4


@pytest.mark.slow
def test_the_documented_ray_data_line_gives_all_records(run, ray_cluster):
    rows = documented_line("With Ray Data", run)["dataset"].take_all()
    assert sorted(row["episode_id"] for row in rows) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    second = next(row for row in rows if row["episode_id"] == "1-0")
    assert second["turns"] == [TurnRecord(**second["turns"][0]).model_dump()]
    assert (second["turns"][0]["logp"], second["error"]) == ([-0.5, -1.0], None)
    assert (second["turns"][0]["advantage"], second["turns"][0]["trainer_logp"]) == ([0.5, -1.0], [-0.25, -1.5])
