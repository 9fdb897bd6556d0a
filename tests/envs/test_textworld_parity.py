"""TextWorld-v0 beside TextWorld's own engine, command by command, on the same game files."""

import random
import re
import warnings
from importlib.metadata import version

import pytest

from rllm_gym.envs.textworld.env import NUM_LEVELS, TextWorldEnv
from rllm_gym.envs.user_cache import cache_folder

pytestmark = [pytest.mark.usefixtures("needs_textworld"), pytest.mark.slow]
# What is said of the program, and not of the house: the prompt with the status line, and the question after the end.
PROMPT = re.compile(r"^>?\s*-= .* =-\d*/?\d*\s*$")
AFTER_THE_END = re.compile(r"^(Would you like to RESTART.*|>\s*)$")
ODD = ("look", "inventory", "examine air", "take everything", "go up", "dance wildly", "eat table", "help", "wait", "z")


def lines(text):
    """What is said, without blank lines, spaces at the ends and what belongs to the program."""
    kept = [line.strip() for line in text.splitlines()]
    return [line for line in kept if line and not AFTER_THE_END.match(line)]


def without_status(said):
    """The room's name may be the last line, as status of the prompt: TextWorld prints it once more at its end."""
    return said[:-1] if said and PROMPT.match(said[-1]) and re.match(r">", said[-1]) else said


def game_file(item):
    level, seed = item % NUM_LEVELS + 1, item // NUM_LEVELS
    return str(cache_folder("textworld") / version("textworld") / f"{level}_{seed}" / "game.z8")


def commands_of(env, rng):
    """The expert's commands with detours: odd ones, and moves that it takes back."""
    while not env.is_success and len(env._history) < 60:
        plan = env.expert_action().partition("Action: ")[2]
        yield rng.choice([*ODD, "go north", "go south", "go east", "go west"]) if rng.random() < 0.4 else plan


@pytest.mark.parametrize("item", [*range(10), 13, 27, 48, 1999])
def test_every_command_says_and_scores_what_textworlds_own_engine_does(item):
    import textworld

    ours = TextWorldEnv()
    opening, _ = ours.reset(seed=0, options={"item_id": item})
    # Without `moves`, which counts those alone that change something; the interpreter's count has all it understood.
    infos = textworld.EnvInfos(objective=True, policy_commands=True, score=True, max_score=True, won=True, lost=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = textworld.start(game_file(item), infos)
        state = theirs.reset()
    said = lines(state.feedback)
    ours_said = lines(opening)
    assert ours_said == without_status(said)[-len(ours_said) :]
    assert opening.startswith(state.objective.strip()[:40])
    moves = state.moves
    for command in commands_of(ours, random.Random(item)):
        assert list(ours._plan) == list(state.policy_commands or ())
        reply, reward, terminated, truncated, info = ours.step(f"Thought: so.\nAction: {command}")
        state, score, done = theirs.step(command)
        assert lines(reply) == without_status(lines(state.feedback)), command
        assert (reward, terminated) == (float(state.won), bool(state.won or state.lost))
        assert (info["is_success"], truncated) == (state.won, False)
        assert info["is_invalid_action"] == (state.moves == moves), command
        moves = state.moves
        if terminated:
            assert done and score == (state.max_score if state.won else score)
            break
    assert ours.is_success
    theirs.close()
    ours.close()


def test_the_gym_of_textworld_plays_the_same(needs_textworld):
    import textworld
    import textworld.gym

    ours = TextWorldEnv()
    for item in (4, 7, 12):
        opening, _ = ours.reset(seed=0, options={"item_id": item})
        name = textworld.gym.register_game(game_file(item), textworld.EnvInfos(policy_commands=True, won=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = textworld.gym.make(name)
            observation, infos = theirs.reset()
        assert lines(opening)[-3:] == without_status(lines(observation))[-3:]
        terminated = False
        while not terminated:
            [command, *_] = infos["policy_commands"]
            reply, reward, terminated, *_ = ours.step(command)
            observation, _, done, infos = theirs.step(command)
            assert lines(reply) == without_status(lines(observation))
            assert (terminated, reward) == (done, float(infos["won"]))
        assert ours.is_success
        theirs.close()
    ours.close()
