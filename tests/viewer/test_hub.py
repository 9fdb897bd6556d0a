"""The hub's sessions: played by hand, expert and model; bounded, closed when idle, ended when an environment hangs."""

import contextlib
import shutil
import sys
import threading
import time
from pathlib import Path

import gymnasium
import psutil
import pytest

from rllm_gym.algorithms.grpo import GRPOConfig
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.models import TINY_MODEL_DIR
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.viewer import hub_worker
from rllm_gym.viewer.hub import Hub

TEMPLATES = Path(__file__).parents[1] / "chat_templates"
TEXTCRAFT = {"env": "rllm_gym/TextCraft-v0", "item_id": "textcraft_17"}


@pytest.fixture
def hub():
    opened = []

    def hub(policies=None, **options):
        opened.append(Hub(policies or {"tiny": "tiny"}, modules=["tests.viewer.trouble"], **options))
        return opened[-1]

    yield hub
    for one in opened:
        one.close_all()
    gymnasium.registry.pop("Trouble-v0", None)
    sys.modules.pop("tests.viewer.trouble", None)
    assert not workers()


def workers():
    """The processes of sessions, and what these have started."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if any(name in " ".join(child.cmdline()) for name in ("spawn_main", "sleep 3601")):
                found.append(child)
    return found


@pytest.mark.slow
def test_by_hand_and_by_expert_an_episode_becomes_a_record(hub):
    hub = hub()
    id, record = hub.open({**TEXTCRAFT, "seed": 3, "horizon": 9})
    assert record["turns"] == [] and record["item_id"] == "textcraft_17" and record["max_episode_steps"] == 9
    record = hub.call(id, "act", text="Action: fly")
    assert record["turns"][0]["is_invalid_action"] and record["messages"][-1]["content"] == "Could not execute fly"
    while not record["end_reason"]:
        record = hub.call(id, "expert")
    assert record["is_success"] and record["end_reason"] == "terminated" and record["turns"][-1]["reward"] == 1.0
    ids = [i for turn in record["turns"] for key in ("observation_ids", "action_ids") for i in turn[key]]
    from rllm_gym.tokens import chat_tokenizer

    chat = chat_tokenizer(None)
    assert (
        chat.decode([*ids, *record["final_observation_ids"]]).strip()
        == chat.decode(chat.encode_chat(record["messages"], add_generation_prompt=False)).strip()
    )
    with pytest.raises(EnvError, match="the episode is over"):
        hub.call(id, "act", text="inventory")
    with pytest.raises(EnvError, match="no model"):
        hub.call(hub.open(TEXTCRAFT)[0], "model", temperature=1.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_acts_with_its_own_log_probabilities(hub):
    hub = hub()
    id, _ = hub.open(
        {
            "env": "rllm_gym/TextCraft-v0",
            "item_id": 41,
            "horizon": 6,
            "env_config": {"system_prompt": ""},
            "policy": "tiny",
        }
    )
    record = hub.call(id, "model", temperature=0.0)
    turn = record["turns"][0]
    assert len(turn["logp"]) == len(turn["action_ids"]) and max(turn["logp"]) <= 0 and min(turn["logp"]) < 0
    assert "Action: get" in record["messages"][1]["content"]
    while not record["end_reason"]:
        record = hub.call(id, "model", temperature=0.0)
    assert record["is_success"]  # which it finds only where it reads what was said before


@pytest.mark.slow
def test_an_agent_with_tools_is_played_where_the_models_template_takes_tools(hub, tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "mine")
    shutil.copy(TEMPLATES / "qwen2_5.jinja", tmp_path / "mine" / "chat_template.jinja")
    hub = hub({"tiny": "tiny", "mine": str(tmp_path / "mine")})
    wanted = {**TEXTCRAFT, "horizon": 30, "env_config": {"agent": {"format": "tools"}}}
    with pytest.raises((ConfigError, EnvError), match="needs a chat template that takes tools"):
        hub.open({**wanted, "policy": "tiny"})
    id, record = hub.open({**wanted, "policy": "mine"})
    while not record["end_reason"]:
        record = hub.call(id, "expert")
    assert record["is_success"] and not any(turn["is_invalid_action"] for turn in record["turns"]), record["messages"]
    assert [m["role"] for m in record["messages"]][:4] == ["system", "user", "assistant", "tool"]


@pytest.mark.slow
def test_a_model_whose_template_rewrites_what_was_said_reads_what_it_renders(hub, tmp_path):
    shutil.copytree(TINY_MODEL_DIR, tmp_path / "mine")
    shutil.copy(TEMPLATES / "qwen3.jinja", tmp_path / "mine" / "chat_template.jinja")
    hub = hub({"mine": str(tmp_path / "mine")})
    id, _ = hub.open({**TEXTCRAFT, "horizon": 3, "policy": "mine"})
    hub.call(id, "act", text="<think>\nWhat do I have?\n</think>\n\ninventory")
    record = hub.call(id, "model", temperature=1.0)
    chat = ChatTokenizer(tmp_path / "mine")
    said = chat.render(record["messages"][:4], add_generation_prompt=True)  # system, task, thought and act, reply
    assert chat.history == "as_template" and said.count("What do I have?") == 1  # in the reply, which quotes it
    assert chat.decode(record["turns"][1]["observation_ids"]) == said


@pytest.mark.slow
def test_what_an_environment_takes_is_checked_by_it(hub):
    hub = hub()
    for wanted, said in [
        ({**TEXTCRAFT, "env_config": {"dept": 1}}, "depth"),
        ({**TEXTCRAFT, "item_id": "textcraft_x"}, "Did you mean"),
        ({**TEXTCRAFT, "split": "nope"}, "split must be one of"),
    ]:
        with pytest.raises((ConfigError, EnvError), match=said):
            hub.open(wanted)
    assert not hub._sessions


@pytest.mark.promise
@pytest.mark.slow
def test_an_environment_that_hangs_is_ended_with_what_it_started_and_the_others_go_on(hub):
    hub = hub(call_timeout_s=20.0)
    other, _ = hub.open({"env": "Trouble-v0"})
    id, _ = hub.open({"env": "Trouble-v0"})
    hub._sessions[id]._timeout_s = 1.0
    begun_s = time.monotonic()
    with pytest.raises(EnvError, match="act did not, and its session has been ended"):
        hub.call(id, "act", text="hang")
    assert time.monotonic() - begun_s < 10
    assert not [p for p in workers() if "sleep" in " ".join(p.cmdline())]
    with pytest.raises(ConfigError, match="has ended"):
        hub.call(id, "act", text="go")
    assert hub.call(other, "act", text="go")["turns"][0]["reward"] == 0.5


@pytest.mark.slow
def test_what_an_environment_raises_is_said_and_its_death_too(hub):
    hub = hub()
    for action, said in [("fail", "a gremlin"), ("exit", "SystemExit: 3")]:
        id, _ = hub.open({"env": "Trouble-v0"})
        record = hub.call(id, "act", text=action)
        assert record["end_reason"] == "error" and said in record["error"] and record["is_success"] is None
        with pytest.raises(EnvError, match="the episode is over"):
            hub.call(id, "act", text="go")
        hub.call(id, "reset", seed=0, item_id=None)
    assert hub.call(id, "act", text="go")["messages"][-1]["content"] == "Fine."
    with pytest.raises(EnvError, match="has no expert"):
        hub.call(id, "expert")
    with pytest.raises(EnvError, match="has died"):
        hub.call(id, "act", text="die")
    assert id not in hub._sessions


@pytest.mark.slow
def test_sessions_are_bounded_and_end_when_nobody_uses_them(hub):
    seconds = [0.0]
    hub = hub(max_sessions=1, idle_s=2.0, clock=lambda: seconds[0])
    hub.open(TEXTCRAFT)
    with pytest.raises(ConfigError, match="at most 1 sessions"):
        hub.open(TEXTCRAFT)
    seconds[0] = 1.9
    hub.close_idle()
    assert hub._sessions
    seconds[0] = 2.1
    hub.close_idle()
    assert not hub._sessions and not workers()
    hub.open(TEXTCRAFT)


@pytest.mark.slow
def test_a_session_that_is_busy_says_so_and_is_not_idle(hub):
    hub = hub(idle_s=0.0, call_timeout_s=20.0)
    id, _ = hub.open({"env": "Trouble-v0"})

    def hang():
        with pytest.raises(EnvError, match="has been ended"):
            hub.call(id, "act", text="hang")

    thread = threading.Thread(target=hang)
    hub._sessions[id]._timeout_s = 3.0
    thread.start()
    time.sleep(1.0)
    hub.close_idle()
    with pytest.raises(ConfigError, match="busy"):
        hub.call(id, "act", text="go")
    thread.join()


@pytest.mark.slow
def test_a_session_that_nobody_uses_makes_room(hub):
    seconds = [0.0]
    hub = hub(max_sessions=1, clock=lambda: seconds[0])
    hub.open(TEXTCRAFT)
    seconds[0] = 61.0
    other, _ = hub.open(TEXTCRAFT)
    assert list(hub._sessions) == [other]


@pytest.mark.slow
def test_an_agent_that_plans_and_forgets_gives_the_record_that_training_would(hub):
    from rllm_gym.data import make_records
    from rllm_gym.rollout.environments import read_environments
    from rllm_gym.rollout.expert import ExpertPlayer
    from rllm_gym.tokens import chat_tokenizer
    from rllm_gym.types import TaskGroup

    agent = {"format": "function_call", "plan": True, "context": {"last_n_turns": 1}, "rewards": ["environment"]}
    specs = read_environments("rllm_gym:rllm_gym/TextCraft-v0", {"agent": agent})
    player = ExpertPlayer(specs, chat_tokenizer(None), horizons=[20])
    [episode] = player.play([TaskGroup((1, 2, 3), "textcraft_141", 1)])
    player.close()
    [stored] = make_records(episode, env_version="", train_step=None, max_episode_steps=20)
    hub = hub()
    id, record = hub.open(
        {**TEXTCRAFT, "item_id": "textcraft_141", "seed": episode.seed, "env_config": {"agent": agent}}
    )
    while not record["end_reason"]:
        record = hub.call(id, "expert")
    expected = stored.model_dump()
    assert record["final_observation_ids"] == expected["final_observation_ids"]
    assert record["messages"] == expected["messages"] and len(record["turns"]) == len(expected["turns"])
    assert record["turns"] == expected["turns"]
    assert record["turns"][0]["kind"] == "plan" and record["turns"][-1]["context_index"] > 0


@pytest.mark.parametrize("stop", [None, ["</search>"]])
def test_turns_end_where_those_of_the_checkpoints_run_ended(monkeypatch, stop):
    config = GRPOConfig()
    config.stop = stop
    monkeypatch.setattr("rllm_gym.viewer.policies.is_checkpoint", lambda folder: True)
    monkeypatch.setattr("rllm_gym.checkpoints.read_config", lambda folder: (None, config))
    session = hub_worker._Session([], TEXTCRAFT["env"], {}, "a checkpoint", None)
    monkeypatch.setattr(session, "_tokenizer", lambda: None)
    env = session._make_env()
    try:
        assert env.stop == tuple(stop or ())
    finally:
        env.close()
        session.close()
