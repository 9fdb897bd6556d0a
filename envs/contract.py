"""The contract of a text environment: what training and evaluation count on, as rules that can be checked.

An environment of several agents has the rules of `multi_agent_contract.py`.

In the tests of an environment of one's own:

    from rllm_gym.envs.contract import check_env

    def test_contract():
        check_env(MyEnv)

`rllm-gym check-env module:Class` does the same.
"""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium.utils import env_checker

from rllm_gym.envs import multi_agent_contract
from rllm_gym.envs.base import TextEnv
from rllm_gym.envs.contract_findings import (
    NONSENSE,
    ContractError,
    Finding,
    Make,
    NotApplicableError,
    check_own_randomness,
    check_rule,
    equal,
    one_line,
    require,
    short,
    takes,
)
from rllm_gym.envs.text_space import check_text_env
from rllm_gym.errors import RllmGymError

MAX_EXPERT_TURNS = 200


def check_env(make: Make, **kwargs: Any) -> None:
    """Check all rules; a pytest function around it is an environment's test.

    Args:
        make: the environment's class, or a function that makes it at the text level.
        kwargs: keywords that it is always made with.

    Raises:
        ContractError: one line for each broken rule.
        ConfigError, EnvError: the environment cannot be made or played: a package or a server is missing.
    """
    broken = [f"{found.rule}: {found.broken}" for found in findings(functools.partial(make, **kwargs)) if found.broken]
    if broken:
        raise ContractError("\n".join(broken))


def findings(make: Make) -> Iterator[Finding]:
    """Yield the outcome of each rule, in order.

    Raises:
        ConfigError, EnvError: see `check_env`.
    """
    with contextlib.ExitStack() as made:

        def make_and_keep(**kwargs: Any) -> Any:
            env = make(**kwargs)
            made.callback(_close, env)
            return env

        env = make_and_keep()
        if hasattr(env, "possible_agents"):
            rules = multi_agent_contract.RULES
        else:
            check_text_env(env, "check_env")
            rules = RULES
        yield from (check_rule(rule, make_and_keep) for rule in rules)


def _close(env: Any) -> None:
    with contextlib.suppress(Exception):  # that is a rule of its own
        env.close()


