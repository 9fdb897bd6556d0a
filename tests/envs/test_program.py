"""Program-v0: programs that take the policy for OpenAI's server, at the text level and as episodes of the loop."""

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.program.conversation import note_of_replaced
from rllm_gym.envs.program.env import ProgramEnv
from rllm_gym.envs.program.requests import Call, ModelRequest, RequestError
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.tool_calls import load_parser, parse
from rllm_gym.training.metrics import episode_metrics
from rllm_gym.types import AGENT, Completion, EndReason, SamplingParams, TaskGroup

pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from rllm_gym.envs.program.endpoint import Session

TASKS = [{"question": "2+2?"}]
# What the programs below begin with: `ask` returns the body of an answer, an error's, too.
HEAD = """
import json, os, sys, threading, time, urllib.error, urllib.request
task = json.loads(os.environ["RLLM_GYM_TASK"])

def post(url, key, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": "Bearer " + key})
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return {"status": error.code, **json.load(error)}

def ask(messages, key=os.environ["OPENAI_API_KEY"], **options):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return post(url, key, {"model": "any", "messages": messages, **options})

def user(text):
    return {"role": "user", "content": text}

def said(body, k=0):
    return body["choices"][k]["message"]
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return the options of an environment whose program is some source, or a function that does the same."""

    def program(source, *, is_function=False, **options):
        source = HEAD + textwrap.dedent(source)
        file = tmp_path / f"agent_{tmp_path.name}.py"
        if not is_function:
            file.write_text(source)
            return {"command": ["python", str(file)], "tasks": TASKS, **options}
        file.write_text(f"def run(task):\n    exec({source!r}, {{}})\n    return 1\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        return {"command": f"{file.stem}:run", "tasks": TASKS, **options}

    yield program
    sys.modules.pop(f"agent_{tmp_path.name}", None)


@pytest.fixture
def make(program):
    envs = []

    def make(source, **options):
        envs.append(ProgramEnv(**program(source, **options)))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


class ScriptedEngine:
    """Answers every request by a function of its messages; an answer is text, or ids."""

    policy_version, max_context_tokens = 0, 32_768

    def __init__(self, chat, answer):
        self.chat, self.answer, self.prompts, self._requests = chat, answer, [], []

    def submit(self, request):
        self._requests.append(request)

    def step(self):
        done = []
        for request in self._requests:
            self.prompts.append(list(request.prompt_ids))
            answer = self.answer(request.messages)
            ids = self.chat.encode_action(answer) if isinstance(answer, str) else answer
            ids = np.asarray(ids, np.int64)
            done.append(Completion(request.request_id, ids, -np.arange(len(ids), dtype=np.float32) / 8))
        self._requests = []
        return done

    def abort(self, request_id):
        self._requests = [request for request in self._requests if request.request_id != request_id]

    def close(self):
        pass


@pytest.fixture
def play(program):
    """Play an episode of a program in the rollout loop; return its group and the engine."""
    loops = []

    def play(source, answer, *, horizon=8, tokenizer=None, max_model_len=2048, **options):
        chat = tokenizer or ChatTokenizer()
        engine = ScriptedEngine(chat, answer)
        loop = RolloutLoop(
            lambda index: gymnasium.make(
                "rllm_gym/Program-v0", tokenizer=chat, disable_env_checker=True, **program(source, **options)
            ),
            {"main": engine},
            module_of=lambda agent_id, episode: "main",
            num_envs=1,
            num_env_workers=1,
            params=SamplingParams(max_new_tokens=256),
            max_model_len=max_model_len,
            max_retries=0,
        )
        loops.append(loop)
        loop.submit([TaskGroup((0, 0, 0), None, 1)], max_episode_steps=horizon)
        [group] = loop.finished_groups()
        return group, engine

    yield play
    for loop in loops:
        loop.close()


DIALOGUE = """
messages = [{"role": "system", "content": "Be brief."}, user(task["question"])]
messages += [said(ask(messages)), user("Sure?")]
print(said(ask(messages))["content"])
print(json.dumps(float(said(ask([*messages, {"role": "assistant", "content": "yes"}, user("?")]))["content"] == "ok")))
"""


def test_a_programs_requests_are_observations_and_its_last_line_is_its_reward(make):
    env = make(DIALOGUE)
    assert env.reset(seed=0)[0] == "[system]\nBe brief.\n\n2+2?"
    assert env.step("4")[:4] == ("Sure?", 0.0, False, False)
    assert env.step("yes")[0] == "?"
    _, reward, terminated, truncated, info = env.step("ok")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["is_success"], info["num_requests"]) == (True, 3)


def letters(chat, text):
    """Return the ids of a text, each character by itself: what no tokenizer encodes so, but a policy may sample."""
    return [i for char in text for i in chat.encode_action(char)[:-1]] + [chat.end_of_turn_id]


