"""TextArena's games for several players: rules, rewards by player, and what each one reads."""

import functools
import random

import pytest

import rllm_gym
from rllm_gym.envs.contract import check_env
from rllm_gym.envs.textarena.duel_games import DUELS
from rllm_gym.errors import ConfigError, EnvError

pytest.importorskip("textarena")
MAKE = functools.partial(rllm_gym.make_multi_agent, "TextArenaDuel-v0")
GAMES = [(game, n) for game, duel in DUELS.items() for n in sorted({duel.num_players[0], duel.num_players[-1]})]


def play(env, moves, **options):
    """Return what each player read and the last step of an episode of these moves."""
    observations, _ = env.reset(seed=0, options=options or None)
    read = {agent: [text] for agent, text in observations.items()}
    for move in moves:
        step = env.step(dict.fromkeys(observations, move))
        observations = step[0]
        for agent, text in observations.items():
            read.setdefault(agent, []).append(text)
    return read, step


@pytest.mark.promise
@pytest.mark.parametrize(("game", "num_players"), GAMES)
def test_every_game_keeps_the_contract_and_its_reference_players_end_it(game, num_players):
    check_env(MAKE, game=game, num_players=num_players)


def test_at_least_six_games_for_two_and_some_for_more():
    assert sum(2 in duel.num_players for duel in DUELS.values()) >= 6
    assert sum(max(duel.num_players) > 2 for duel in DUELS.values()) >= 3


@pytest.mark.parametrize("seating", [0, 1])
def test_tic_tac_toe_is_won_by_three_in_a_row_from_either_seat(seating):
    env = MAKE()
    moves = ["Action: [0]", "[3]", "Thought: the next one.\nAction: 1", "[4]", "[2]"]
    read, (_, rewards, terminateds, _, infos) = play(env, moves, seating=seating)
    winner, loser = env.player_at(0), env.player_at(1)
    assert (rewards[winner], rewards[loser], terminateds["__all__"]) == (1.0, -1.0, True)
    assert infos[winner]["is_success"] and not infos[loser]["is_success"]
    assert infos[winner]["role"] == "seat_0"
    assert "the next one" not in "".join(read[loser])  # thoughts are one's own
    assert "Tic Tac Toe" in read[loser][0] and "Tic Tac Toe" not in "".join(read[loser][1:])  # nothing is said twice
    assert "won" in read[loser][-1]


def test_one_forbidden_move_is_forgiven_and_the_second_in_a_row_loses():
    env = MAKE()
    _, (observations, _, terminateds, _, infos) = play(env, ["[0]", "[0]"])
    assert list(observations) == ["player_1"] and not terminateds["__all__"]  # the same player again
    assert infos["player_1"]["is_invalid_action"] and "invalid move" in observations["player_1"]
    _, rewards, terminateds, _, infos = env.step({"player_1": "I do not know"})
    assert terminateds["__all__"] and rewards == {"player_0": 1.0, "player_1": -1.0}
    assert infos["player_1"]["is_invalid_action"]


def test_a_number_that_is_too_long_does_not_reach_the_game():
    env = MAKE(game="ConnectFour-v0")
    observations, _ = env.reset(seed=0)
    for _ in range(3):
        observations, _, terminateds, _, infos = env.step({"player_0": "[col 99999999999]"})
        assert (
            infos["player_0"]["is_invalid_action"]
            and not terminateds["__all__"]
            and "too long" in observations["player_0"]
        )
    assert not env.step({"player_0": "[col 3]"})[2]["__all__"]


def test_players_who_talk_are_heard():
    env = MAKE(game="IteratedPrisonersDilemma-v0")
    read, _ = play(env, ["Thought: hm.\nAction: Shall we cooperate?"])
    assert read["player_1"][-1].endswith("Player 0: Shall we cooperate?")


def test_every_seed_is_a_new_instance_and_a_seed_is_one_instance():
    env = MAKE(game="LiarsDice-v0")

    def dice(seed, **options):
        text = env.reset(seed=seed, options=options)[0]["player_0"]
        return text.rpartition("Your current Dice are:")[2]

    assert len({dice(0, item_id=9000 + k) for k in range(20)}) > 15
    assert dice(0, item_id=9007) == dice(1, item_id=9007)


def test_what_models_may_write_never_breaks_a_game():
    """Random strings of what games look for; whatever comes of them, no exception."""
    pieces = [
        "[",
        "]",
        "1",
        "9",
        " ",
        "bid",
        ":",
        ",",
        "col",
        "accept",
        "offer",
        "->",
        "wheat",
        "A",
        "call",
        "play",
        "\u00e9",
        "-",
        "\n",
    ]
    rng = random.Random(0)
    failures = []
    for game, num_players in GAMES:
        env = MAKE(game=game, num_players=num_players)
        for seed in range(15):
            observations, _ = env.reset(seed=seed)
            for _ in range(30):
                text = "".join(rng.choices(pieces, k=rng.randrange(12)))
                text = f"[{text}]" if rng.random() < 0.5 else text
                agent = next(iter(observations))
                try:
                    said = env.expert_action(agent) if rng.random() < 0.6 else text
                    observations, _, terminateds, _, _ = env.step({agent: said})
                except EnvError as error:
                    failures.append(str(error))
                    break
                if terminateds["__all__"]:
                    break
    assert not failures


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"game": "Chess-v0"}, "game must be one of TicTacToe-v0"),
        ({"num_players": 3}, "num_players of TicTacToe-v0 must be 2; got 3"),
        ({"game": "LiarsDice-v0", "num_players": 7}, "must be from 2 to 6; got 7"),
        ({"games": "Nim-v0"}, "Did you mean 'game'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(keywords, message):
    with pytest.raises(ConfigError) as error:
        MAKE(**keywords)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_item_of_another_game_is_refused():
    with pytest.raises(ConfigError, match="items of TicTacToe-v0 are those from 0 to 999; got 1000"):
        MAKE().reset(options={"item_id": 1000})
