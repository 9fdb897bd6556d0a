"""TextArena, beyond what every environment promises (test_contract.py)."""

import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from rllm_gym.envs.contract import check_env
from rllm_gym.envs.textarena.env import ITEMS_PER_GAME, OVER, TextArenaEnv
from rllm_gym.envs.textarena.experts import EXPERTS
from rllm_gym.envs.textarena.games import FAMILIES, GAMES, Game
from rllm_gym.errors import ConfigError, EnvError

QUICK = ("GuessTheNumber-v0", "LightsOut-v0", "Mastermind-v0", "Minesweeper-v0-small", "Sudoku-v0-very-easy")
QUICK += ("TowerOfHanoi-v0-medium", "FrozenLake-v0-random")


def begin(game, seed=0):
    env = TextArenaEnv(game=game)
    env.reset(seed=0, options={"item_id": GAMES.index(game) * ITEMS_PER_GAME + seed})
    return env


def replies(env, actions):
    return [env.step(action) for action in actions]


@pytest.mark.parametrize("game", QUICK)
def test_each_family_with_a_solver_keeps_the_contract(game):
    check_env(TextArenaEnv, game=game)


@pytest.mark.slow
def test_sokoban_keeps_the_contract():
    check_env(TextArenaEnv, game="Sokoban-v0")


@pytest.mark.slow
@pytest.mark.parametrize("game", [game for game in GAMES if game.partition("-")[0] in EXPERTS])
def test_the_solver_wins_every_size(game):
    for seed in (0, 999):
        env = begin(game, seed)
        for _ in range(200):
            _, reward, is_over, _, info = env.step(env.expert_action())
            assert not info["is_invalid_action"]
            if is_over:
                break
        assert (reward, info["is_success"], info["category"]) == (1.0, True, game)


@pytest.mark.parametrize("game", [game for game in GAMES if not game.startswith(("Sokoban", "Sudoku-v0-hard"))])
def test_an_item_is_textarenas_own_game_for_its_seed(game):
    textarena = pytest.importorskip("textarena")
    outside = random.getstate()
    theirs = textarena.make(f"{game}-raw")
    theirs.reset(num_players=1, seed=17)
    random.setstate(outside)
    messages = [text for _, text, _ in theirs.get_observation()[1]]
    assert Game(game, 17).opening == "\n".join(message.strip() for message in messages)


def test_a_second_reset_shows_nothing_twice():
    env = TextArenaEnv()
    first = env.reset(seed=0)[0]
    assert (
        env.reset(seed=0)[0] == first and first.count("Welcome to Frozen Lake!") == first.count("Current Board:") == 1
    )


@pytest.mark.parametrize("game", ["2048-v0", "Minesweeper-v0"])
def test_games_draw_from_their_own_generators_whatever_else_draws(game):
    actions = ["[up]", "[left]", "[down]", "[right]"] * 10 if game == "2048-v0" else ["[4 4]", "[0 0]", "[7 7]"]
    alone = [replies(begin(game, seed), actions) for seed in range(8)]

    def play(seed):
        env = begin(game, seed)
        return [(env.step(action), random.random())[0] for action in actions]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, range(8))) == alone
    assert alone[0] != alone[1]