def test_a_request_that_goes_on_adds_to_the_sample_with_the_ids_that_were_sampled(play):
    chat = ChatTokenizer()
    answers = iter([letters(chat, "four it is"), letters(chat, "yes"), letters(chat, "ok")])
    group, engine = play(DIALOGUE, lambda messages: next(answers), tokenizer=chat)
    [episode] = group.episodes
    turns = episode.streams[AGENT].turns
    assert [turn.context_index for turn in turns] == [0, 0, 0]
    read = []
    for turn, prompt in zip(turns, engine.prompts, strict=True):
        read += turn.observation_ids.tolist()
        assert read == prompt
        read += turn.action_ids.tolist()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    for answer, question in (("four it is", "Sure?"), ("yes", "?"), ("ok", None)):
        messages += [{"role": "assistant", "content": answer}] + [{"role": "user", "content": question}] * bool(
            question
        )
    whole = chat.decode(chat.encode_chat(messages, add_generation_prompt=False))
    assert chat.decode(read) == whole.removesuffix("\n")
    assert turns[0].action_ids.tolist() == letters(chat, "four it is")
    assert turns[-1].reward == 1.0 and episode.end_reason == EndReason.TERMINATED


def test_what_a_program_edits_is_context_and_begins_a_sample(play):
    source = """
    first = said(ask([user("a")]))
    ask([user("a"), {"role": "assistant", "content": first["content"] + "!"}, user("b")])
    ask([user("a"), first, user("c")])
    print(1)
    """
    chat = ChatTokenizer()
    group, engine = play(source, lambda messages: letters(chat, "hello"), tokenizer=chat)
    turns = group.episodes[0].streams[AGENT].turns
    assert [turn.context_index for turn in turns] == [0, 1, 2]
    assert [turn.observation_ids.tolist() for turn in turns] == engine.prompts
    spelt = letters(chat, "hello")[:-1]
    assert not _holds(engine.prompts[1], spelt)  # the words of the program, in its own tokens
    assert _holds(engine.prompts[2], spelt)  # the model's, as it sampled them


def _holds(ids, part):
    return any(ids[k : k + len(part)] == part for k in range(len(ids)))


def test_requests_at_once_and_choices_are_samples_of_their_own(play):
    source = """
    bodies = []
    threads = [threading.Thread(target=lambda k=k: bodies.append((k, ask([user(f"say {k}")])))) for k in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(said(body)["content"] == f"said {k}" for k, body in bodies), bodies
    both = ask([user("say 7")], n=2)
    assert [choice["message"]["content"] for choice in both["choices"]] == ["said 7", "said 7"]
    assert both["usage"]["completion_tokens"] > 2
    print(1)
    """
    group, _ = play(source, lambda messages: messages[-1]["content"].replace("say", "said"))
    turns = group.episodes[0].streams[AGENT].turns
    assert [turn.context_index for turn in turns] == [0, 1, 2, 3, 4]
    assert turns[3].observation_ids.tolist() == turns[4].observation_ids.tolist()


def test_stop_and_max_tokens_cut_an_answer_and_the_turn(play):
    source = """
    body = ask([user("a")], stop=[" END"])
    assert (said(body)["content"], body["choices"][0]["finish_reason"]) == ("the", "stop"), body
    more = ask([user("a"), said(body), user("b")], max_tokens=2)
    assert more["choices"][0]["finish_reason"] == "length" and more["usage"]["completion_tokens"] == 2
    print(1)
    """
    group, _ = play(source, lambda messages: "the END of it")
    turns = group.episodes[0].streams[AGENT].turns
    assert [turn.context_index for turn in turns] == [0, 0]
    assert ChatTokenizer().decode(turns[0].action_ids) == "the END"
    assert len(turns[1].action_ids) == 2


def test_anthropics_client_is_told_which_text_has_ended_an_answer(play):
    pytest.importorskip("anthropic")
    source = """
    from anthropic import Anthropic
    options = {"model": "m", "max_tokens": 50, "messages": [user("a")]}
    for stops in (["zz", " END"], ["zz"]):
        whole = Anthropic().messages.create(**options, stop_sequences=stops)
        with Anthropic().messages.stream(**options, stop_sequences=stops) as stream:
            streamed = stream.get_final_message()
        for message in (whole, streamed):
            found = message.stop_reason, message.stop_sequence
            assert found == (("stop_sequence", " END") if " END" in stops else ("end_turn", None)), found
    print(1)
    """
    group, _ = play(source, lambda messages: "the END of it")
    assert not group.failed, group.failed[0].error


def test_beyond_the_horizon_requests_are_refused_and_the_episode_is_truncated(play):
    source = """
    answers = [ask([user("a")]) for _ in range(3)]
    assert [answer.get("status") for answer in answers] == [None, None, 400]
    assert answers[2]["error"]["code"] == "max_turns"
    print(0.5)
    """
    group, _ = play(source, lambda messages: "b", horizon=2)
    [episode] = group.episodes
    assert (episode.end_reason, episode.streams[AGENT].total_reward) == (EndReason.HORIZON, 0.5)
    group, _ = play('while True: said(ask([user("a")]))', lambda messages: "b", horizon=2)
    assert (group.episodes[0].end_reason, group.episodes[0].streams[AGENT].total_reward) == (EndReason.HORIZON, 0.0)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('ask([user("a")]); raise RuntimeError("no wood")', "exit code 1.*no wood"),
        ('ask([user("a")]); os.kill(os.getpid(), 9)', "exit code 137"),
        ('ask([user("a")]); print("done")', "last line must be its reward"),
        ('ask([user("a")]); print("NaN")', "finite number"),
        ('ask([user("a")]); print("9" * 400)', "finite number"),
        ('ask([user("a")]); print("[" * 100_000)', "last line must be its reward"),
        ("""ask([user("a")]); print('{"reward": 0, "is_success": "no"}')""", "is_success must be true or false"),
        ("print(1)", "without a request.*nothing to learn from. Its"),
        ('ask([user("a")], audio={}); print(1)', "nothing to learn from; the last of 1 errors: audio"),
        ('ask([user("a")]); print("stuck", flush=True); threading.Event().wait()', "timeout_s = 2 s.*stuck"),
    ],
)
def test_a_program_that_fails_fails_its_episode_with_its_last_lines(make, source, why):
    env = make(source, timeout_s=2.0 if "stuck" in source else 60.0)
    with pytest.raises(EnvError, match=why):
        env.reset(seed=0)
        env.step("b")
    assert env._child is None


