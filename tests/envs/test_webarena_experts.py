"""The embedded tasks in a real browser: the environment, its evaluators and the experts together."""

import pytest

from rllm_gym.envs.webarena.embedded import SITE_URLS, load_tasks
from rllm_gym.envs.webarena.env import WebArenaEnv

pytestmark = pytest.mark.slow

MAX_STEPS = 30


@pytest.fixture(scope="module")
def env(needs_browser):
    env = WebArenaEnv(task_set="embedded", split="all")
    yield env
    env.close()


@pytest.mark.parametrize("name", SITE_URLS)
def test_the_expert_solves_a_task_of_every_template(name, env):
    items = {task["intent_template_id"]: task["task_id"] for task in load_tasks() if task["sites"] == [name]}
    assert len(items) >= 11
    for item_id in items.values():
        observation, _ = env.reset(options={"item_id": item_id})
        for _ in range(MAX_STEPS):
            observation, reward, is_over, _, info = env.step(env.expert_action())
            if is_over:
                break
        assert (reward, info["is_success"]) == (1.0, True), observation
