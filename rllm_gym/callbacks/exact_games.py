"""ExactGames: an RLlib callback that measures, at every evaluation, how far a policy is from optimal play."""

from __future__ import annotations

import contextlib
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllm_gym.games.measure import completed_by, measure
from rllm_gym.games.questions import game_of
from rllm_gym.models import resolve_base_model
from rllm_gym.tokens import ChatTokenizer


class ExactGames(RLlibCallback):
    """Adds `nash_conv`, `exploitability`, `illegal_probability` and `method` to an evaluation's results.

    It acts where an environment that is evaluated is a game whose optimal play is known (`rllm_gym.games`), on every
    policy that is trained. Several games or policies have their results below `games/<environment>/<policy>`. Every
    `LLMConfig` algorithm runs this callback.
    """

    def on_evaluate_end(self, *, algorithm: Any, evaluation_metrics: dict[str, Any], **kwargs: Any) -> None:
        config = algorithm.config
        found = {
            (spec.name, module_id): result
            for spec in config.evaluation_environments
            if (game := game_of(spec.env)) is not None
            for module_id in sorted(config.policies)
            if config.is_trained(module_id)
            if (result := _measured(algorithm, game, spec.env_config, module_id)) is not None
        }
        if len(found) == 1:
            evaluation_metrics.update(*found.values())
            return
        for (name, module_id), result in found.items():
            evaluation_metrics.setdefault("games", {}).setdefault(name, {})[module_id] = result


def _measured(algorithm: Any, game: str, env_config: Any, module_id: str) -> dict[str, Any] | None:
    config = algorithm.config
    module = algorithm.get_module(module_id)
    lm = module.bare_lm
    gathered = module.gather_parameters
    chat = ChatTokenizer(
        str(resolve_base_model(config.base_model)),
        vocab_size=lm.config.get_text_config().vocab_size,
        **config.chat_options,
    )

    was_training = lm.training
    lm.eval()
    try:
        with contextlib.nullcontext() if gathered is None else gathered(list(module.parameters())):
            return measure(
                game,
                env_config=dict(env_config),
                chat=chat,
                params=config.evaluation_params,
                lm=lm,
                complete=completed_by(algorithm, module_id, config.evaluation_params),
                num_samples=config.evaluation_game_samples,
                token_options=config.token_options,
            )
    finally:
        lm.train(was_training)