def test_a_failure_in_the_loop_is_no_reward_of_0(play):
    group, _ = play('ask([user("a")]); print(0, flush=True); sys.exit("no wood")', lambda messages: "b")
    assert not group.episodes
    assert "no wood" in group.failed[0].error


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


LEAVES_A_CHILD = """
import subprocess
left = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
open(os.environ["PIDS"], "w").write(f"{left.pid} {os.getpid()} {os.getcwd()}")
ask([user("a")])
"""


@pytest.mark.parametrize("is_function", [False, True], ids=["program", "function"])
@pytest.mark.parametrize("ends", ["print(1)", "threading.Event().wait()"])
def test_all_that_a_program_has_started_ends_with_its_episode(make, tmp_path, ends, is_function):
    pids = tmp_path / "pids"
    env = make(f"{LEAVES_A_CHILD}\n{ends}", is_function=is_function, variables={"PIDS": str(pids)})
    env.reset(seed=0)
    left, program, folder = pids.read_text().split()
    assert alive(left) and Path(folder).exists()
    if ends == "print(1)":
        assert env.step("b")[1:3] == (1.0, True)
    else:
        env.close()
    assert not alive(left) and not alive(program) and not Path(folder).exists()


@pytest.mark.parametrize("is_function", [False, True], ids=["program", "function"])
def test_a_program_ends_with_the_run_that_is_killed(program, tmp_path, is_function):
    pids = tmp_path / "pids"
    source = """
    above = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
    open(os.environ["PIDS"] + "_above", "w").write(above)
    """
    source = f"{textwrap.dedent(source)}{LEAVES_A_CHILD}\nthreading.Event().wait()"
    options = program(source, is_function=is_function, variables={"PIDS": str(pids)})
    run = tmp_path / "run.py"
    run.write_text(
        "from rllm_gym.envs.program.env import ProgramEnv\n"
        f"env = ProgramEnv(**{options!r})\nenv.reset(seed=0)\nprint('begun', flush=True)\nenv.step('b')\n"
    )
    process = subprocess.Popen([sys.executable, str(run)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    *found, folder = pids.read_text().split()
    found.append(Path(f"{pids}_above").read_text())  # the run itself, or what forks the programs
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    end_s = time.monotonic() + 20
    while (any(map(alive, found)) or Path(folder).exists()) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not any(map(alive, found)) and not Path(folder).exists()


def test_a_program_that_is_not_waited_for_any_more_ends_at_once(program, tmp_path):
    pids = tmp_path / "pids"
    options = program(f"{LEAVES_A_CHILD}\nthreading.Event().wait()", variables={"PIDS": str(pids)})
    chat = ChatTokenizer()
    loop = RolloutLoop(
        lambda index: gymnasium.make("rllm_gym/Program-v0", tokenizer=chat, disable_env_checker=True, **options),
        {"main": ScriptedEngine(chat, lambda messages: "b")},
        module_of=lambda agent_id, episode: "main",
        num_envs=1,
        num_env_workers=1,
        params=SamplingParams(max_new_tokens=256),
        max_model_len=2048,
        max_retries=0,
        env_timeout_s=10.0,
    )
    try:
        loop.submit([TaskGroup((0, 0, 0), None, 1)], max_episode_steps=8)
        [group] = loop.finished_groups()
        assert "env_timeout_s = 10" in group.failed[0].error
        left, one, folder = pids.read_text().split()
        end_s = time.monotonic() + 20
        while (alive(left) or alive(one) or Path(folder).exists()) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert not alive(left) and not alive(one) and not Path(folder).exists()
    finally:
        loop.close()


@pytest.mark.parametrize("is_function", [False, True], ids=["program", "function"])
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_program_that_stops_or_kills_its_supervisor_leaves_nothing(make, tmp_path, number, is_function):
    pids = tmp_path / "pids"
    # A copy of it has the variables of a process that was not started but forked, and does not end with its parent.
    source = f"""
    if not os.fork():
        open(os.environ["PIDS"] + "_copy", "w").write(str(os.getpid()))
        os.setsid(), os.close(1), os.close(2)
        threading.Event().wait()
    {"".join(LEAVES_A_CHILD.splitlines(keepends=True)).replace(chr(10), chr(10) + "    ")}
    os.kill(os.getppid(), {int(number)})
    threading.Event().wait()
    """
    env = make(source, is_function=is_function, variables={"PIDS": str(pids)}, timeout_s=2.0)
    env.reset(seed=0)
    left, program, folder = pids.read_text().split()
    begun_s = time.monotonic()
    with pytest.raises(EnvError):
        env.step("b")
    assert time.monotonic() - begun_s < 12.0
    copy = Path(f"{pids}_copy").read_text()
    assert not any(map(alive, (left, program, copy))) and not Path(folder).exists()


def test_a_flood_of_output_is_read_and_only_its_end_kept(make):
    env = make("""
    ask([user("a")])
    for _ in range(500):
        print("x" * 100_000)
    print(1)
    """)
    env.reset(seed=0)
    assert env.step("b")[1] == 1.0


def test_a_program_that_fills_its_folder_is_ended(make, monkeypatch):
    monkeypatch.setattr("rllm_gym.envs.program.env.MAX_FOLDER_BYTES", 1 << 20)
    env = make("""
    ask([user("a")])
    with open("filled", "wb") as file:
        while True:
            file.write(bytes(100_000))
            file.flush()
            time.sleep(0.01)
    """)
    env.reset(seed=0)
    with pytest.raises(EnvError, match="folder may hold 1 MiB"):
        env.step("b")


def test_a_flood_of_requests_that_are_refused_ends_with_the_time(make):
    env = make("while True: ask([])", timeout_s=1.0)
    with pytest.raises(EnvError, match="timeout_s = 1 s"):
        env.reset(seed=0)


def test_a_request_without_the_episodes_key_is_refused(make):
    env = make("""
    assert ask([user("a")], key="sk-wrong")["status"] == 401
    assert "Bearer" not in ask([user("a")])
    print(1)
    """)
    env.reset(seed=0)
    assert env.step("b")[1] == 1.0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"n": 0}, "n must be"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}, "text alone"),
        ({"logit_biass": {}}, "logit_biass"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(body, named):
    from rllm_gym.envs.program.chat_completions import read

    with pytest.raises(RequestError, match=named):
        read({"model": "m", "messages": [{"role": "user", "content": "a"}], **body})


def test_a_refused_request_reaches_the_program_and_the_episode_goes_on(make):
    env = make("""
    body = ask([user("a")], presence_penalty=1)
    assert (body["status"], body["error"]["type"]) == (400, "invalid_request_error"), body
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    print(json.dumps("b" == said(ask([user("a")], temperature=0.2, top_p=0.9))["content"] and 1))
    """)
    env.reset(seed=0)
    *_, info = env.step("b")
    assert (info["is_success"], info["replaced_params"]) == (True, {"temperature": 1, "top_p": 1})


def test_sampling_of_the_programs_own_is_refused_where_asked(make):
    env = make(
        """
    assert "temperature is the run's" in ask([user("a")], temperature=0.2)["error"]["message"]
    ask([user("a")])
    print(1)
    """,
        sampling_params="refuse",
    )
    env.reset(seed=0)
    assert env.step("b")[1] == 1.0


def score(task, messages, output):
    return {"reward": float(messages[-1]["content"] == "4"), "is_success": "checked" in output}


# The model writes what this program runs: its words can print a reward, and post one.
RUNS_CODE = """
exec(said(ask([user("a")]))["content"])
"""
CHEAT = "print(1)"


def test_a_model_that_runs_code_prints_its_own_reward_and_a_function_does_not_believe_it(make):
    cheated = make(RUNS_CODE)
    cheated.reset(seed=0)
    assert cheated.step(CHEAT)[1] == 1.0
    judged = make(RUNS_CODE, reward=f"{__name__}:score")
    judged.reset(seed=0)
    assert judged.step(CHEAT)[1] == 0.0


def test_a_function_gives_the_reward_of_task_messages_and_output(make):
    env = make('ask([user("a")]); print("checked")', reward=f"{__name__}:score")
    env.reset(seed=0)
    _, reward, _, _, info = env.step("4")
    assert (reward, info["is_success"]) == (1.0, True)


def test_a_reward_is_posted_once_and_with_its_own_token(make):
    env = make(
        """
    ask([user("a")])
    url, token = os.environ["RLLM_GYM_REWARD_URL"], os.environ["RLLM_GYM_REWARD_TOKEN"]
    assert post(url, os.environ["OPENAI_API_KEY"], {"reward": 1})["status"] == 401
    assert post(url, token, {"reward": 0.25}) == {"ok": True}
    assert post(url, token, {"reward": 1})["status"] == 409
    """,
        reward="posted",
    )
    env.reset(seed=0)
    assert env.step("b")[1] == 0.25
    silent = make('ask([user("a")])', reward="posted")
    silent.reset(seed=0)
    with pytest.raises(EnvError, match="without having posted"):
        silent.step("b")


def function_agent(task):
    import urllib.request

    body = {"model": "m", "messages": [{"role": "user", "content": task["question"]}]}
    headers = {"x-api-key": os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
    return float(answer["choices"][0]["message"]["content"] == "4")


def test_a_function_is_a_program_too(make):
    env = make("", command=f"{__name__}:function_agent")
    assert env.reset(seed=0)[0] == "2+2?"
    assert env.step("4")[1] == 1.0


def test_a_functions_module_is_imported_once_and_its_programs_share_nothing_else(program, tmp_path, monkeypatch):
    source = """
    key, drawn = os.environ["OPENAI_API_KEY"], sys.modules["numpy"].random.random()
    ask([user(f"{os.getppid()} {drawn} {key} {os.getcwd()} {task['k']}")])
    """
    options = program(source, is_function=True)
    file = tmp_path / f"{options['command'].partition(':')[0]}.py"
    imported = tmp_path / "imported"
    file.write_text(f"import os, numpy\nopen({str(imported)!r}, 'a').write('.')\n{file.read_text()}")
    options["tasks"] = [{"k": 0}, {"k": 1}]
    envs = [ProgramEnv(**options) for _ in range(2)]
    try:
        seen = [env.reset(seed=0, options={"item_id": f"program_{k}"})[0].split() for k, env in enumerate(envs)]
        assert all(map(str.__ne__, *seen)), seen  # supervisor, random number, key, folder, task
        assert [env.step("b")[1] for env in envs] == [1.0, 1.0]
    finally:
        for env in envs:
            env.close()
    assert imported.read_text() == ".."  # here, to see that it can be, and in the process that forks


@pytest.mark.parametrize("is_function", [False, True], ids=["program", "function"])
def test_a_program_has_the_runs_variables_but_for_its_secrets(make, monkeypatch, is_function):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "RLLM_GYM_TOKEN", "SEARCH_API_KEY"):
        monkeypatch.setenv(name, f"secret-{name}")
    source = """
    ask([user("a")])
    found = [name for name, value in os.environ.items() if value == f"secret-{name}"]
    assert found == ["SEARCH_API_KEY"] and os.environ["WANDB_API_KEY"] == "given", found
    print(1)
    """
    env = make(source, is_function=is_function, variables={"WANDB_API_KEY": "given"})
    env.reset(seed=0)
    assert env.step("b")[1] == 1.0


def test_a_function_that_fails_fails_its_episode_with_its_last_lines(make):
    env = make("ask([user('a')]); raise RuntimeError('no wood')", is_function=True)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"run: it ended with exit code 1.*no wood"):
        env.step("b")


