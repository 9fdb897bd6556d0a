"""The expert's play of tasks on the embedded sites, in a browser."""

import random
import re

MAX_STEPS = 40


def solve(env, task):
    """Play a task, which is not solved at its start, as the expert does, and return in how many steps."""
    env.reset(options={"item_id": task["task_id"]})
    assert env.step("stop []")[1:3] == (0.0, True), task["intent"]
    observation, _ = env.reset(options={"item_id": task["task_id"]})
    for num_steps in range(1, MAX_STEPS):  # noqa: B007
        observation, reward, is_over, _, info = env.step(env.expert_action())
        if is_over:
            break
    assert (reward, info["is_success"]) == (1.0, True), observation
    return num_steps


def solve_in_spite_of_clicks(env, task):
    """Play a task as the expert does, but twice click on any link."""
    rng = random.Random(task["intent"])
    observation, _ = env.reset(options={"item_id": task["task_id"]})
    for turn in range(MAX_STEPS):
        action = env.expert_action()
        links = re.findall(r"\[(\d+)\] link", observation)
        if turn in (1, 4) and links:
            action = f"click [{rng.choice(links)}]"
        observation, reward, is_over, _, _ = env.step(action)
        if is_over:
            break
    assert reward == 1.0, observation
