"""MiniWoB-v0 beside BrowserGym's tasks: the same pages, the same actions, the same goals, ends and rewards."""

import json
from pathlib import Path

import pytest

from rllm_gym.envs.miniwob.env import MiniWoBEnv
from rllm_gym.envs.miniwob.tasks import TASKS

pytestmark = [pytest.mark.usefixtures("needs_browser"), pytest.mark.slow]
EPISODES = json.loads((Path(__file__).parents[1] / "golden" / "browsergym_miniwob.json").read_text())
NUM_PARTS = 9


class Seeded(MiniWoBEnv):
    """`MiniWoBEnv` whose page draws from a seed that is named."""

    page_seed = 0

    def _open(self, index):
        self._seed = self.page_seed
        return super()._open(index)


def test_the_record_has_every_task_with_an_expert_and_ends_of_every_kind():
    assert len({episode["task"] for episode in EPISODES}) == 81 and len(EPISODES) == 243
    last = [episode["steps"][-1] for episode in EPISODES]
    solved, failed = [raw > 0 for _, raw, _, done in last if done], [raw < 0 for _, raw, _, done in last if done]
    assert sum(solved) > 100 and sum(failed) > 30
    assert any(0 < raw < 1 for _, raw, _, _ in last) and any(not done for _, _, _, done in last)


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_goals_ends_and_rewards_are_browsergyms(part):
    envs = {pointer: Seeded(pointer=pointer, split="all") for pointer in (False, True)}
    for episode in EPISODES[part::NUM_PARTS]:
        env = envs[episode["pointer"]]
        env.page_seed = episode["seed"]
        observation, _ = env.reset(seed=0, options={"item_id": TASKS.index(episode["task"])})
        assert observation.startswith(f"OBJECTIVE: {episode['goal']}\n"), episode
        for action, raw, theirs, is_done in episode["steps"]:
            where = f"{episode['task']} {episode['seed']}: {action}"
            _, reward, terminated, _, info = env.step(f"Thought: so.\nAction: {action}")
            gave_up = action.startswith("stop")
            assert terminated == (is_done or gave_up), where
            # BrowserGym says 1 for whatever is above 0; here it is the page's own share, and -1 is 0.
            assert reward == (round(min(max(raw, 0), 1), 6) if is_done else 0.0), where
            assert float(reward > 0) == (theirs if is_done else 0.0), where
            assert info["is_success"] == (terminated and raw == 1), where
    for env in envs.values():
        env.close()