def test_a_module_that_starts_threads_is_no_program(make, program, tmp_path):
    options = program("", is_function=True)
    file = tmp_path / f"{options['command'].partition(':')[0]}.py"
    file.write_text(f"import threading\nthreading.Timer(5, print).start()\n{file.read_text()}")
    with pytest.raises(EnvError, match="ended with exit code 1"):
        ProgramEnv(**options).reset(seed=0)


def test_tasks_have_splits_and_categories(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"question": "a"}\n{"question": "b", "split": "eval", "category": "hard"}\n')
    assert ProgramEnv(command=["true"], tasks=file).item_ids == ["program_0"]
    assert ProgramEnv(command=["true"], tasks=file, split="eval").item_ids == ["program_1"]
    assert ProgramEnv(command=["true"], tasks=file, split="all").item_ids == ["program_0", "program_1"]


@pytest.mark.parametrize(
    "options",
    [
        {"command": []}, {"command": "nowhere:agent"}, {"command": "python my_agent.py"},
        {"command": ["python", "nowhere.py"]}, {"tasks": []}, {"tasks": "nowhere.jsonl"}, {"tasks": ["a"]},
        {"tasks": [{"a": "b" * 200_000}]}, {"reward": "nowhere:score"}, {"timeout_s": 0}, {"max_parallel": "many"},
        {"sampling_params": "mine"}, {"system_prompt": "Be brief."},
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError):
        ProgramEnv(**{"command": ["true"], "tasks": TASKS, **options})


def test_more_requests_at_once_than_max_parallel_are_refused(make, tmp_path):
    env = make(
        """
    bodies = []
    threads = [threading.Thread(target=lambda: bodies.append(ask([user("a")]))) for _ in range(5)]
    [thread.start() for thread in threads]
    while len(bodies) < 3:
        time.sleep(0.01)
    assert [body["status"] for body in bodies] == [429] * 3
    open(os.environ["REFUSED"], "w").close()
    [thread.join() for thread in threads]
    print(1)
    """,
        max_parallel=2,
        variables={"REFUSED": str(tmp_path / "refused")},
    )
    env.reset(seed=0)
    while not (tmp_path / "refused").exists():
        time.sleep(0.05)
    env.step("b")
    assert env.step("b")[1:3] == (1.0, True)


def test_log_probabilities_are_those_of_the_sampled_tokens(play):
    source = """
    from openai import OpenAI
    options = {"model": "m", "messages": [user("a")], "logprobs": True, "stop": [" END"]}
    [choice] = OpenAI().chat.completions.create(**options).choices
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == "the END" and choice.message.content == "the"
    assert [token.logprob for token in tokens] == [-k / 8 for k in range(len(tokens))]
    chunks = list(OpenAI().chat.completions.create(stream=True, **options))
    streamed = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
    assert streamed == [tokens]
    assert ask([user("a")])["choices"][0]["logprobs"] is None
    print(1)
    """
    group, _ = play(source, lambda messages: "the END of it")
    assert not group.failed, group.failed[0].error


def test_what_is_replaced_is_counted_in_the_metrics_and_told(play):
    group, _ = play("ask([user('a')], temperature=0.2, seed=1); print(1)", lambda messages: "b")
    assert episode_metrics(group.episodes, [])["num_replaced_params"] == 2
    note = note_of_replaced(episode.info for episode in group.episodes)
    assert note.startswith("requests ask for seed, temperature of their own")
    assert note_of_replaced([{}, {"replaced_params": {}}]) == ""


SDK = """
from openai import BadRequestError, OpenAI
client = OpenAI()
assert client.models.list().data[0].id == "rllm-gym"
messages = [user("a")]
messages.append(client.chat.completions.create(model="m", messages=messages).choices[0].message)
messages.append(user("b"))
options = {"stream": True, "stream_options": {"include_usage": True}}
chunks = list(client.chat.completions.create(model="m", messages=messages, **options))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "yes"
assert chunks[-1].usage.completion_tokens > 0
try:
    client.chat.completions.create(model="m", messages=messages)
except BadRequestError as error:
    print(json.dumps(float(error.code == "max_turns")))
"""


def test_openais_client_plays_streamed_and_not_and_shows_the_horizon(play):
    group, _ = play(SDK, lambda messages: "yes", horizon=2)
    [episode] = group.episodes
    assert (episode.end_reason, episode.streams[AGENT].total_reward) == (EndReason.HORIZON, 1.0)
    assert [turn.context_index for turn in episode.streams[AGENT].turns] == [0, 0]


CRAFT = {"type": "object", "properties": {"item": {"type": "string"}}}
COMPLETIONS = """
from openai import OpenAI
tools = [{"type": "function", "function": {"name": "craft", "parameters": CRAFT}}]
messages = [{"role": "system", "content": "Craft."}, user("a")]

def ask_model():
    options = {"model": "m", "messages": messages, "tools": tools}
    if not STREAMED:
        return OpenAI().chat.completions.create(**options).choices[0].message
    with OpenAI().chat.completions.stream(**options) as stream:
        return stream.get_final_completion().choices[0].message

message = ask_model()
[call] = message.tool_calls
assert json.loads(call.function.arguments) == {"item": "stick"}
messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "Crafted."}]
assert ask_model().content == "done"
print(1)
"""
RESPONSES = """
from openai import OpenAI
tools = [{"type": "function", "name": "craft", "parameters": CRAFT, "strict": False}]
items = [user("a")]

def ask_model():
    options = {"model": "m", "instructions": "Craft.", "input": items, "tools": tools}
    if not STREAMED:
        return OpenAI().responses.create(**options)
    with OpenAI().responses.stream(**options) as stream:
        return stream.get_final_response()

response = ask_model()
[call] = response.output
assert json.loads(call.arguments) == {"item": "stick"}
items += [item.to_dict() for item in response.output]
items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Crafted."})
assert ask_model().output_text == "done"
print(1)
"""
MESSAGES = """
from anthropic import Anthropic
tools = [{"name": "craft", "input_schema": CRAFT}]
messages = [user("a")]

def ask_model():
    options = {"model": "m", "system": "Craft.", "max_tokens": 100, "messages": messages, "tools": tools}
    if not STREAMED:
        return Anthropic().messages.create(**options)
    with Anthropic().messages.stream(**options) as stream:
        return stream.get_final_message()

message = ask_model()
assert message.stop_reason == "tool_use"
[call] = message.content
assert call.input == {"item": "stick"}
result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Crafted."}]}
messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
assert ask_model().content[0].text == "done"
print(1)
"""
SPACED = '<tool_call>\n{"name":  "craft", "arguments":{"item": "stick"}}\n</tool_call>'


class Parser:
    """What vLLM's parser of such calls does, without the seconds that it takes to load."""

    def extract_tool_calls(self, text, request):
        before, is_called, rest = text.partition("<tool_call>")
        call = json.loads(rest.partition("</tool_call>")[0]) if is_called else {}
        function = SimpleNamespace(name=call.get("name"), arguments=json.dumps(call.get("arguments")))
        calls = [SimpleNamespace(function=function)] * bool(is_called)
        return SimpleNamespace(tools_called=bool(is_called), tool_calls=calls, content=before or None)


@pytest.fixture
def qwen():
    return ChatTokenizer(chat_template=Path(__file__).parents[1] / "chat_templates" / "qwen2_5.jinja")


@pytest.mark.promise
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("source", [COMPLETIONS, RESPONSES, MESSAGES], ids=["completions", "responses", "messages"])
def test_sdks_call_tools_and_what_they_send_back_keeps_its_tokens(play, qwen, monkeypatch, source, is_streamed):
    if source is MESSAGES:
        pytest.importorskip("anthropic")
    monkeypatch.setattr("rllm_gym.envs.program.tokens.load_parser", lambda *_: Parser())
    answers = iter([letters(qwen, SPACED), "done"])
    head = f"STREAMED, CRAFT = {is_streamed}, {CRAFT!r}\n"
    group, engine = play(head + source, lambda messages: next(answers), tokenizer=qwen)
    assert not group.failed, group.failed[0].error
    [episode] = group.episodes
    assert episode.streams[AGENT].total_reward == 1.0
    assert [turn.context_index for turn in episode.streams[AGENT].turns] == [0, 0]
    assert _holds(engine.prompts[1], letters(qwen, SPACED))
    first, second = map(qwen.decode, engine.prompts)
    assert "Craft." in first and '"name": "craft"' in first and "Crafted." in second


@pytest.mark.promise
def test_the_example_reads_what_the_built_in_environment_shows_and_earns_the_same(play, qwen, monkeypatch):
    parser = load_parser("hermes", qwen.tokenizer)
    for module in ("rllm_gym.envs.program.tokens", "rllm_gym.tool_calls"):
        monkeypatch.setattr(f"{module}.load_parser", lambda *_: parser)
    config = {"agent": {"format": "tools"}, "system_prompt": "Craft what the goal says."}
    env = gymnasium.make("rllm_gym/TextCraft-v0", tokenizer=qwen, **config)
    observation, info = env.reset(seed=3)
    item_id, prompts, calls, reward, is_over = info["item_id"], [list(observation)], [], 0.0, False
    while not is_over:
        calls.append(env.get_wrapper_attr("expert_action")())
        action = env.get_wrapper_attr("encode_action")(calls[-1])
        observation, reward, is_over, _, info = env.step(action)
        prompts.append([*prompts[-1], *action, *observation])
    answers = iter(calls)
    options = {"command": "examples.textcraft_agent:play", "tasks": [{"item_id": item_id, "seed": 3}]}
    group, engine = play("", lambda messages: next(answers), horizon=20, tokenizer=qwen, max_model_len=8192, **options)
    assert not group.failed, group.failed[0].error
    [episode] = group.episodes
    stream = episode.streams[AGENT]
    assert (stream.total_reward, episode.info["is_success"]) == (reward, True) == (1.0, True)
    assert engine.prompts == prompts[:-1] and {turn.context_index for turn in stream.turns} == {0}


def test_a_parser_knows_the_tools_of_its_request(play, qwen, monkeypatch):
    loaded = []

    def load(name, tokenizer, tools):
        loaded.append([tool["function"]["name"] for tool in tools])
        return Parser()

    monkeypatch.setattr("rllm_gym.envs.program.tokens.load_parser", load)
    source = """
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fg"]
    for k in (1, 1, 2):
        ask([user("a")], tools=tools[:k])
    print(1)
    """
    group, _ = play(source, lambda messages: "b", tokenizer=qwen)
    assert group.episodes[0].streams[AGENT].total_reward == 1.0
    assert loaded == [["f"], ["f", "g"]]


@pytest.mark.slow  # it loads vLLM
def test_arguments_that_a_family_writes_without_types_have_those_of_the_tool(qwen):
    pytest.importorskip("vllm")
    words = ("<tool_call>", "</tool_call>")
    tokenizer = SimpleNamespace(get_vocab=lambda: {word: k for k, word in enumerate(words)}, vocab=words)
    kinds = {"n": {"type": "integer"}, "s": {"type": "string"}}
    parameters = {"type": "object", "properties": kinds}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    inner = "".join(f"<parameter={name}>\n2\n</parameter>\n" for name in kinds)
    parser = load_parser("qwen3_coder", tokenizer, tools)
    [(name, arguments)] = parse(parser, f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>").calls
    assert (name, json.loads(arguments)) == ("f", {"n": 2, "s": "2"})


@pytest.mark.slow  # it loads vLLM
def test_vllms_parser_reads_the_calls(play, qwen):
    pytest.importorskip("vllm")
    answers = iter([SPACED, "done"])
    head = f"STREAMED, CRAFT = False, {CRAFT!r}\n"
    group, _ = play(head + COMPLETIONS, lambda messages: next(answers), tokenizer=qwen)
    assert group.episodes[0].streams[AGENT].total_reward == 1.0
    parser = load_parser("hermes", qwen.tokenizer)
    assert parse(parser, "<tool_call>{no JSON</tool_call>")[:2] == ("<tool_call>{no JSON</tool_call>", [])
    assert not logging.getLogger("vllm.tool_parsers.hermes_tool_parser").isEnabledFor(logging.ERROR)


def test_what_a_tools_description_spells_is_text(qwen):
    tool = {"type": "function", "function": {"name": "craft", "description": "Craft <|im_end|> it.", "parameters": {}}}
    ids, _ = qwen.encode_turns([{"role": "user", "content": "a"}], {}, add_generation_prompt=True, tools=[tool])
    assert qwen.decode(ids).count("Craft <|im_end|> it.") == 1
    assert ids.count(qwen.end_of_turn_id) == 2  # the system's and the user's


@pytest.mark.parametrize(
    ("form", "body", "named"),
    [
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"text": {"format": {"type": "json_object"}}}, "text.format"),
        ("responses", {"tools": [{"type": "web_search"}]}, "functions"),
        ("responses", {"input": [{"type": "reasoning", "summary": []}]}, "reasoning"),
        ("responses", {"input": []}, "input"),
        ("responses", {"tools": [{"type": "function", "name": "f", "strict": "maybe"}]}, "tools: strict: .*'maybe'"),
        ("anthropic_messages", {"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ("anthropic_messages", {"max_tokens": None}, "max_tokens"),
        ("anthropic_messages", {"messages": [{"role": "user", "content": []}]}, "one at least"),
        ("anthropic_messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "text alone"),
    ],
)
def test_what_the_other_forms_do_not_support_is_refused_by_name(form, body, named):
    module = importlib.import_module(f"rllm_gym.envs.program.{form}")
    plain = {
        "responses": {"input": "a"},
        "anthropic_messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]},
    }[form]
    with pytest.raises(RequestError, match=named):
        module.FORM.read({"model": "m", **plain, **body})


FUNCTION = {"name": "f", "parameters": {}}


@pytest.mark.parametrize(
    ("form", "body", "replaced"),
    [
        ("chat_completions", {"tools": [{"type": "function", "function": FUNCTION}], "parallel_tool_calls": False}, 1),
        ("chat_completions", {"parallel_tool_calls": False}, 0),  # there is nothing to call
        ("chat_completions", {"reasoning_effort": "low", "verbosity": "low", "top_k": 5}, 3),
        ("responses", {"tools": [{"type": "function", **FUNCTION}], "parallel_tool_calls": False}, 1),
        ("responses", {"reasoning": {"effort": "none"}, "text": {"verbosity": "low"}}, 2),  # openai-agents' defaults
        ("responses", {"text": {"format": {"type": "text"}}}, 0),
        ("anthropic_messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, 1),
        ("anthropic_messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1),
    ],
)
def test_what_is_the_models_own_way_is_replaced_in_each_form(form, body, replaced):
    module = importlib.import_module(f"rllm_gym.envs.program.{form}")
    plain = {"input": "a"} if form == "responses" else {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}
    assert len(module.FORM.read({"model": "m", **plain, **body}).replaced) == replaced


def test_tools_are_refused_where_the_template_knows_none(play):
    source = """
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert "knows no tools" in ask([user("a")], tools=tools)["error"]["message"]
    ask([user("a")])
    print(1)
    """
    group, _ = play(source, lambda messages: "b")
    assert group.episodes[0].streams[AGENT].total_reward == 1.0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tools": 5}, "tools must be a list"),
        ({"stream_options": "x"}, "stream_options"),
        ({"stop": [str(k) for k in range(99)]}, "may have 16 texts"),
        ({"metadata": "DEEP"}, "nested 100 deep"),
    ],
)
def test_requests_that_no_sdk_sends_are_refused_in_a_line(make, options, named):
    source = f"""
    deep = []
    for _ in range(200):
        deep = [deep]
    options = {{name: deep if value == "DEEP" else value for name, value in {options!r}.items()}}
    body = ask([user("a")], **options)
    assert body["status"] == 400 and {named!r} in body["error"]["message"], body
    ask([user("a" + chr(0xd800))], model=chr(0xd800))
    print(1)
    """
    env = make(source)
    env.reset(seed=0)
    assert env.step("b")[1] == 1.0


def test_a_flood_of_requests_that_are_refused_fails_its_episode(make, monkeypatch):
    monkeypatch.setattr("rllm_gym.envs.program.env.MAX_REFUSED", 20)
    env = make("ask([user('a')])\nwhile True: ask([])")
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"floods the endpoint.*messages must be"):
        env.step("b")


def test_bodies_beyond_max_parallel_are_not_read(make):
    source = """
    import socket
    address = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
    head = "POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer "
    head += os.environ["OPENAI_API_KEY"] + "\\r\\n"
    held = []
    for _ in range(2):  # which never send what they announce
        held.append(socket.create_connection((address[0], int(address[1]))))
        held[-1].sendall((head + "Content-Length: 1000\\r\\n\\r\\n").encode())
    assert 429 in (ask([user("a")]).get("status") for _ in range(20))
    [one.close() for one in held]
    assert any("choices" in ask([user("b")]) for _ in range(1000))
    print(1)
    """
    env = make(source, max_parallel=2)
    is_over = False
    env.reset(seed=0)
    while not is_over:
        _, reward, is_over, _, _ = env.step("b")
    assert reward == 1.0


@pytest.mark.timeout(60)
def test_a_program_that_forks_on_and_on_ends_with_its_episode(make, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    source = """
    held = os.open(os.environ["PIPE"], os.O_WRONLY)  # by all that come of this process
    if os.fork() == 0:
        os.setsid()
        while True:  # each lives for a moment, and leaves another
            if os.fork():
                os._exit(0)
    for _ in range(50):
        if os.fork() == 0:
            os.setsid()
            threading.Event().wait()
    ask([user("a")])
    print(1)
    """
    env = make(source, variables={"PIPE": str(pipe)})
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    env.reset(seed=0)
    os.set_blocking(reading, True)
    assert env.step("b")[1] == 1.0
    assert os.read(reading, 1) == b""  # nobody is left who holds the other end
    os.close(reading)


@pytest.mark.parametrize("ends", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(3)"])
def test_a_hundred_megabytes_of_complaints_are_read_and_an_end_without_a_reward_is_an_error(make, ends):
    env = make(f"""
    import signal
    ask([user("a")])
    for _ in range(100):
        os.write(2, b"no wood \\x1b[31m" * 80_000)
    {ends}
    """)
    env.reset(seed=0)
    with pytest.raises(EnvError, match="no wood") as error:
        env.step("b")
    assert len(str(error.value)) < 5000 and "\x1b" not in str(error.value)


def test_a_file_that_is_removed_and_goes_on_growing_is_bounded(make):
    env = make("""
    ask([user("a")])
    with open("hidden", "wb") as file:
        os.remove("hidden")
        try:
            os.truncate(file.fileno(), (1 << 30) + 1)
        except OSError as error:
            raise SystemExit(f"refused: {error}")
    print(1)
    """)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"refused: .*too large"):
        env.step("b")


def test_a_folder_that_nobody_may_write_to_is_removed_too(tmp_path):
    from rllm_gym.envs.program.supervisor import remove_folder

    inner = tmp_path / "cache" / "module"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    inner.chmod(0o500)
    inner.parent.chmod(0o500)
    remove_folder(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_folder_of_a_thousand_levels_is_too_large_and_is_removed(make):
    env = make("""
    for k in range(2500):
        os.mkdir("deeper")
        os.chdir("deeper")
    ask([user("a")])
    time.sleep(1000)
    """)
    env.reset(seed=0)
    folder = Path(env._child.folder)
    with pytest.raises(EnvError, match="may hold 1024 MiB"):
        env.step("b")
    assert not folder.exists()


def test_no_request_comes_in_behind_the_end_of_a_session():
    session = Session(max_parallel=1)
    call = Call(ModelRequest([]))
    session.submit(call)
    session.end(RequestError("over", 410))
    session.refuse_all()
    with pytest.raises(RequestError, match="over"):
        call.answer.result(0)
    with pytest.raises(RequestError, match="over"):
        session.submit(Call(ModelRequest([])))
