"""Train LLM agents by multi-turn reinforcement learning, on Gymnasium and RLlib.

Importing it registers the environments with Gymnasium and loads no heavy library.
"""

from importlib.metadata import PackageNotFoundError, version

from rllm_gym.registration import (
    make_env,
    make_multi_agent,
    normalize_env_id,
    register_multi_agent_env,
    register_text_env,
)

try:
    __version__ = version("rllm-gym")
except PackageNotFoundError:  # a copy that nobody installed, such as one that Ray's py_modules carried to a worker
    __version__ = "unknown"
__all__ = [
    "__version__",
    "make_env",
    "make_multi_agent",
    "normalize_env_id",
    "register_multi_agent_env",
    "register_text_env",
]

register_text_env("rllm_gym/ALFWorld-v0", "rllm_gym.envs.alfworld.env:ALFWorldEnv")
register_text_env("rllm_gym/AgentGym-v0", "rllm_gym.envs.remote.agentgym:AgentGymEnv")
register_text_env(
    "rllm_gym/BabyAI-v0", "rllm_gym.envs.babyai.env:BabyAIEnv", agentgym="rllm_gym.envs.babyai.agentgym:AgentGymBabyAI"
)
register_text_env("rllm_gym/MiniWoB-v0", "rllm_gym.envs.miniwob.env:MiniWoBEnv")
register_text_env("rllm_gym/OpenEnv-v0", "rllm_gym.envs.remote.openenv:OpenEnvEnv")
register_text_env("rllm_gym/Program-v0", "rllm_gym.envs.program.env:ProgramEnv")
register_text_env(
    "rllm_gym/SciWorld-v0",
    "rllm_gym.envs.sciworld.env:SciWorldEnv",
    agentgym="rllm_gym.envs.sciworld.agentgym:AgentGymSciWorld",
)
register_text_env(
    "rllm_gym/SearchQA-v0",
    "rllm_gym.envs.searchqa.env:SearchQAEnv",
    agentgym="rllm_gym.envs.searchqa.agentgym:AgentGymSearchQA",
)
register_text_env("rllm_gym/TextArena-v0", "rllm_gym.envs.textarena.env:TextArenaEnv")
register_text_env(
    "rllm_gym/TextCraft-v0",
    "rllm_gym.envs.textcraft.env:TextCraftEnv",
    agentgym="rllm_gym.envs.textcraft.agentgym:AgentGymTextCraft",
)
register_text_env("rllm_gym/TextWorld-v0", "rllm_gym.envs.textworld.env:TextWorldEnv")
register_text_env(
    "rllm_gym/WebArena-v0",
    "rllm_gym.envs.webarena.env:WebArenaEnv",
    agentgym="rllm_gym.envs.webarena.agentgym:AgentGymWebArena",
)

register_multi_agent_env("rllm_gym/KuhnPoker-v0", "rllm_gym.envs.poker.env:KuhnPokerEnv")
register_multi_agent_env("rllm_gym/LeducPoker-v0", "rllm_gym.envs.poker.env:LeducPokerEnv")
register_multi_agent_env("rllm_gym/TextArenaDuel-v0", "rllm_gym.envs.textarena.duel:TextArenaDuelEnv")
register_multi_agent_env("rllm_gym/TextCraftDuo-v0", "rllm_gym.envs.textcraft.duo:TextCraftDuoEnv")