@pytest.mark.slow
def test_a_copy_in_another_process_draws_the_same(tmp_path):
    env = begin("2048-v0")
    env.step("[up]")
    (tmp_path / "env").write_bytes(pickle.dumps(env))
    program = "import pickle, sys; env = pickle.load(open(sys.argv[1], 'rb'))\n"
    program += "for action in ('[left]', '[up]', '[right]'): print(env.step(action)[0])"
    said = subprocess.run([sys.executable, "-c", program, tmp_path / "env"], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == "\n".join(env.step(a)[0] for a in ("[left]", "[up]", "[right]")).splitlines()


@pytest.mark.parametrize(
    ("game", "text", "move"),
    [
        ("FrozenLake-v0", "[up]", "[up]"),
        ("FrozenLake-v0", "Right", "[Right]"),
        ("FrozenLake-v0", "I go [ d ], not [up]", "[d]"),
        ("FrozenLake-v0", "go up", None),
        ("FrozenLake-v0", "up]", None),
        ("GuessTheNumber-v0", "12", "[12]"),
        ("GuessTheNumber-v0", "[" + "9" * 5000 + "]", None),
        ("GuessTheNumber-v0", "[\u0663]", None),  # a digit of another script
        ("LightsOut-v0", "Press [1   2]!", "[1 2]"),
        ("LightsOut-v0", "[1]", None),
        ("Mastermind-v0", "1 2 3 4", "[1 2 3 4]"),
        ("Minesweeper-v0", "[1\n2]", "[1 2]"),
        ("Sudoku-v0", "[1 2 3 4]", None),
        ("TowerOfHanoi-v0", "[a,C] [B C]", "[a,C]"),
    ],
)
def test_the_first_move_in_a_text_is_found(game, text, move):
    assert Game(game, 0).move_in(text) == move


def test_a_text_without_a_move_ends_nothing_and_the_second_forbidden_move_in_a_row_ends_the_game():
    env = begin("FrozenLake-v0")
    for _ in range(5):
        text, *rest, info = env.step("no idea")
        assert text == "That is no move. Write [up], [down], [left] or [right]."
        assert rest == [0.0, False, False] and info["is_invalid_action"]
    text, *rest, info = env.step("[up]")
    assert "hit a wall" in text and rest == [0.0, False, False] and info["is_invalid_action"]
    move = env.expert_action()
    assert env.step(move)[4]["is_invalid_action"] is False  # and so the count begins anew
    wall = "[up]" if "[right]" in move else "[left]"
    assert env.step(wall)[1:3] == (0.0, False)
    env.step("no idea")
    _, reward, is_over, _, info = env.step(wall)
    assert is_over
    assert 0 < reward < 1 and info["is_invalid_action"] and not info["is_success"]
    assert env.step("[up]")[:3] == (OVER, 0.0, True)


def test_a_game_lost_brings_the_part_that_was_done():
    env = begin("GuessTheNumber-v0")
    world = env._game.world
    *wrong, last = [n for n in range(1, 21) if n != world.game_number][: world.max_turns + 1]
    for guess in wrong:
        assert env.step(f"[{guess}]")[1:3] == (0.0, False)
    assert env.step("not a number")[1:3] == (0.0, False)  # at the last turn, where TextArena itself would crash
    text, reward, is_over, _, info = env.step(f"[{last}]")
    assert "turn limit" in text and is_over and not info["is_success"]
    assert reward == pytest.approx(1 - abs(last - world.game_number) / 19)


def test_a_high_score_in_2048_is_no_success():
    env = begin("2048-v0-ultra-easy")
    env._game.world.state.game_state |= {"score": 1000, "board": [[2, 4, 2, 4]] * 4}
    assert [env.step("[left]")[1:3] for _ in range(2)] == [(0.0, False), (1.0, True)]
    assert env.is_success is False


def test_2048_has_no_expert_and_says_so():
    with pytest.raises(NotImplementedError, match=r"^TextArenaEnv: 2048-v0 has no expert; those of FrozenLake, "):
        begin("2048-v0").expert_action()


def test_items_keep_their_numbers_whatever_is_chosen():
    env = TextArenaEnv(game=["Sudoku-v0", "2048-v0"], split="eval")
    assert (env.item_ids[0], env.item_ids[100], len(env.item_ids)) == ("textarena_5900", "textarena_30900", 200)
    assert (
        TextArenaEnv(game=None, split="all").num_items == 38_000 == len(TextArenaEnv(game=None, split="all").item_ids)
    )
    assert {game.partition("-")[0] for game in GAMES} == set(FAMILIES) and len(set(GAMES)) == 38


@pytest.mark.parametrize("game", ["Wordle-v0", "Sokoban", "Sudoku-v0-train", [], 3])
def test_an_unknown_game_is_refused_in_one_line(game):
    with pytest.raises(ConfigError, match=r"^TextArenaEnv: game must be an id of TextArena's for 2048, .*; got "):
        TextArenaEnv(game=game)


def test_an_instance_that_cannot_be_made_is_a_failed_environment(monkeypatch):
    from textarena.envs.LightsOut.env import LightsOutEnv

    monkeypatch.setattr(
        LightsOutEnv, "_toggle_lights", lambda *args: None
    )  # no light is on: it divides by their number
    with pytest.raises(EnvError, match="LightsOut-v0 with seed 3 could not be made: ZeroDivisionError"):
        begin("LightsOut-v0", 3)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ConfigError, match=r'^TextArena-v0 needs the textarena package: pip install "rllm-gym\[texta'):
        begin("FrozenLake-v0")
