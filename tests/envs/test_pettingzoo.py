"""PettingZoo's environments with text spaces: by turns and at the same time, with agents that come late and leave."""

import pytest
from gymnasium.spaces import Discrete, Text

from rllm_gym.envs import UnicodeText, from_pettingzoo
from rllm_gym.envs.contract import findings
from rllm_gym.envs.token_multi_agent import TokenMultiAgentEnv
from rllm_gym.errors import ConfigError

pettingzoo = pytest.importorskip("pettingzoo")
SPACE = UnicodeText(1000)


class Auction(pettingzoo.ParallelEnv):
    """Everybody bids at the same time. Who bids least leaves; carol comes in the second round; the last one has won."""

    metadata = {"name": "auction"}  # noqa: RUF012

    def __init__(self, max_rounds=10, spaces=SPACE):
        self.possible_agents = ["alice", "bob", "carol"]
        self.max_rounds, self.spaces = max_rounds, spaces

    def observation_space(self, agent):
        return self.spaces

    def action_space(self, agent):
        return self.spaces

    def reset(self, seed=None, options=None):
        self.agents, self.round = ["alice", "bob"], 0
        return {a: f"{a}, bid." for a in self.agents}, {a: {"round": 0} for a in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.round += 1
        bids = {a: int(text) if text.isdigit() else 0 for a, text in actions.items()}
        last = min(bids, key=lambda a: (bids[a], a))
        left = [a for a in self.agents if a != last]
        joined = ["carol"] if self.round == 1 else []
        is_over, is_late = not [*left, *joined][1:], self.round >= self.max_rounds
        observations = dict.fromkeys(self.agents, f"{last} has left.") | dict.fromkeys(joined, "carol, bid.")
        rewards = {a: -1.0 if a == last else 0.0 for a in self.agents}
        terminations = {a: a == last or is_over for a in observations}
        truncations = {a: is_late and not terminations[a] for a in observations}
        if is_over:
            rewards[left[0]] = 1.0
        self.agents = [] if is_over or is_late else [*left, *joined]
        return observations, rewards, terminations, truncations, {a: {"round": self.round} for a in observations}


class Countdown(pettingzoo.AECEnv):
    """By turns each says a number; who says 0 or nothing is out, with a reward of -1, and the last one gets 1."""

    metadata = {"name": "countdown", "is_parallelizable": False}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.possible_agents = ["x", "y", "z"]

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return Text(3, charset="0123456789")

    def observe(self, agent):
        return f"So far: {self.said}"

    def reset(self, seed=None, options=None):
        self.agents, self.said = list(self.possible_agents), []
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {a: {} for a in self.agents}
        self.agent_selection = self.agents[0]

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.said.append(action)
        self._clear_rewards()
        alive = [a for a in self.agents if not self.terminations[a]]
        following = alive[(alive.index(agent) + 1) % len(alive)]
        if not action.strip("0"):
            self.terminations[agent], self.rewards[agent] = True, -1.0
            alive.remove(agent)
            if len(alive) == 1:
                self.terminations[alive[0]], self.rewards[alive[0]] = True, 1.0
        self.agent_selection = following
        self._accumulate_rewards()
        self._deads_step_first()


def test_a_parallel_environment_in_which_agents_come_late_and_leave():
    env = from_pettingzoo(Auction(), system_prompts={"bob": "Be bold."})
    assert env.system_prompts == {"alice": "", "bob": "Be bold.", "carol": ""}
    observations, infos = env.reset(seed=0)
    assert observations == {"alice": "alice, bid.", "bob": "bob, bid."} and infos["bob"] == {"round": 0}
    observations, rewards, terminateds, truncateds, _ = env.step({"alice": "3", "bob": "5"})
    assert observations == {"alice": "alice has left.", "bob": "alice has left.", "carol": "carol, bid."}
    assert rewards == {"alice": -1.0, "bob": 0.0} and env.agents == ["alice", "bob", "carol"]
    assert terminateds == {"alice": True, "bob": False, "carol": False, "__all__": False}
    observations, rewards, terminateds, truncateds, _ = env.step({"bob": "1", "carol": "2"})
    assert rewards == {"bob": -1.0, "carol": 1.0} and terminateds["__all__"] and not truncateds["__all__"]


def test_a_parallel_environment_that_is_cut_short_is_truncated():
    env = from_pettingzoo(Auction(max_rounds=1))
    env.reset(seed=0)
    _, _, terminateds, truncateds, _ = env.step({"alice": "3", "bob": "5"})
    assert terminateds["alice"] and truncateds["bob"]
    assert terminateds["__all__"] and not truncateds["__all__"]


def test_an_environment_by_turns_in_which_agents_leave():
    env = from_pettingzoo(Countdown())
    observations, _ = env.reset(seed=0)
    assert observations == {"x": "So far: []"}
    observations, rewards, *_ = env.step({"x": "7"})
    assert observations == {"y": "So far: ['7']"} and rewards == {"x": 0.0, "y": 0.0, "z": 0.0}
    observations, rewards, terminateds, _, _ = env.step({"y": "0"})
    assert observations == {"y": "So far: ['7', '0']", "z": "So far: ['7', '0']"}  # y reads its last, z acts
    assert rewards == {"x": 0.0, "y": -1.0, "z": 0.0} and terminateds["y"] and not terminateds["__all__"]
    assert env.agents == ["x", "y", "z"]  # y reads its last
    env.step({"z": "1"})
    assert env.agents == ["x", "z"]
    observations, rewards, terminateds, truncateds, _ = env.step({"x": "0"})
    assert rewards["x"] == -1.0 and rewards["z"] == 1.0 and terminateds["__all__"] and not truncateds["__all__"]
    assert set(observations) == {"x", "z"}
    with pytest.raises(ValueError, match="turn of"):
        env.reset(seed=0)
        env.step({"y": "1"})


def test_a_text_is_made_to_fit_into_the_action_space():
    env = from_pettingzoo(Countdown())
    env.reset(seed=0)
    assert env.step({"x": "I say 12345!"})[0] == {"y": "So far: ['123']"}


@pytest.mark.parametrize("make", [Auction, Countdown])
def test_they_keep_the_contract_and_speak_tokens(make):
    broken = {found.rule: found.broken for found in findings(lambda: from_pettingzoo(make())) if found.broken}
    assert set(broken) <= {"nonsense is an ordinary turn without reward"}, broken  # nothing is forbidden to a bidder
    tokens = TokenMultiAgentEnv(from_pettingzoo(make()))
    observations, _ = tokens.reset(seed=0)
    step = tokens.step({agent: tokens.encode_action("7") for agent in observations})
    assert step[0]


def test_what_cannot_be_is_said_in_one_line():
    with pytest.raises(ConfigError, match="must be an AECEnv or a ParallelEnv; got 3"):
        from_pettingzoo(3)
    with pytest.raises(ConfigError, match=r"the observation space of 'alice' must be a gymnasium\.spaces\.Text"):
        from_pettingzoo(Auction(spaces=Discrete(3)))
    with pytest.raises(ConfigError, match="Did you mean 'carol'"):
        from_pettingzoo(Auction(), system_prompts={"carl": "x"})
