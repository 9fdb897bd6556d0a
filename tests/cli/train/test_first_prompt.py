"""The dry run's first prompt is that of a task which training plays, reset with the same seed."""

from __future__ import annotations

from typing import Any, ClassVar

from ray.tune.registry import register_env

from rllm_gym.cli.train import first_prompt
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import AGENT
from tests.wiring import harness
from tests.wiring.maze import Maze


class Seeds(Maze):
    """A maze that writes down what it is reset with."""

    resets: ClassVar[list[tuple[Any, Any]]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.resets.append((seed, options))
        return super().reset(seed=seed, options=options)


register_env("seeds", lambda config: Seeds(**config))


def test_it_is_the_prompt_of_a_group_that_training_plays(ray_cluster: Any, tiny_model: Any) -> None:
    Seeds.resets.clear()
    with harness.run(tiny_model, env="seeds", seed=3) as run:
        trained = set(map(repr, Seeds.resets))
        [spec] = run.algo.config.environments
        names = ("seed", "group_size", "env_timeout_s", "token_options")
        settings = {name: getattr(run.algo.config, name) for name in names}
    Seeds.resets.clear()
    found = first_prompt._first_prompt(spec, ChatTokenizer(str(tiny_model)), settings)
    assert found.num_tokens > 0 and found.agents == (AGENT,)
    assert repr(Seeds.resets[-1]) in trained
