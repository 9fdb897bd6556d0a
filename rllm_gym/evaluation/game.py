"""Measures a policy's distance from optimal play, in games where that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.checkpoints import module_folder, read_config
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.export import choose_policy, load_policy, policy_ids
from rllm_gym.evaluation.panel import Panel
from rllm_gym.evaluation.policy import Policy, find_policy, playing_config, set_environments
from rllm_gym.games.measure import completed_by, measure
from rllm_gym.games.nash import rules_of
from rllm_gym.games.questions import ENVIRONMENTS, game_of
from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import DEFAULT_MODULE, SamplingParams


def evaluate_game(
    policy: str | Path,
    game: str,
    *,
    env_config: Mapping[str, Any] | None = None,
    module: str | None = None,
    num_samples: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Ask a policy at every information set of a game, and measure what it would do there in both seats.

        from rllm_gym.evaluation import evaluate_game
        result = evaluate_game("runs/kuhn", "kuhn_poker")
        result["nash_conv"], result["illegal_probability"], result["method"]

    Args:
        policy: a checkpoint, a run or trial (its newest checkpoint), or a Hugging Face model.
        game: `kuhn_poker` or `leduc_poker`.
        env_config: of the game's environment; default: what the policy was trained with, if that was this game.
        module: which policy, where a checkpoint holds several.
        num_samples: completions at each information set, where the chances of moves cannot be computed; default:
            `evaluation_game_samples` of the configuration.
        config: options of the sampler in place of the checkpoint's or the defaults.

    Returns:
        `nash_conv`, `exploitability`, `illegal_probability`, `method` ("exact" or "sampled") and
        `num_information_sets`, see `rllm_gym.games.measure.measure`.

    Raises:
        ConfigError: one of these cannot be.
    """
    rules_of(game)
    found = find_policy(policy)
    algorithm, playing = playing_config(found, config)
    if env_config is None:
        trained = [] if playing.env is None else playing.environments
        env_config = next((dict(spec.env_config) for spec in trained if game_of(spec.env) == game), {})
    if num_samples is not None:
        playing.evaluation_game_samples = num_samples
    result = _measured(found, algorithm, playing, playing.evaluation_params, game, env_config, module)
    if result is None:
        raise ConfigError(
            f"evaluate_game: the turns that say a move in {game} cannot be listed with this policy, and none may be "
            "sampled; got num_samples 0. Raise it."
        )
    return result


def measure_games(policy: Policy, algorithm: Any, config: Any, panels: Mapping[str, Panel]) -> dict[str, Any]:
    """Return the measures of panels that are such games, as an evaluation's report has them.

    Of one policy that was trained, in one game, these are the report's own keys; else they are below
    `games/<environment>/<policy>`.

    Args:
        config: with which the policy plays.
        panels: by the names of their environments.
    """
    modules: Sequence[str | None] = [None]
    if policy.checkpoint is not None:
        trained = read_config(policy.checkpoint)[1]
        modules = [name for name in policy_ids(policy.checkpoint, trained) if trained.is_trained(name)]
    games: dict[str, dict[str, Any]] = {}
    for name, panel in panels.items():
        if game := game_of(panel.env):
            of_game = {
                module or DEFAULT_MODULE: _measured(
                    policy, algorithm, config, panel.sampling, game, panel.env_config, module
                )
                for module in modules
            }
            games[name] = {module: measured for module, measured in of_game.items() if measured is not None}
    found = [measured for of_game in games.values() for measured in of_game.values()]
    return dict(found[0]) if len(found) == 1 else {"games": games} if games else {}


def _measured(
    policy: Policy,
    algorithm: Any,
    config: Any,
    params: SamplingParams,
    game: str,
    env_config: Mapping[str, Any],
    module: str | None,
) -> dict[str, Any] | None:
    module_id = DEFAULT_MODULE
    if policy.checkpoint is not None:
        module_id = choose_policy(policy.checkpoint, policy_ids(policy.checkpoint, config), module)
    settings: dict[str, Any] = {
        "env_config": env_config,
        "params": params,
        "token_options": config.token_options,
    }
    if config.engine != "openai":  # whose model is another one
        lm, chat = _language_model(policy, config, module_id)
        exact = measure(game, chat=chat, lm=lm, **settings)
        if exact is not None:
            return exact
        del lm
    if not config.evaluation_game_samples:
        return None
    playing = config.copy(copy_frozen=False)
    name = ENVIRONMENTS[game][0]
    set_environments(playing, [EnvironmentSpec(name, f"rllm_gym/{name}", env_config)])
    playing.evaluation_splits, playing.scaling_inter = ("train",), None
    if policy.checkpoint is None:
        algo = algorithm(config=playing)
    else:
        algo = algorithm.from_checkpoint(str(policy.checkpoint), config=playing)
    try:
        sampled = measure(
            game,
            chat=ChatTokenizer(**_load_tokenizer(config)),
            complete=completed_by(algo, module_id, params),
            num_samples=playing.evaluation_game_samples,
            **settings,
        )
    finally:
        algo.stop()
    return sampled


def _language_model(policy: Policy, config: Any, module_id: str) -> tuple[Any, ChatTokenizer]:
    """Return the policy's model, with its adapters, and what it reads and writes with."""
    from rllm_gym.learner.rl_module import load_language_model
    from rllm_gym.rotary import fix_rotary_frequencies

    if policy.checkpoint is None:
        lm = load_language_model(config.base_model, config.weight_dtype, trust_remote_code=config.trust_remote_code)
        fix_rotary_frequencies(lm, config.max_model_len)
    else:
        lm = load_policy(module_folder(policy.checkpoint, module_id)).bare_lm
    return lm.eval(), ChatTokenizer(**_load_tokenizer(config), vocab_size=lm.config.get_text_config().vocab_size)


def _load_tokenizer(config: Any) -> dict[str, Any]:
    from rllm_gym.models import resolve_base_model

    return {"tokenizer": str(resolve_base_model(config.base_model)), **config.chat_options}
