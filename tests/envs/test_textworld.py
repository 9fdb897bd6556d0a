"""TextWorld, beyond what every environment promises (test_contract.py)."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import gymnasium
import psutil
import pytest

from rllm_gym.envs import game_process
from rllm_gym.envs.textworld import games
from rllm_gym.envs.textworld.env import NOT_UNDERSTOOD, OVER, TextWorldEnv
from rllm_gym.envs.textworld.games import Game, as_command
from rllm_gym.errors import ConfigError, EnvError

pytestmark = pytest.mark.usefixtures("needs_textworld")
# go north, take the scented latchkey, unlock and open the hatch, go east, close the hatch
HATCH = "textworld_5"


def begin(env, item):
    return env.reset(seed=0, options={"item_id": item})[0]


def solve(env, item):
    """Return what the expert's episode shows."""
    seen = [begin(env, item)]
    while not env.is_success:
        seen.append((env.expert_action(), *env.step(env.expert_action())))
        assert len(seen) < 40
    return seen


def test_the_goal_the_room_and_the_replies_are_plain():
    env = TextWorldEnv()
    opening = begin(env, HATCH)
    goal, room = opening.split("\n\n", 1)
    assert "fudge scented hatch" in goal and room.startswith("-= Laundromat =-\n")
    assert "$$" not in opening and ">" not in opening and "0/1" not in opening
    assert env.step("Action: look")[0].startswith("-= Laundromat =-\n")
    assert env.step("")[0] == "I beg your pardon?"
    last = solve(env, HATCH)[-1]
    assert last[1].startswith("You close fudge scented hatch.") and "RESTART" not in last[1]


@pytest.mark.parametrize("level", range(1, 11))
def test_a_quest_takes_as_many_commands_as_its_level(level):
    env = TextWorldEnv(levels=level)
    episode = solve(env, level - 1)
    assert len(episode) - 1 == level
    assert [step[2] for step in episode[1:]] == [0.0] * (level - 1) + [1.0]
    assert env.category == f"quest_{level}" and env.step("look")[:4] == (OVER, 0.0, True, False)


def test_the_expert_finds_back_after_detours():
    env = TextWorldEnv()
    begin(env, HATCH)
    for command in ("go north", "take fudge scented latchkey", "go south", "drop fudge scented latchkey"):
        env.step(command)
    assert env.expert_action().endswith("Action: take fudge scented latchkey")
    assert env.step(env.expert_action())[0].startswith("You pick up the fudge scented latchkey")
    while not env.is_success:
        env.step(env.expert_action())


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("Go North", "go north"),
        (" take\n the   key ", "take the key"),
        ("\x11 \x00 lo\x1bok \x7f", "look"),
        ("caf\u00e9 \U0001f332 \ud800", "caf? ? ?"),
        ("x" * 500, "x" * 190),
        ("\\boxed{look}", "boxed{look}"),
        ("\\n", "n"),
        ("open type q safe", "open type q safe"),
        *[
            (text, "")
            for text in ("quit", "Q", "save", "undo", "look. quit", "look then save", "look, undo", "tw-print x")
        ],
    ],
)
def test_texts_become_one_line_and_commands_to_the_program_none(text, command):
    assert as_command(text) == command


def test_the_program_is_out_of_reach(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = TextWorldEnv()
    begin(env, HATCH)
    for text in ("save", "script", "restart", "look. save"):
        assert env.step(text)[:4] == (NOT_UNDERSTOOD, 0.0, False, False)
    assert not list(tmp_path.iterdir())
    assert "Are you sure" not in env.step("yes")[0]


@pytest.mark.parametrize(
    ("action", "is_invalid"),
    [("take the moon", True), ("xyzzy", True), ("save", True), ("go up", False), ("help", False), ("look", False)],
)
def test_an_action_is_invalid_where_the_game_makes_nothing_of_it(action, is_invalid):
    env = TextWorldEnv()
    begin(env, HATCH)
    for _ in range(2):
        assert env.step(action)[4]["is_invalid_action"] is is_invalid


def test_games_in_several_threads_are_those_of_one():
    items = [0, 1, 2, 3]
    alone = [solve(TextWorldEnv(), item) for item in items]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda item: solve(TextWorldEnv(), item), items)) == alone


