"""Kuhn and Leduc poker as text: OpenSpiel's rules, what players read, forbidden moves, and how a move is written."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

import rllm_gym
from rllm_gym.envs.poker.rules import KUHN, LEDUC, move_in
from rllm_gym.errors import ConfigError
from tests.needs import skip_without

skip = pytest.fixture(autouse=True)(lambda: skip_without("open_spiel"))
GAMES = {"KuhnPoker-v0": KUHN, "LeducPoker-v0": LEDUC}


def play(env, moves, **options):
    """Return what each player read, and the rewards, of an episode in which these moves are made in order."""
    observations, _ = env.reset(seed=0, options=options or None)
    read = {agent: [text] for agent, text in observations.items()}
    for move in moves:
        observations, rewards, terminateds, _, infos = env.step(dict.fromkeys(observations, move))
        for agent, text in observations.items():
            read.setdefault(agent, []).append(text)
    assert terminateds["__all__"]
    return read, rewards, infos


def test_kuhn_as_it_is_read():
    env = rllm_gym.make_multi_agent("KuhnPoker-v0")
    read, rewards, infos = play(env, ["pass", "bet", "Bet."], item_id=1)  # J for the first player, K for the second
    assert read == {
        "player_0": [
            "You are the first player. Your card is J.\nYour move: pass or bet?",
            "The other player: bet.\nYour move: pass or bet?",
            "The other player has K.\nYou lose 2 chips.",
        ],
        "player_1": [
            "You are the second player. Your card is K.\nThe other player: pass.\nYour move: pass or bet?",
            "The other player: bet.\nThe other player has J.\nYou win 2 chips.",
        ],
    }
    assert rewards == {"player_0": -2.0, "player_1": 2.0}
    assert [infos[agent]["is_success"] for agent in ("player_0", "player_1")] == [False, True]


@pytest.mark.parametrize(
    ("moves", "seat", "stake"),
    [
        (["fold"], 0, 1),
        (["pass", ""], 1, 1),
        (["pass", "bet", "call"], 0, 1),
        (["bet", "hello"], 1, 1),
        (["pass", "bet", "bet or pass"], 0, 1),
    ],
)
@pytest.mark.parametrize("seating", [0, 1])
def test_a_forbidden_move_in_kuhn_loses_the_stake_so_far(moves, seat, stake, seating):
    env = rllm_gym.make_multi_agent("KuhnPoker-v0")
    _, rewards, infos = play(env, moves, seating=seating)
    loser = env.player_at(seat)
    assert rewards[loser] == -stake and sum(rewards.values()) == 0
    assert infos[loser]["is_invalid_action"] and infos[loser]["role"] == f"seat_{seat}"
    assert not infos[loser]["is_success"] and all(info["is_success"] for agent, info in infos.items() if agent != loser)


# Antes of 1; raises of 2 and 4. In order: nothing more; 2 called before 4 and 4 were raised; a fold out of place.
@pytest.mark.parametrize(
    ("moves", "seat", "stake"),
    [
        (["call", "fold"], 1, 1),
        (["raise", "raise", "raise"], 0, 3),
        (["raise", "call", "raise", "raise", "raise"], 0, 7),
        (["raise", "call", "raise", "raise", "call me"], 0, 7),
        (["raise", "call", "fold"], 0, 3),
    ],
)
def test_a_forbidden_move_in_leduc_loses_the_stake_so_far(moves, seat, stake):
    _, rewards, infos = play(rllm_gym.make_multi_agent("LeducPoker-v0"), moves)
    assert rewards[f"player_{seat}"] == -stake and sum(rewards.values()) == 0
    assert infos[f"player_{seat}"]["is_invalid_action"]


@pytest.mark.parametrize("env_id", GAMES)
def test_every_line_of_play_pays_what_openspiel_pays_and_texts_say_what_is_known(env_id):
    """Walk the whole game: equal texts exactly where OpenSpiel's information states are equal."""
    import pyspiel

    rules = GAMES[env_id]
    env = rllm_gym.make_multi_agent(env_id, split="all")
    game = pyspiel.load_game(rules.game)
    texts_of, states_of, num_lines = {}, {}, 0
    lines = [()]
    while lines:
        history = lines.pop()
        deals = range(len(rules.deals)) if not history else [history[0]]
        for deal in deals:
            observations, infos = env.reset(seed=0, options={"item_id": deal})
            heard = {"player_0": [], "player_1": []}
            rewards, is_over = None, False
            for move in (None, *history[1:]):
                if move is not None:
                    [agent] = observations
                    heard[agent].append(f"> {move}")
                    observations, rewards, terminateds, _, infos = env.step({agent: move})
                    is_over = terminateds["__all__"]
                for agent, text in observations.items():
                    heard[agent].append(text)
            if is_over:
                num_lines += 1
                state = game.new_initial_state()
                moves, cards = list(history[1:]), list(rules.deals[deal])
                while not state.is_terminal():
                    state.apply_action(cards.pop(0) if state.is_chance_node() else rules.moves.index(moves.pop(0)))
                assert list(rewards.values()) == state.returns()
                continue
            [agent] = observations
            known, text = infos[agent]["information_state"], "\n".join(heard[agent])
            assert texts_of.setdefault(known, text) == text and states_of.setdefault(text, known) == known
            lines += [(deal, *history[1:], move) for move in infos[agent]["legal_actions"]]
    assert len(texts_of) == {"kuhn_poker": 12, "leduc_poker": 936}[rules.game]
    # Leduc has 5,520 terminal histories. 120 of them end before the card is laid that is part of a deal here, one of 4.
    assert num_lines == {"kuhn_poker": 30, "leduc_poker": 5520 + 3 * 120}[rules.game]


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("bet", 1), (" PASS\n", 0), ("[bet]", 1), ("Action: pass", 0), ("bet.", 1),
        ("", None), ("I bet", None), ("pass bet", None), ("b et", None), ("Thought: x\nAction: bet", None),
    ],
)  # fmt: skip
def test_without_thoughts_a_turn_is_a_move_and_nothing_else(text, move):
    assert move_in(text, KUHN, thoughts=False) == move