def play(env: Any, seed: int, options: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Return everything that an episode shows: (observation, info), then (action, *step) for each turn.

    The expert plays it; without one, six texts are said that mean nothing.
    """
    seen: list[tuple[Any, ...]] = [env.reset(seed=seed, options=options)]
    for turn in range(MAX_EXPERT_TURNS if has_expert(env) else len(NONSENSE)):
        action = env.get_wrapper_attr("expert_action")() if has_expert(env) else NONSENSE[turn]
        seen.append((action, *env.step(action)))
        if seen[-1][3] or seen[-1][4]:
            break
    return seen


def has_expert(env: Any) -> bool:
    written = getattr(type(env.unwrapped), "expert_action", None)
    return written is not None and written is not TextEnv.expert_action


# The rules. Each has its name for its words.


def observations_are_in_their_space_and_steps_have_their_types(make: Make) -> None:
    env = make()
    for seed in range(5):
        for step in play(env, seed):
            observation, info = step[-5 if len(step) > 2 else 0], step[-1]
            require(observation in env.observation_space, f"{short(observation)} is not in {env.observation_space}")
            require(isinstance(info, dict), f"info must be a dictionary; got {short(info)}")
            for key, kind in (("item_id", str), ("category", str), ("is_success", bool), ("is_invalid_action", bool)):
                is_there = key in info or isinstance(env.unwrapped, TextEnv)
                value = info.get(key)
                require(
                    not is_there or isinstance(value, kind), f"info[{key!r}] must be a {kind.__name__}; got {value!r}"
                )
            if len(step) > 2:
                action, _, reward, terminated, truncated, _ = step
                require(action in env.action_space, f"the action {short(action)} is not in {env.action_space}")
                require(math.isfinite(reward), f"a reward must be a finite number; got {reward!r}")
                for what, value in (("terminated", terminated), ("truncated", truncated)):
                    require(isinstance(value, bool), f"{what} must be a bool; got {value!r}")


def info_says_whether_the_task_is_solved(make: Make) -> None:
    env = make()
    infos = [env.reset(seed=0)[1], env.step(NONSENSE[0])[-1]]
    if "is_success" not in infos[1]:
        raise NotApplicableError('without info["is_success"] every episode counts as a failure in success_rate')
    require(not infos[0].get("is_success", False), "is_success must be False at reset")


def the_expert_succeeds_and_its_last_step_terminates(make: Make) -> None:
    env = make()
    _need_expert(env)
    for seed in range(10):
        steps = play(env, seed)[1:]
        *before, last = steps
        where = f"seed {seed}"
        require(last[3] is True, f"{where}: the expert must end the episode; it had not after {len(steps)} turns")
        require(not last[4] and not any(step[4] for step in before), f"{where}: the expert's episode was truncated")
        require(last[-1].get("is_success", True) is True, f"{where}: the expert's last step must be a success")
        require(
            not any(step[-1].get("is_success", False) for step in before), f"{where}: a success before the last step"
        )
        total = sum(step[2] for step in steps)
        require(total > 0, f"{where}: the expert's rewards must add up to more than 0; got {total}")
        invalid = [step[0] for step in steps if step[-1].get("is_invalid_action", False)]
        require(not invalid, f"{where}: the expert's action was invalid: {short(invalid[0]) if invalid else ''}")


def the_expert_changes_nothing_and_answers_in_any_state(make: Make) -> None:
    env = make()
    _need_expert(env)

    def ask(where: str) -> Any:
        before = _frozen(env)
        answers = [env.get_wrapper_attr("expert_action")() for _ in range(2)]
        require(_frozen(env) == before, f"{where}: asking the expert has changed the environment")
        require(answers[0] == answers[1], f"{where}: asked twice, the expert answers differently")
        require(answers[0] in env.action_space, f"{where}: {short(answers[0])} is not in {env.action_space}")
        return answers[0]

    for seed in range(5):
        actions = [step[0] for step in play(env, seed)[1:]]
        env.reset(seed=seed)
        for action in actions:
            require(ask(f"seed {seed}") == action, f"seed {seed}: the expert plays a task in two ways")
            env.step(action)
        ask(f"seed {seed}, after the end")
    env.reset(seed=0)
    for text in NONSENSE:
        _, _, terminated, truncated, _ = env.step(text)
        ask(f"after {text!r}")
        if terminated or truncated:
            env.reset(seed=0)


def nonsense_is_an_ordinary_turn_without_reward(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    for text in NONSENSE:
        try:
            observation, reward, terminated, truncated, info = env.step(text)
        except RllmGymError:
            raise
        except Exception as error:
            raise ContractError(f"{text!r} raised {type(error).__name__}: {one_line(error)}") from error
        require(observation in env.observation_space, f"the reply to {text!r} is not in {env.observation_space}")
        require(reward <= 0, f"{text!r} must not be rewarded; got {reward!r}")
        require(not info.get("is_success", False), f"{text!r} must not solve the task")
        if terminated or truncated:
            env.reset(seed=0)


def the_same_seed_gives_the_same_episode_in_new_and_used_environments(make: Make) -> None:
    env = make()
    first = play(env, 7)
    play(env, 8)
    equal(play(env, 7), first, "seed 7, again in the same environment")
    equal(play(make(), 7), first, "seed 7, in a new environment")


def different_seeds_give_different_tasks(make: Make) -> None:
    env = make()
    ids = getattr(env.unwrapped, "item_ids", None)
    if ids is not None and len(ids) == 1:
        raise NotApplicableError("there is one task")

    def task(seed: int) -> Any:
        return play(env, seed) if ids is None else env.reset(seed=seed)[1].get("item_id")

    if ids is None and not has_expert(env):
        raise NotApplicableError("without item_ids or an expert, hidden tasks look alike")
    first = task(0)
    is_drawn = any(task(seed) != first for seed in range(1, 10))
    require(is_drawn, "seeds 0 to 9 all give the same: draw the task from self.np_random")


def no_randomness_comes_from_outside_the_environment(make: Make) -> None:
    check_own_randomness(lambda: play(make(), 3))


def an_item_asked_for_by_its_id_is_the_one_that_a_seed_draws(make: Make) -> None:
    env = make()
    if getattr(env.unwrapped, "item_ids", None) is None:
        raise NotApplicableError("without item_ids, training draws tasks by seeds and evaluation knows no splits")
    other = make(split="eval") if takes(env, "split") else make()
    for seed in range(11, 16):
        drawn = play(env, seed)
        item_id = drawn[0][1].get("item_id")
        require(item_id in env.unwrapped.item_ids, f'info["item_id"] must be one of item_ids; got {item_id!r}')
        equal(play(other, seed, {"item_id": item_id}), drawn, f"seed {seed} with {item_id!r} asked for")


def splits_share_no_item_and_all_holds_both(make: Make) -> None:
    env = make()
    if not takes(env, "split") or getattr(env.unwrapped, "item_ids", None) is None:
        raise NotApplicableError("without item_ids and a keyword split, evaluation plays what is trained on")
    train, evaluation, everything = (list(make(split=split).unwrapped.item_ids) for split in ("train", "eval", "all"))
    require(bool(train and evaluation), f"each must hold some item; train has {len(train)}, eval {len(evaluation)}")
    shared = sorted(set(train) & set(evaluation))
    require(not shared, f"{len(shared)} items are in train and in eval, like {shared[0] if shared else ''!r}")
    # There may be more: items that others' lists name.
    missing = sorted((set(train) | set(evaluation)) - set(everything))
    require(
        not missing, f"all must hold train and eval; {len(missing)} items are missing, like {(missing or [''])[0]!r}"
    )


def it_renders_what_its_metadata_promise(make: Make) -> None:
    modes = make().metadata.get("render_modes") or []
    if not modes:
        raise NotApplicableError("metadata name no render_modes")
    for mode in modes:
        env = make(render_mode=mode)
        env.reset(seed=0)
        shown = env.render()
        env.close()
        if mode == "ansi":
            require(isinstance(shown, str), f"ansi must be a text; got {short(shown)}")
        elif mode == "rgb_array":
            is_picture = isinstance(shown, np.ndarray) and shown.dtype == np.uint8 and shown.shape[2:] == (3,)
            require(is_picture, f"rgb_array must be height x width x 3 of uint8; got {short(shown)}")


def it_plays_alike_with_tokens(make: Make) -> None:
    from rllm_gym.envs.wrappers import TokenEnv  # loads tokenizers and Jinja

    env, tokens = make(), TokenEnv(make())
    ids, _ = tokens.reset(seed=5)
    require(ids in tokens.observation_space, f"the first observation has {len(ids)} tokens")
    for action, _, reward, terminated, *_ in play(env, 5)[1:] if has_expert(env) else ():
        step = tokens.step(tokens.encode_action(action))
        require(step[0] in tokens.observation_space, f"an observation has {len(step[0])} tokens")
        require(step[1:3] == (reward, terminated), f"{short(action)} brings {step[1:3]}; as text {reward, terminated}")


def it_closes_twice(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    env.close()
    env.close()


def gymnasiums_own_check_passes_without_a_warning(make: Make) -> None:
    env = make().unwrapped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env_checker.check_env(env, skip_render_check=True)
    require(not caught, re.sub(r"\x1b\[\d+m", "", str(caught[0].message)) if caught else "")


RULES: tuple[Callable[[Make], None], ...] = (
    observations_are_in_their_space_and_steps_have_their_types,
    info_says_whether_the_task_is_solved,
    the_expert_succeeds_and_its_last_step_terminates,
    the_expert_changes_nothing_and_answers_in_any_state,
    nonsense_is_an_ordinary_turn_without_reward,
    the_same_seed_gives_the_same_episode_in_new_and_used_environments,
    different_seeds_give_different_tasks,
    no_randomness_comes_from_outside_the_environment,
    an_item_asked_for_by_its_id_is_the_one_that_a_seed_draws,
    splits_share_no_item_and_all_holds_both,
    it_renders_what_its_metadata_promise,
    it_plays_alike_with_tokens,
    it_closes_twice,
    gymnasiums_own_check_passes_without_a_warning,
)


def _need_expert(env: Any) -> None:
    if not has_expert(env):
        raise NotApplicableError(
            "without expert_action() nothing shows that the tasks can be solved, and SFT has no data"
        )


def _frozen(env: Any) -> bytes | None:
    """Return an environment's state, or None where it cannot be pickled."""
    try:
        return pickle.dumps(env.unwrapped)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