@pytest.fixture
def no_games(monkeypatch):
    """No game is open, so that the next one starts a server; returns what tells that server's folder."""
    monkeypatch.setattr(games.GAMES, "server", None)

    def folder():
        return Path(f"/proc/{games.GAMES.server.process.pid}/cwd").resolve()

    return folder


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty cache; returns what lists the games in it."""
    monkeypatch.setenv("RLLM_GYM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "textworld" / version("textworld")
    return lambda: {path.name: path for path in folder.iterdir() if path.is_dir()}


@pytest.mark.slow
def test_a_game_is_the_same_when_it_is_made_anew(no_games, kept):
    before = solve(env := TextWorldEnv(), HATCH)
    folder = no_games()
    env.close()
    assert not folder.exists() and games.GAMES.server is None
    shutil.rmtree(kept()["6_0"])
    assert solve(env, HATCH) == before
    env.close()


MADE = """if True:
    import sys
    from rllm_gym.envs.textworld.games import Game
    print(Game(2, 0).plan)
"""


@pytest.mark.slow
def test_a_game_is_made_once_for_all_processes(kept):
    """Three at a time want a game, of which one makes it; later ones find it, and nothing else is left."""
    several = [subprocess.Popen([sys.executable, "-c", MADE], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    plans = {process.communicate(timeout=120)[0] for process in several}
    [folder] = kept().values()
    assert folder.name == "2_0" and sorted(path.name for path in folder.iterdir()) == ["game.json", "game.z8"]
    made = folder.stat().st_ctime_ns
    plans.add(subprocess.run([sys.executable, "-c", MADE], capture_output=True, text=True, timeout=120).stdout)
    assert len(plans) == 1 and plans != {""}
    assert folder.stat().st_ctime_ns == made


@pytest.mark.slow
def test_a_game_whose_making_was_killed_is_made_again_and_what_it_left_goes(kept):
    Game(1, 0).process.close()
    folder = kept()["1_0"]
    folder.rename(folder.with_name("1_0.killed"))
    (folder.with_name("1_0.killed") / "game.json").unlink()
    Game(1, 0).process.close()
    assert set(kept()) == {"1_0"} and (folder / "game.json").exists()


@pytest.mark.slow
def test_resets_keep_the_files_and_nothing_is_written_elsewhere(kept, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "home")
    env = TextWorldEnv()
    begin(env, 0)
    begin(env, 1)
    assert set(kept()) == {"1_0", "2_0"}
    assert not list((tmp_path / "home").iterdir())
    env.close()


@pytest.mark.slow
def test_a_forked_process_begins_its_own_games_and_leaves_its_parents_alone():
    env = TextWorldEnv()
    begin(env, HATCH)
    env.step("go north")
    reader, writer = os.pipe()
    if os.fork() == 0:  # with the parent's environment, in the middle of an episode
        reply = env.step("inventory")[0]
        env.close()
        os.write(writer, reply.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as said:
        assert said.read() == env.step("inventory")[0] != ""


# What native code may do.

CONTROL = ["Action: \x11", "Action: \x00", "Action: take \x00\x1b[A key", "\x7f\x85\ud800"]


@pytest.mark.parametrize("action", CONTROL)
def test_control_characters_are_harmless_at_both_levels(action):
    env = gymnasium.make("rllm_gym:rllm_gym/TextWorld-v0", obs_type="text")
    env.reset(seed=0, options={"item_id": HATCH})
    assert env.step(action)[1:4] == (0.0, False, False)
    assert env.step("Action: look")[0].startswith("-= Laundromat =-\n")
    env.close()
    env = gymnasium.make("rllm_gym:rllm_gym/TextWorld-v0")
    env.reset(seed=0, options={"item_id": HATCH})
    encode = env.get_wrapper_attr("encode_action")
    ids = encode(action.encode("utf-8", "replace").decode())
    assert env.step(ids)[1:4] == (0.0, False, False)
    assert env.step(encode("Action: look"))[4]["messages"][-1]["content"].startswith("-= Laundromat =-\n")
    env.close()


def test_a_crash_of_the_interpreter_is_a_failed_environment_alone():
    env, other = TextWorldEnv(), TextWorldEnv()
    begin(env, HATCH), begin(other, HATCH)
    with pytest.raises(EnvError, match="the process of level 6 with seed 0 has died"):
        env._game.step("\x11")
    with pytest.raises(EnvError, match="has died"):
        env.step("look")
    assert other.step("look")[0].startswith("-= Laundromat =-")
    assert solve(env, HATCH)


def test_what_begins_with_a_backslash_is_a_wrong_command():
    env = TextWorldEnv()
    begin(env, HATCH)
    for action in ("\\boxed{look}", "\\n", "\\text{go east}", "\\"):
        assert env.step(f"Action: {action}")[1:4] == (0.0, False, False)
    assert solve(env, HATCH)
    env.close()


def test_a_game_that_hangs_ends_with_a_killed_server():
    env = TextWorldEnv()
    begin(env, HATCH)
    game, server = psutil.Process(env._game.process.pid), games.GAMES.server.process
    threading.Thread(target=_ask, args=[env], daemon=True).start()
    time.sleep(0.5)
    server.kill()
    game.wait(10)  # raises if it lives on


def _ask(env):
    with contextlib.suppress(EnvError):
        env._game.step("\x00")


def test_a_hang_of_the_interpreter_is_ended_and_a_failed_environment(monkeypatch):
    env = TextWorldEnv()
    begin(env, HATCH)
    process = psutil.Process(env._game.process.pid)
    monkeypatch.setattr(game_process, "STEP_TIMEOUT_S", 0.5)
    with pytest.raises(EnvError, match=r"level 6 with seed 0 must answer within 0\.5 s; got nothing"):
        env._game.step("\x00")
    process.wait(10)  # raises if it lives on
    monkeypatch.undo()
    assert solve(env, HATCH)


@pytest.mark.slow
def test_nothing_outlives_a_killed_process_not_even_a_game_that_hangs(tmp_path):
    program = """if True:
        import os, threading
        from rllm_gym.envs.textworld import games
        game = games.Game(1, 0)
        threading.Thread(target=game.step, args=["\\0"], daemon=True).start()
        print(games.GAMES.server.process.pid, game.process.pid, flush=True)
        threading.Event().wait()
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        started = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        folder = Path(started[0].cwd())
        assert folder.exists()
        process.kill()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == [] and not folder.exists()


