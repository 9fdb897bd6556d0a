"""The worlds: text environments of Gymnasium, one folder each.

Every world is a `TextEnv` (`base.py`); `wrappers.py` gives it tokens; `multi_agent.py` is the base of worlds with
several agents, and is not imported here because it loads RLlib.
"""

from rllm_gym.envs.base import TextEnv, parse_action
from rllm_gym.envs.text_space import UnicodeText

__all__ = ["TextEnv", "UnicodeText", "parse_action"]