@pytest.mark.parametrize(
    ("text", "move"),
    [("Thought: pass?\nAction: bet", 1), ("pass", 0), ("Thought: pass", None), ("Action: bet\nAction: [pass]", 0)],
)
def test_with_thoughts_the_move_is_what_the_last_action_says(text, move):
    assert move_in(text, KUHN, thoughts=True) == move


def test_the_prompt_says_how_a_turn_is_written():
    plain, thinking = (rllm_gym.make_multi_agent("KuhnPoker-v0", thoughts=thoughts) for thoughts in (False, True))
    assert plain.system_prompts["player_1"].endswith("Answer with your move alone, in one word.")
    assert "Thought: what to do next" in thinking.system_prompts["player_0"]
    [agent] = thinking.reset(seed=0)[0]
    assert thinking.expert_action(agent).startswith("Thought: ")
    assert rllm_gym.make_multi_agent("KuhnPoker-v0", system_prompt="Play.").system_prompts["player_0"] == "Play."


def test_the_splits_hold_every_deal_equally_often():
    for split, num_items in (("train", 540), ("eval", 60), ("all", 600)):
        env = rllm_gym.make_multi_agent("KuhnPoker-v0", split=split)
        assert len(env.item_ids) == num_items
        counts = dict.fromkeys(itertools.permutations(range(3), 2), 0)
        for item_id in env.item_ids:
            env.reset(seed=0, options={"item_id": item_id})
            counts[env.deal] += 1
        assert set(counts.values()) == {num_items // 6}


def test_the_reference_policy_is_nearly_optimal_and_its_moves_are_drawn_anew_by_each_seed():
    import pyspiel

    from rllm_gym.envs.poker.rules import load_game, reference_policy

    assert pyspiel.nash_conv(load_game("kuhn_poker"), reference_policy("kuhn_poker")) < 0.005
    env = rllm_gym.make_multi_agent("KuhnPoker-v0")
    moves = []
    for seed in range(600):
        env.reset(seed=seed, options={"item_id": 4})  # K for the first player
        moves.append(env.expert_action("player_0"))
    chance = dict(reference_policy("kuhn_poker").action_probabilities("2"))[1]
    assert 0.02 < chance < 0.98
    assert np.mean([move == "bet" for move in moves]) == pytest.approx(chance, abs=0.08)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.reset(options={"seats": 1}), 'are "item_id" and "seating"; got \'seats\''),
        (lambda env: env.reset(options={"seating": "x"}), "seating must be a whole number; got 'x'"),
        (lambda env: env.reset(options={"item_id": 600}), "Did you mean 'kuhn_599'"),
        (lambda env: rllm_gym.make_multi_agent("KuhnPoker-v0", thought=True), "Did you mean 'thoughts'"),
        (lambda env: rllm_gym.make_multi_agent("KuhnPoker-v0", system_prompt=3), "system_prompt must be a text; got 3"),
        (lambda env: rllm_gym.make_multi_agent("TextCraft-v0"), "must be an environment of several agents"),
        (lambda env: rllm_gym.make_multi_agent("KuhnPocker-v0"), "Did you mean 'rllm_gym:rllm_gym/KuhnPoker-v0'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(call, message):
    with pytest.raises(ConfigError) as error:
        call(rllm_gym.make_multi_agent("KuhnPoker-v0"))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_gymnasium_makes_it_too_and_without_openspiel_a_reset_says_what_to_install():
    program = (
        "import sys; sys.modules['pyspiel'] = None\n"
        "import gymnasium\n"
        "env = gymnasium.make('rllm_gym:rllm_gym/KuhnPoker-v0')\n"
        "print(env.spec.id, env.possible_agents)\n"
        "env.reset()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "rllm_gym/KuhnPoker-v0 ['player_0', 'player_1']\n"
    assert 'pip install "rllm-gym[games]"' in done.stderr.splitlines()[-1]
