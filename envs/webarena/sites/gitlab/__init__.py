"""The code host: projects, files, commits, members, issues, merge requests."""

from rllm_gym.envs.webarena.sites.gitlab import projects, work  # noqa: F401  (they add their pages)
from rllm_gym.envs.webarena.sites.gitlab.base import SITE

__all__ = ["SITE"]
