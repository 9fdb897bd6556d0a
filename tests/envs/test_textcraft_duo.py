"""TextCraftDuo: every task needs both crafters, and what they do to each other's inventories."""

import pytest

import rllm_gym
from rllm_gym.envs.textcraft.duo_tasks import goals, joined, make_task, next_step, solve
from rllm_gym.envs.textcraft.env import split_of


def play(env, *, make_action, max_steps=200, **options):
    """Return the rewards of the last step and everything that was read, of an episode."""
    observations, _ = env.reset(seed=0, options=options)
    read = {agent: [text] for agent, text in observations.items()}
    for step in range(max_steps):
        [agent] = observations
        observations, rewards, terminateds, _, infos = env.step({agent: make_action(env, agent, step)})
        for other, text in observations.items():
            read.setdefault(other, []).append(text)
        if terminateds["__all__"]:
            return rewards, read, infos, step + 1
    return rewards, read, infos, None


def expert(env, agent, step):
    return env.expert_action(agent)


@pytest.mark.promise
def test_every_task_can_be_done_together_and_by_nobody_alone():
    assert len(goals()) == 446
    for index in goals():
        task = make_task(index)
        for seat in (0, 1):
            assert solve(task.goal, task.inventories[seat], task.recipes[seat]) is None, task.goal
        assert len(solve(task.goal, joined(*task.inventories), task.all_recipes)) == task.num_crafts <= 6
        assert not any(task.goal in held for held in task.inventories)


def test_the_expert_pair_does_every_task():
    env = rllm_gym.make_multi_agent("TextCraftDuo-v0", split="all")
    num_steps = []
    for item_id in env.item_ids:
        rewards, _, infos, steps = play(env, make_action=expert, item_id=item_id)
        assert rewards == {"player_0": 1.0, "player_1": 1.0}, item_id
        assert all(info["is_success"] for info in infos.values())
        num_steps.append(steps)
    assert max(num_steps) < 60 and min(num_steps) >= 2


def test_one_crafter_alone_never_gets_there():
    """The other one only looks at what it holds."""
    env = rllm_gym.make_multi_agent("TextCraftDuo-v0")

    def lazy(active):
        return lambda env, agent, step: env.expert_action(agent) if agent == active else "Action: inventory"

    for k in range(10):
        for active in ("player_0", "player_1"):
            rewards, _, _, steps = play(env, make_action=lazy(active), max_steps=30, item_id=k)
            assert steps is None and rewards == {"player_0": 0.0, "player_1": 0.0}


def test_the_splits_are_textcrafts():
    held_out = {f"textcraftduo_{k}" for k, goal in enumerate(goals()) if goal in split_of("eval")}
    assert set(rllm_gym.make_multi_agent("TextCraftDuo-v0", split="eval").item_ids) == held_out
    assert len(held_out) == 77
    assert len(rllm_gym.make_multi_agent("TextCraftDuo-v0").item_ids) == 369


@pytest.fixture
def env():
    """One crafter holds 4 oak logs and a gold ingot, the other 1 stick and all commands."""
    env = rllm_gym.make_multi_agent("TextCraftDuo-v0")
    env.reset(seed=0, options={"item_id": 0})
    env.inventories[:] = [{"minecraft:oak_logs": 4, "minecraft:gold_ingot": 1}, {"minecraft:stick": 1}]
    return env


def answer(env, text):
    """Let whose turn it is act and the other one look; return what both then read."""
    seat = env._actor
    agent, other = env.player_at(seat), env.player_at(1 - seat)
    seen = env.step({agent: text})
    back = env.step({other: "inventory"})
    return back[0][agent].splitlines()[0], seen[0][other].splitlines()[-1], seen[4][other], back[4][agent]


@pytest.mark.parametrize(
    ("action", "mine", "theirs", "is_invalid", "after"),
    [
        ("give 3 oak logs", "You gave 3 oak logs.", "The other crafter gives you 3 oak logs.", False, (1, 3)),
        ("give 4 oak logs, 1 gold ingot", "You gave 4 oak logs, 1 gold ingot.",
         "The other crafter gives you 4 oak logs, 1 gold ingot.", False, (0, 4)),
        ("give 5 oak logs", "Could not give 5 oak logs: you hold 4 oak logs, 1 gold ingot.",
         "The other crafter does nothing that you notice.", True, (4, 0)),
        ("give 0 oak logs", "Could not execute give 0 oak logs", "The other crafter does nothing that you notice.",
         True, (4, 0)),
        ("give oak logs", "Could not execute give oak logs", "The other crafter does nothing that you notice.", True,
         (4, 0)),
        ("say I have logs.", "You said it.", "The other crafter says: I have logs.", False, (4, 0)),
        ("say", "Could not execute say", "The other crafter does nothing that you notice.", True, (4, 0)),
        ("get 1 stick", "Could not execute get 1 stick", "The other crafter does nothing that you notice.", True,
         (4, 0)),
        ("craft 1 moon using 1 stick", "Could not craft moon: you know no such command.",
         "The other crafter does nothing that you notice.", True, (4, 0)),
        ("Thought: hm.\nAction: inventory", "You hold 4 oak logs, 1 gold ingot.",
         "The other crafter does nothing that you notice.", False, (4, 0)),
    ],
)  # fmt: skip
def test_what_an_action_does_and_who_reads_what(env, action, mine, theirs, is_invalid, after):
    read, seen, _, info = answer(env, action)
    assert (read, seen, info["is_invalid_action"]) == (mine, theirs, is_invalid)
    assert tuple(held.get("minecraft:oak_logs", 0) for held in env.inventories) == after


def test_a_command_works_for_who_knows_it_and_holds_what_it_takes():
    env = rllm_gym.make_multi_agent("TextCraftDuo-v0")
    env.reset(seed=0, options={"item_id": 0})
    step = next_step(env.task, tuple(env.inventories))
    knows = next(seat for seat in (0, 1) if step.recipe in env.task.recipes[seat])
    env.inventories[:] = [dict(step.needs), dict(step.needs)]
    command = env._carry_out(knows, step_text(step))
    assert command[0].startswith("You crafted") and step.recipe.output in env.inventories[knows]
    assert env._carry_out(1 - knows, step_text(step))[0].endswith("you know no such command.")
    assert env._carry_out(knows, step_text(step))[0].startswith(f"Could not craft {step_text(step).split()[2]}")


def step_text(step):
    from rllm_gym.envs.textcraft.recipes import craft_text

    return craft_text(step.recipe, list(step.names))