def test_splits_hold_all_levels_and_draws_can_be_restricted():
    evaluation = TextWorldEnv(split="eval").item_ids
    assert (evaluation[0], len(evaluation)) == ("textworld_1800", 200)
    assert TextWorldEnv(levels=[2, 10], split="eval").item_ids[:3] == [
        "textworld_1801",
        "textworld_1809",
        "textworld_1811",
    ]
    for levels in (0, 11, [], "1", [True]):
        with pytest.raises(ConfigError, match=r"^TextWorldEnv: levels must be numbers from 1 to 10; got "):
            TextWorldEnv(levels=levels)


@pytest.mark.slow
def test_a_game_that_cannot_be_made_is_a_failed_environment(kept):
    keeper, env = Game(1, 0), TextWorldEnv()
    in_the_way = kept()["1_0"].with_name("1_77.lock")
    in_the_way.mkdir()
    with pytest.raises(EnvError, match="level 1 with seed 77 could not be made: IsADirectoryError"):
        begin(env, 770)
    in_the_way.rmdir()
    assert begin(env, 770)
    env.close()
    keeper.process.close()


def test_without_the_package_the_error_names_the_extra(no_games, monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(
        ConfigError, match=r'^TextWorld-v0 needs the textworld package: pip install "rllm-gym\[textworld\]"'
    ):
        begin(TextWorldEnv(), 0)
    monkeypatch.undo()
