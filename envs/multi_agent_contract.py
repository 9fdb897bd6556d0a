"""The contract of an environment of several agents, as rules that can be checked; `contract.py` has that of one agent.

In the tests of an environment of one's own:

    from rllm_gym.envs.contract import check_env

    def test_contract():
        check_env(MyMultiAgentEnv)
"""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rllm_gym.envs.contract_findings import (
    NONSENSE,
    ContractError,
    Make,
    NotApplicableError,
    check_own_randomness,
    equal,
    one_line,
    require,
    short,
    takes,
)
from rllm_gym.errors import RllmGymError

MAX_STEPS = 400
HELLO = "Hello."


def play(env: Any, seed: int, options: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Return everything that an episode shows: (observations, infos), then (actions, *step) for each step.

    The experts play it; an agent without one says the first of its `legal_actions`, and without these `HELLO`.
    """
    seen: list[tuple[Any, ...]] = [env.reset(seed=seed, options=options)]
    observations, infos = seen[0]
    to_act = list(observations)
    for _ in range(MAX_STEPS):
        actions = {agent: action_of(env, agent, infos.get(agent, {})) for agent in to_act}
        seen.append((actions, *env.step(actions)))
        _, observations, _, terminateds, truncateds, infos = seen[-1]
        if terminateds["__all__"] or truncateds["__all__"]:
            break
        to_act = [agent for agent in observations if not (terminateds.get(agent) or truncateds.get(agent))]
    return seen


def action_of(env: Any, agent: str, info: dict[str, Any]) -> str:
    try:
        return env.expert_action(agent)
    except (AttributeError, NotImplementedError):
        return (info.get("legal_actions") or [HELLO])[0]


def has_expert(env: Any) -> bool:
    observations, _ = env.reset(seed=0)
    try:
        env.expert_action(next(iter(observations)))
    except (AttributeError, NotImplementedError):
        return False
    return True


def is_over(step: tuple[Any, ...]) -> bool:
    return bool(step[3]["__all__"] or step[4]["__all__"])


# The rules. Each has its name for its words.


def observations_are_in_their_spaces_and_steps_have_their_types(make: Make) -> None:
    env = make()
    agents = set(env.possible_agents)
    for seed in range(5):
        first, *steps = play(env, seed)
        for observations, infos in [first, *((step[1], step[-1]) for step in steps)]:
            require(set(observations) <= agents, f"observations are for {short(set(observations))}, not {agents}")
            require(set(infos) <= set(observations), f"infos are for {short(set(infos))}, who read nothing")
            for agent, text in observations.items():
                require(text in env.get_observation_space(agent), f"{short(text)} is not in {agent}'s space")
        require(bool(first[0]), "somebody must act after a reset; there are no observations")
        for actions, observations, rewards, terminateds, truncateds, _ in steps:
            for agent, action in actions.items():
                require(action in env.get_action_space(agent), f"the action {short(action)} is not in {agent}'s space")
            for agent, reward in rewards.items():
                require(agent in agents and math.isfinite(reward), f"the reward of {agent} is {reward!r}")
            for what, flags in (("terminateds", terminateds), ("truncateds", truncateds)):
                require("__all__" in flags, f"{what} must have '__all__'; got {short(flags)}")
                require(all(isinstance(flag, bool) for flag in flags.values()), f"{what} must be bools; got {flags}")
            goes_on = not (terminateds["__all__"] or truncateds["__all__"])
            to_act = [a for a in observations if not (terminateds.get(a) or truncateds.get(a))]
            require(not goes_on or bool(to_act), "an episode goes on, and nobody is to act")


def the_experts_end_the_episode_and_make_no_invalid_move(make: Make) -> None:
    env = make()
    need_experts(env)
    for seed in range(10):
        steps = play(env, seed)[1:]
        require(steps[-1][3]["__all__"], f"seed {seed}: the experts must end the episode; {len(steps)} steps did not")
        for actions, *_, infos in steps:
            invalid = [agent for agent in actions if infos.get(agent, {}).get("is_invalid_action")]
            require(not invalid, f"seed {seed}: the expert's action {short(actions)} was invalid")


def an_expert_changes_nothing_and_answers_alike_when_it_is_asked_twice(make: Make) -> None:
    env = make()
    need_experts(env)
    for seed in range(5):
        observations, _ = env.reset(seed=seed)
        for _ in range(MAX_STEPS):
            before = pickle.dumps(env)
            actions = {agent: env.expert_action(agent) for agent in observations}
            again = {agent: env.expert_action(agent) for agent in observations}
            require(pickle.dumps(env) == before, f"seed {seed}: asking an expert has changed the environment")
            require(actions == again, f"seed {seed}: asked twice, an expert answers differently")
            observations, _, terminateds, truncateds, _ = env.step(actions)
            if terminateds["__all__"] or truncateds["__all__"]:
                break


def legal_actions_are_legal(make: Make) -> None:
    env = make()
    for seed in range(20):
        observations, infos = env.reset(seed=seed)
        if not all("legal_actions" in infos.get(agent, {}) for agent in observations):
            raise NotApplicableError('without info["legal_actions"] there is no opponent that plays at random')
        rng = np.random.default_rng(seed)
        for _ in range(MAX_STEPS):
            actions = {agent: str(rng.choice(infos[agent]["legal_actions"])) for agent in observations}
            observations, _, terminateds, truncateds, infos = env.step(actions)
            invalid = [agent for agent in actions if infos.get(agent, {}).get("is_invalid_action")]
            require(not invalid, f"seed {seed}: the legal action {short(actions)} was called invalid")
            if terminateds["__all__"] or truncateds["__all__"]:
                break


def nonsense_is_an_ordinary_turn_without_reward(make: Make) -> None:
    env = make()
    for text in NONSENSE:
        observations, _ = env.reset(seed=0)
        try:
            step = env.step(dict.fromkeys(observations, text))
        except RllmGymError:
            raise
        except Exception as error:
            raise ContractError(f"{text!r} raised {type(error).__name__}: {one_line(error)}") from error
        for agent in observations:
            reward = step[1].get(agent, 0.0)
            require(reward <= 0, f"{text!r} must not be rewarded; {agent} got {reward!r}")


def acting_out_of_turn_is_an_error(make: Make) -> None:
    env = make()
    observations, _ = env.reset(seed=0)
    waiting = [agent for agent in env.possible_agents if agent not in observations]
    if not waiting:
        raise NotApplicableError("all agents act at the same time")
    try:
        env.step({waiting[0]: HELLO})
    except Exception:
        return
    raise ContractError(f"{waiting[0]} acted while it was the turn of {sorted(observations)}: raise ValueError")


def the_same_seed_gives_the_same_episode_in_new_and_used_environments(make: Make) -> None:
    env = make()
    first = play(env, 7)
    play(env, 8)
    equal(play(env, 7), first, "seed 7, again in the same environment")
    equal(play(make(), 7), first, "seed 7, in a new environment")


def a_copy_made_in_mid_episode_goes_on_alike_and_apart(make: Make) -> None:
    env = make()
    observations, infos = env.reset(seed=1)
    actions = {agent: action_of(env, agent, infos.get(agent, {})) for agent in observations}
    other = pickle.loads(pickle.dumps(env))
    require(env.step(actions) == other.step(actions), "the copy answers another thing")
    require(env.reset(seed=3) == other.reset(seed=3), "after a reset the copy answers another thing")


def no_randomness_comes_from_outside_the_environment(make: Make) -> None:
    check_own_randomness(lambda: play(make(), 3))


def an_item_asked_for_by_its_id_is_the_one_that_a_seed_draws(make: Make) -> None:
    env = make()
    if getattr(env, "item_ids", None) is None:
        raise NotApplicableError("without item_ids, training draws tasks by seeds and evaluation knows no splits")
    other = make(split="eval") if takes(env, "split") else make()
    for seed in range(11, 16):
        drawn = play(env, seed)
        [item_id] = {info["item_id"] for info in drawn[0][1].values()}
        require(item_id in env.item_ids, f'info["item_id"] must be one of item_ids; got {item_id!r}')
        equal(play(other, seed, {"item_id": item_id}), drawn, f"seed {seed} with {item_id!r} asked for")


def splits_share_no_item_and_all_holds_both(make: Make) -> None:
    env = make()
    if not takes(env, "split") or getattr(env, "item_ids", None) is None:
        raise NotApplicableError("without item_ids and a keyword split, evaluation plays what is trained on")
    train, evaluation, everything = (set(make(split=split).item_ids) for split in ("train", "eval", "all"))
    require(bool(train and evaluation), f"each must hold some item; train has {len(train)}, eval {len(evaluation)}")
    require(not train & evaluation, f"{len(train & evaluation)} items are in train and in eval")
    require(train | evaluation == everything, f"all has {len(everything)} items, not those of train and eval")


def everyone_plays_from_every_seat(make: Make) -> None:
    env = make()
    if not getattr(env, "rotates_seats", False):
        raise NotApplicableError("without rotates_seats every agent has one part for good")
    agents = env.possible_agents
    plain = play(env, 5)
    for seating in range(1, len(agents) + 1):
        moved = {agent: agents[(k - seating) % len(agents)] for k, agent in enumerate(agents)}
        expected = [tuple(_renamed(part, moved) for part in step) for step in plain]
        equal(play(env, 5, {"seating": seating}), expected, f"seating {seating}, where everybody moves on by that")


def _renamed(part: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(agent, agent): value for agent, value in part.items()}


def it_plays_alike_with_tokens(make: Make) -> None:
    from rllm_gym.envs.token_multi_agent import TokenMultiAgentEnv  # loads tokenizers and Jinja

    env, tokens = make(), TokenMultiAgentEnv(make())
    observations, _ = tokens.reset(seed=5)
    for actions, texts, rewards, terminateds, *_ in play(env, 5)[1:]:
        require(set(observations) >= set(actions), f"{sorted(actions)} act with texts, {sorted(observations)} here")
        step = tokens.step({agent: tokens.encode_action(text) for agent, text in actions.items()})
        observations = step[0]
        require(set(observations) == set(texts), f"{sorted(texts)} read with texts, {sorted(observations)} here")
        require(step[1:3] == (rewards, terminateds), f"{short(actions)} brings {short(step[1:3])}")


def it_closes_twice(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    env.close()
    env.close()


def rllibs_own_check_passes(make: Make) -> None:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv
    from ray.rllib.utils.pre_checks.env import check_multiagent_environments

    env = make()
    require(isinstance(env, MultiAgentEnv), f"it must be an RLlib MultiAgentEnv; got {type(env).__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_multiagent_environments(env)


RULES: tuple[Callable[[Make], None], ...] = (
    observations_are_in_their_spaces_and_steps_have_their_types,
    the_experts_end_the_episode_and_make_no_invalid_move,
    an_expert_changes_nothing_and_answers_alike_when_it_is_asked_twice,
    legal_actions_are_legal,
    nonsense_is_an_ordinary_turn_without_reward,
    acting_out_of_turn_is_an_error,
    the_same_seed_gives_the_same_episode_in_new_and_used_environments,
    a_copy_made_in_mid_episode_goes_on_alike_and_apart,
    no_randomness_comes_from_outside_the_environment,
    an_item_asked_for_by_its_id_is_the_one_that_a_seed_draws,
    splits_share_no_item_and_all_holds_both,
    everyone_plays_from_every_seat,
    it_plays_alike_with_tokens,
    it_closes_twice,
    rllibs_own_check_passes,
)


def need_experts(env: Any) -> None:
    if not has_expert(env):
        raise NotApplicableError(
            "without expert_action(agent) nothing shows that the tasks can be played, and SFT has no data"
        )
