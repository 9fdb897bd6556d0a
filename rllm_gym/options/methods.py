"""The methods, and the options of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from typing_extensions import Doc

from rllm_gym.callbacks.opponent_pool import Opponent, parse_opponents
from rllm_gym.errors import ConfigError, nearest
from rllm_gym.options.common import CommonOptions
from rllm_gym.options.table import faults_raised_by
from rllm_gym.options.types import Count, CountOrZero, Finite, Fraction, NonNegative, Positive

EXPERT = "expert"  # the `data` that an environment's own expert plays
SAMPLE = "sample"  # the `data` of DPO that the policy itself plays
CRITIC_SUFFIX = "_critic"
CENTRALISED_CRITIC = "centralised_critic"


class PolicyGradientOptions(CommonOptions):
    """Options of every method that reinforces the tokens it sampled."""

    opponents: Annotated[
        dict,
        Doc(
            "who plays an agent, in environments of several: `{player_1: self | random | expert | {frozen: CHECKPOINT} "
            "| {pool: {every: n, size: m, sampling: uniform | latest | hardest}}}`; `self` is the policy that learns. "
            "See [Opponents](opponents.md)."
        ),
    ] = {}
    clip_low: Annotated[NonNegative, Doc("how far the probability ratio may fall below 1.")] = 0.2
    clip_high: Annotated[NonNegative, Doc("how far it may rise above 1.")] = 0.2
    dual_clip: Annotated[
        Annotated[float, Field(ge=1, allow_inf_nan=False)] | None,
        Doc("bounds the loss of a negative advantage to so many times its size; 3.0 in the paper, null does not."),
    ] = None
    ratio_level: Annotated[
        Literal["token", "sequence"],
        Doc(
            "one probability ratio per `token` or per `sequence`, the sampled tokens of one context (GSPO; GSPO-token "
            "where advantages differ within one)."
        ),
    ] = "token"
    loss_average: Annotated[
        Literal["tokens", "sequences", "episodes", "constant"],
        Doc(
            "what surrogate, KL and entropy are averaged over: `tokens` of the minibatch; `sequences` (an agent's "
            "episode, in however many contexts), or `episodes` (of all its agents), and each one's tokens; "
            "`constant`: a sum over tokens, over sequences times `loss_constant`."
        ),
    ] = "tokens"
    loss_constant: Annotated[
        Count | None,
        Doc(
            "tokens; null is the most that an episode can sample, min(`max_model_len`, longest horizon x "
            "`max_new_tokens`)."
        ),
    ] = None
    kl_coeff: Annotated[
        NonNegative,
        Doc(
            "weight of the KL to the frozen `base_model` (with LoRA to the model without its adapter); 0 keeps no "
            "reference model in memory."
        ),
    ] = 0.0
    kl_kind: Annotated[
        Literal["k1", "k2", "k3", "low_variance"],
        Doc("the estimator, see `rllm_gym.algorithms.functional.kl_estimate`; `low_variance` is k3 up to 10."),
    ] = "k3"
    kl_in: Annotated[
        Literal["loss", "reward"], Doc("where the KL stands: `loss`, or `reward`, as a penalty on each sampled token.")
    ] = "loss"
    kl_target: Annotated[
        Positive | None,
        Doc(
            "nats per token; makes `kl_coeff` follow after every train step, so that the KL stays there; null keeps it "
            "fixed. See `rllm_gym.algorithms.functional.adaptive_kl_coeff`."
        ),
    ] = None
    kl_rate: Annotated[NonNegative, Doc("how fast `kl_coeff` follows.")] = 0.1
    entropy_coeff: Annotated[NonNegative, Doc("weight of an entropy bonus.")] = 0.0
    old_logp: Annotated[
        Literal["rollout", "recompute"],
        Doc(
            "log-probabilities before the update: as the sampler recorded them, or recomputed by the trainer, where "
            "the first minibatch has a ratio of exactly 1."
        ),
    ] = "rollout"
    save_trainer_logp: Annotated[
        bool,
        Doc(
            "store the trainer's log-probabilities before the update with the trajectories, for what is trained on, "
            "also where nothing else needs them: one forward pass more in a train step."
        ),
    ] = False
    importance_correction: Annotated[
        Literal["off", "token", "sequence"],
        Doc(
            "weighs the surrogate by trainer / sampler probability, of each `token` or of the whole `sequence`; needs "
            "`old_logp: recompute`. See `rllm_gym.algorithms.functional.importance_weight`."
        ),
    ] = "off"
    importance_mode: Annotated[
        Literal["truncate", "mask"],
        Doc("`truncate` holds weights to `importance_cap`, `mask` drops what is beyond it."),
    ] = "truncate"
    importance_cap: Annotated[
        Annotated[float, Field(ge=1, allow_inf_nan=False)], Doc("bound on the weights of `importance_correction`.")
    ] = 2.0
    importance_veto: Annotated[
        NonNegative | None, Doc("drops a sequence with a token whose weight is below this; null drops none.")
    ] = None
    invalid_action_penalty: Annotated[
        NonNegative, Doc('taken off the reward of a turn with `info["is_invalid_action"]`.')
    ] = 0.0
    overlong_filter: Annotated[
        bool,
        Doc(
            "leave episodes out of the loss that ended because the context was full; they still count in their group's "
            "statistics. Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.4."
        ),
    ] = False
    filter_groups: Annotated[
        Literal["advantage", "success", "off"],
        Doc(
            "which groups are dropped before the averages: those whose `advantage`s are all 0, or whose episodes all "
            "succeeded or all failed (`success`), or none (`off`), so that KL and entropy act on all."
        ),
    ] = "advantage"
    task_sampling: Annotated[
        Literal["uniform", "difficulty"],
        Doc(
            "which tasks are played: `uniform`, each once before any is played again; `difficulty`, more often those "
            "whose episodes have ended differently of late, at the present horizon, for only these teach."
        ),
    ] = "uniform"
    min_probability: Annotated[
        Annotated[float, Field(gt=0, le=1)],
        Doc("with `task_sampling: difficulty`: a task's least probability, as a share of that of `uniform`."),
    ] = 0.1
    screening_size: Annotated[
        Annotated[int, Field(ge=2)] | None,
        Doc(
            "how many of a group's episodes are played first; where these end with the same return, the others are not "
            "played (Zhang et al. 2025 (SPEED), arXiv:2506.09016). null plays all."
        ),
    ] = None
    staleness: Annotated[
        CountOrZero,
        Doc(
            "how many train steps later a group of episodes may be learnt from. 0 samples and learns in turns; with 1 "
            "or more the EnvRunners play for the next steps while the learners train, and get new weights between two "
            "tokens. See [Sampling ahead](overlap.md)."
        ),
    ] = 0
    max_empty_steps: Annotated[
        Count, Doc("train steps in a row that may teach nothing (every advantage is 0) before the run stops.")
    ] = 10
    max_refill_rounds: Annotated[
        CountOrZero,
        Doc(
            "how often a train step samples fresh tasks for the groups that it dropped (dynamic sampling, Yu et al. "
            "2025 (DAPO), arXiv:2503.14476, section 3.2); 0 goes on with what is left."
        ),
    ] = 0

    # With an underscore: RLlib takes attributes without one for options.
    _needs_group = False
    _whitens_batch = False

    @property
    def opponent_specs(self) -> dict[str, Opponent]:
        return parse_opponents(self.opponents)

    @property
    def is_kl_in_reward(self) -> bool:
        return self.kl_coeff > 0 and self.kl_in == "reward"

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        who = self.who
        if self._needs_group and self.group_size < 2:
            yield (
                f"{who}: group_size must be at least 2, since one episode has no group mean; got {self.group_size}. "
                "Set .env_runners(group_size=...)."
            )
        if self.task_sampling == "difficulty" and self.group_size < 2:
            yield (
                f"{who}: task_sampling: difficulty compares the episodes of a task, so that group_size must be at "
                f"least 2; got {self.group_size}. Raise it, or set task_sampling: uniform."
            )
        if self.screening_size is not None and not self._needs_group:
            yield (
                f"{who}: screening_size stops groups from which a comparison within them would learn nothing, and "
                f"nothing is compared within a group here; got {self.screening_size}. Leave it out."
            )
        elif self.screening_size is not None and self.screening_size >= self.group_size:
            yield (
                f"{who}: screening_size must be below group_size, or no episode is left to play after; got "
                f"{self.screening_size} of {self.group_size}. Lower it, or leave it out."
            )
        if self._whitens_batch and not self._needs_group and self.filter_groups == "advantage":
            yield (
                f"{who}: filter_groups: advantage drops groups in which all returns are equal, and here no episode is "
                "compared with its group. Set filter_groups: off."
            )
        if self.kl_target is not None and 0 in (self.kl_target, self.kl_coeff):
            yield (
                f"{who}: kl_target and the kl_coeff to begin with must be above 0; got {self.kl_target} and "
                f"{self.kl_coeff}. Set both, or kl_target: null for a fixed coefficient."
            )
        if self.temperature == 0:
            yield f"{who}: training needs temperature above 0, or a group's episodes are all the same; got 0."
        if (self.top_p, self.top_k) != (1, 0):
            yield (
                f"{who}: top_p and top_k must be off (1.0 and 0) in training, or the sampler's log-probabilities are "
                f"of another distribution than the trainer's; got {self.top_p} and {self.top_k}. Leave them out."
            )
        if self.importance_correction != "off" and self.old_logp != "recompute":
            yield (
                f"{who}: importance_correction: {self.importance_correction} compares the trainer's old "
                "log-probabilities with the sampler's; got old_logp: rollout. Set old_logp: recompute."
            )
        if self.importance_correction == "off" and self.importance_veto is not None:
            yield f"{who}: importance_veto goes with an importance_correction; got off. Set token or sequence."
        if self.ratio_level == "sequence" and self.loss_average in ("tokens", "constant"):
            yield (
                f"{who}: ratio_level: sequence needs loss_average: sequences or episodes, for every token carries its "
                f"sequence's loss; got {self.loss_average}. Set it, or preset: gspo."
            )
        yield from self._opponent_faults()

    def _opponent_faults(self) -> Iterator[str]:
        if unreadable := faults_raised_by(lambda: self.opponent_specs):
            yield from unreadable
            return
        for agent_id, opponent in self.opponent_specs.items():
            if opponent.kind != "self" and (name := opponent.module_of(agent_id)) in self.policy_ids:
                yield f"{self.who}: no policy may have the name of an opponent; got {name!r}. Rename it."
        pools = [agent_id for agent_id, opponent in self.opponent_specs.items() if opponent.kind == "pool"]
        if self.staleness and pools:
            yield (
                f"{self.who}: staleness must be 0 where opponents come from a pool, which would change under episodes "
                f"that go on; got {self.staleness}, and a pool for {pools[0]}."
            )


class GroupRelativeOptions(PolicyGradientOptions):
    """Options of the methods that compare the episodes of a group."""

    advantage: Annotated[
        Literal["agent", "agent_turn", "joint", "role"],
        Doc(
            "what a return is compared with, where several agents act: `agent`, those of the same role in the task's "
            "other episodes (Dr. MAS, Feng et al. 2026, arXiv:2602.08847); `agent_turn`, the same turn by turn "
            "(AT-GRPO, arXiv:2510.11062); `joint`, the sum of all agents' returns with the other episodes' sums "
            "(MAGRPO, arXiv:2508.04652); `role`, a moving average of the role's returns, without a group (SPIRAL, "
            "arXiv:2506.24119)."
        ),
    ] = "agent"
    role_decay: Annotated[
        Fraction, Doc("of `advantage: role`: how much of the moving average stays when a return is added.")
    ] = 0.95
    step_gamma: Annotated[
        Fraction,
        Doc("discount per turn of the returns that turns are compared by (`advantage: agent_turn`, `step_weight`)."),
    ] = 0.95

    @property
    def _needs_group(self) -> bool:  # type: ignore[override]
        return self.advantage != "role"

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.advantage == "joint" and self.is_kl_in_reward:
            yield (
                f"{self.who}: advantage: joint compares the returns of a team, which cannot hold the KL to one "
                "policy's reference; got kl_in: reward. Set kl_in: loss."
            )


# Groups of equal returns stay in the averages, and the KL acts on them: only DAPO drops groups.
PRESETS: dict[str, dict[str, Any]] = {
    # Shao et al. 2024, arXiv:2402.03300, eq. 3 and section 4.2 (the KL's weight); the clip range is PPO's.
    "grpo": {"normalize_std": True, "loss_average": "sequences", "clip_low": 0.2, "clip_high": 0.2}
    | {"kl_coeff": 0.04, "kl_kind": "k3", "kl_in": "loss", "filter_groups": "off"},
    # Liu et al. 2025, arXiv:2503.20783, section 3: neither of the two divisions that favour long wrong answers and easy
    # tasks; the clip range is PPO's. The constant is what an episode can sample, as in the authors' code.
    "dr_grpo": {"normalize_std": False, "loss_average": "constant", "clip_high": 0.2, "filter_groups": "off"},
    # Yu et al. 2025, arXiv:2503.14476, section 4.1: a buffer of 4,096 of 20,480 tokens, no KL; 3.4: overlong episodes
    # are filtered. Groups by success and 10 rounds in all are verl's recipe's (filter_groups.metric: acc,
    # max_num_gen_batches: 10).
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "loss_average": "tokens", "overlong_buffer": 0.2, "kl_coeff": 0.0}
    | {"overlong_filter": True, "filter_groups": "success", "max_refill_rounds": 9},
    # Zheng et al. 2025, arXiv:2507.18071, section 5.1: the clip range of its eq. 5, four minibatches. The range is far
    # below what sampler and trainer differ by in 16 bits, so the trainer computes the old log-probabilities.
    "gspo": {"ratio_level": "sequence", "loss_average": "sequences", "clip_low": 3e-4, "clip_high": 4e-4}
    | {"old_logp": "recompute", "num_minibatches": 4, "filter_groups": "off"},
    # Feng et al. 2025, arXiv:2505.10978: omega 1, gamma 0.95; KL 0.01 (low_var_kl), the penalty for invalid actions and
    # the division by the standard deviation are their ALFWorld script's (verl-agent), the clip range is verl's default.
    "gigpo": {"step_weight": 1.0, "step_gamma": 0.95, "clip_high": 0.2, "normalize_std": True, "filter_groups": "off"}
    | {"kl_coeff": 0.01, "kl_kind": "low_variance", "kl_in": "loss", "invalid_action_penalty": 0.1},
}


class GRPOOptions(GroupRelativeOptions):
    """GRPO's own options."""

    clip_high = 0.28
    normalize_std: Annotated[bool, Doc("divide advantages by their group's standard deviation.")] = True
    overlong_buffer: Annotated[
        Fraction, Doc("share of `max_model_len` over which the return of a long episode falls by 1; 0 for none.")
    ] = 0.0
    step_weight: Annotated[
        NonNegative,
        Doc(
            "weight of a turn's advantage among the turns of its group that began with the same observation; 0 gives "
            "all turns the episode's."
        ),
    ] = 0.0
    preset: Annotated[
        Literal["grpo", "dr_grpo", "dapo", "gspo", "gigpo"] | None,
        Doc(
            "sets the options of GRPO as published, or of a method that grew from it (see `PRESETS` in "
            "`rllm_gym/options/methods.py`); options given beside it win."
        ),
    ] = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "preset" and value is not None:
            if value not in PRESETS:
                raise ConfigError(
                    f"{self.who}: no preset has this name; got {value!r}. Did you mean {nearest(value, PRESETS)!r}?"
                )
            for option, preset_value in PRESETS[value].items():
                setattr(self, option, preset_value)

    def in_order(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        # The preset first, wherever it stands, so that the options beside it win.
        return dict(sorted(options.items(), key=lambda item: item[0] != "preset"))

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.overlong_buffer > 0 and round(self.overlong_buffer * self.max_model_len) <= self.max_new_tokens:
            yield (
                f"{self.who}: overlong_buffer must begin before an episode ends for want of room for a turn, so that "
                f"its share of max_model_len must be above max_new_tokens; got {self.overlong_buffer} of "
                f"{self.max_model_len} and {self.max_new_tokens}. Raise it, or lower max_new_tokens."
            )
        if self.overlong_buffer > 0 and self.advantage == "joint":
            yield (
                f"{self.who}: advantage: joint gives a team one advantage, and overlong_buffer lowers each agent's own "
                f"return; got {self.overlong_buffer}. Set overlong_buffer: 0, or advantage: agent."
            )
        differing = {"advantage: agent_turn": self.advantage == "agent_turn", "step_weight": self.step_weight > 0}
        differing |= {"overlong_buffer": self.overlong_buffer > 0, "kl_in: reward": self.is_kl_in_reward}
        if self.screening_size is not None and (found := [name for name, is_set in differing.items() if is_set]):
            yield (
                f"{self.who}: screening_size stops groups whose first episodes earn the same, and with "
                f"{found[0]} these teach something, too; got both. Leave one of them out."
            )
        if self.step_weight > 0 and self.advantage != "agent":
            yield (
                f"{self.who}: step_weight adds to the advantage of whole episodes, agent by agent; got advantage: "
                f"{self.advantage}. Set advantage: agent, or step_weight: 0."
            )


class PPOOptions(PolicyGradientOptions):
    """PPO's own options."""

    group_size = 1  # the critic is the baseline, so episodes need no group
    groups_per_step = 64
    filter_groups = "off"
    _whitens_batch = True
    gamma: Annotated[Fraction, Doc("discount.")] = 1.0
    lambda_: Annotated[Fraction, Doc("trace decay of GAE; in YAML also `lambda`.")] = 1.0
    gae_per: Annotated[
        Literal["token", "turn"], Doc("whether gamma and lambda count once per sampled `token` or once per `turn`.")
    ] = "token"
    bootstrap: Annotated[
        Literal["never", "truncated"],
        Doc(
            "`never`: the horizon is part of the task, and an episode that it ends has earned what it has earned. "
            "`truncated`: the critic values what would have come; for tasks that only happen to be cut."
        ),
    ] = "never"
    critic: Annotated[
        Literal["separate", "shared", "centralised"],
        Doc(
            "`separate` is a module of its own (`<policy>_critic`), begun from `base_model`, which only learners hold; "
            "`shared` is a value head on the policy's backbone; `centralised` is one for all policies "
            "(`centralised_critic`), which reads what all agents of an episode have read and written."
        ),
    ] = "separate"
    critic_lr: Annotated[NonNegative, Doc("learning rate of a critic that is not shared.")] = 1e-5
    critic_epochs: Annotated[
        Count, Doc("passes of a critic that is not shared over a train step's samples; `num_epochs` are the policy's.")
    ] = 1
    critic_deepspeed: Annotated[
        dict,
        Doc(
            "merged over `deepspeed` for a critic that is not shared, which takes no `optimizer` and no `scheduler` "
            "from there: they are the policy's."
        ),
    ] = {}
    critic_warmup_steps: Annotated[
        CountOrZero, Doc("train steps at the start in which the critic learns and the policy stands still.")
    ] = 0
    vf_loss_coeff: Annotated[NonNegative, Doc("weight of the shared critic's loss.")] = 0.1
    vf_clip: Annotated[
        Positive | None, Doc("how far a value may move from the one before the update; null does not clip.")
    ] = 0.2

    def critic_of(self, policy_id: str) -> str:
        """Return the module that values a policy's tokens."""
        return {"separate": policy_id + CRITIC_SUFFIX, "centralised": CENTRALISED_CRITIC}.get(self.critic, policy_id)

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.critic == "shared" and self.critic_epochs != 1:
            yield (
                f"{self.who}: critic_epochs are the separate critic's; got {self.critic_epochs} with critic: shared. "
                "Set num_epochs, which are both's, or critic: separate."
            )
        if self.critic == "centralised" and self.bootstrap == "truncated":
            yield (
                f"{self.who}: a centralised critic cannot bootstrap, since it does not know whose future to value "
                "after the last token of all agents; got bootstrap: truncated. Set bootstrap: never, or critic: "
                "separate."
            )
        for policy_id in self.policy_ids:
            critic = self.critic_of(policy_id)
            if critic != policy_id and critic in self.policy_ids:
                yield (
                    f"{self.who}: the critic of policy {policy_id!r} takes the id {critic!r}, which must not be a "
                    "policy's. Rename that policy."
                )


class RLOOOptions(GroupRelativeOptions):
    """RLOO's defaults."""

    kl_in = "reward"
    kl_kind = "k1"


class ReMaxOptions(PolicyGradientOptions):
    """ReMax's defaults."""

    group_size = 1
    groups_per_step = 64

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.kl_in != "loss":
            yield f"{self.who}: kl_in must be loss; got {self.kl_in!r}."
        if self.staleness:
            yield (
                f"{self.who}: staleness must be 0, for greedy episodes are played when the sampled ones have ended; "
                f"got {self.staleness}."
            )
        if self.has_named_policies:
            yield f"{self.who}: environments of several agents have no single greedy episode to compare with."


class ReinforcePPOptions(PolicyGradientOptions):
    """REINFORCE++'s own options."""

    gamma: Annotated[Fraction, Doc("discount per sampled token.")] = 1.0
    baseline: Annotated[
        Literal["none", "group"], Doc("what is taken off an episode's return: `none`, or the mean of its `group`.")
    ] = "none"
    kl_in = "reward"
    kl_kind = "k1"
    group_size = 1
    groups_per_step = 64
    filter_groups = "off"  # all of the batch that advantages are whitened over is trained on
    _whitens_batch = True

    @property
    def _needs_group(self) -> bool:  # type: ignore[override]
        return self.baseline == "group"

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.baseline == "group" and self.gamma != 1:
            yield (
                f"{self.who}: baseline: group compares whole episodes, whose returns are not discounted; got gamma: "
                f"{self.gamma!r}. Set gamma: 1.0, or baseline: none."
            )


class DistillOptions(PolicyGradientOptions):
    """On-policy distillation's own options."""

    teacher: Annotated[
        str | None,
        Doc(
            "who the policy learns from: a model as for `base_model`, or a checkpoint or run (its newest checkpoint); "
            "every learner holds it whole. It must have the policy's tokenizer."
        ),
    ] = None
    teacher_weight: Annotated[Positive, Doc("weight of the teacher's advantage, or of the divergence.")] = 1.0
    divergence: Annotated[
        Literal["forward_kl", "reverse_kl", "jsd"] | None,
        Doc(
            "null reinforces each sampled token by the teacher's log-probability less the policy's; a name is a loss "
            "over the whole vocabulary at each sampled token, by backpropagation (GKD)."
        ),
    ] = None
    jsd_beta: Annotated[
        Annotated[float, Field(gt=0, lt=1)], Doc("the teacher's share of the mixture in `divergence: jsd`.")
    ] = 0.5
    with_reward: Annotated[
        bool,
        Doc("also reinforce by the environment's reward: GRPO's advantage of the group is added."),
    ] = False
    group_size = 1
    groups_per_step = 64
    filter_groups = "off"  # the teacher has something to say of every token

    @property
    def _needs_group(self) -> bool:  # type: ignore[override]
        return self.with_reward

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if not self.teacher:
            yield f"{self.who}: needs a teacher; got none. Set teacher: to a model, a checkpoint or a run."
        if self.kl_coeff:
            yield (
                f"{self.who}: kl_coeff must be 0, for the teacher stands where the reference would; got "
                f"{self.kl_coeff!r}. Leave it out."
            )
        if self.filter_groups != "off":
            yield f"{self.who}: filter_groups must be off; got {self.filter_groups!r}. Leave it out."
        if self.screening_size is not None:
            yield f"{self.who}: screening_size must be null; got {self.screening_size!r}. Leave it out."


class OfflineOptions(CommonOptions):
    """Options of every method that learns from recorded episodes."""

    needs_env = False

    data: Annotated[
        str | None,
        Doc(
            "`expert` (the environment's own expert plays), or a path: trajectories (a run, a trial, a folder, a "
            "file), or JSON (AgentGym's trajectories, chat messages); or `module:name`, a function from a "
            "`SampleMaker` to samples."
        ),
    ] = "expert"
    num_expert_episodes: Annotated[
        Count, Doc("how many episodes the expert plays; those it does not solve are left out.")
    ] = 1000
    num_expert_workers: Annotated[
        CountOrZero, Doc("Ray actors that play the expert's episodes; 0 plays them in the driver.")
    ] = 0
    min_return: Annotated[Finite | None, Doc("leaves out stored episodes with a lower return; null keeps all.")] = None
    retokenize: Annotated[bool, Doc("encode stored messages anew, for a model with another tokenizer.")] = False
    observation_weight: Annotated[
        NonNegative,
        Doc(
            "how much the environment's words count in the loss, beside 1 for the assistant's; the loss is divided by "
            "the sum of these weights."
        ),
    ] = 0.0
    evaluation_data: Annotated[
        str | None,
        Doc(
            "what a loss on held-out samples is computed on: a path, or `expert`, who then plays the first of "
            "`evaluation_splits`; null holds samples of `data` out."
        ),
    ] = None
    num_evaluation_samples: Annotated[Count, Doc("samples to compute that loss on.")] = 64
    samples_per_step: Annotated[Count, Doc("samples of a train step, in `num_minibatches` optimizer steps.")] = 32

    _needs_data = True  # with an underscore: RLlib takes attributes without one for options

    @property
    def has_env_runners(self) -> bool:
        return bool(self.env and self.evaluation_interval)

    def data_sources(self) -> list[str]:
        """Return the sources of samples: paths, functions, or `expert`."""
        return [source for source in (self.data, self.evaluation_data) if source is not None]

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        who = self.who
        if self.has_named_policies:
            yield (
                f"{who}: one policy is trained, the default one; got {', '.join(sorted(self.policy_ids))}. Leave out "
                "policies."
            )
        if self.num_minibatches > self.samples_per_step:
            yield (
                f"{who}: num_minibatches must be at most samples_per_step, {self.samples_per_step}; got "
                f"{self.num_minibatches}. Lower it."
            )
        if self.data is None and self._needs_data:
            yield f"{who}: data must be `expert` or a path; got none. Set it."
        if EXPERT in self.data_sources() and not self.env:
            yield f"{who}: data: expert needs an environment; got none. Set env, or give a path."


class SFTOptions(OfflineOptions):
    """SFT's defaults."""

    lr = 1e-5


class DPOOptions(OfflineOptions):
    """DPO's own options. `data: sample` lets the initial policy play groups; samples are pairs."""

    data = SAMPLE
    learns_from_its_trajectories = True
    pairs_within: Annotated[
        Literal["task", "group"],
        Doc(
            "which episodes the best and the worst are taken of: all of the same `task`, or those of a `group`, which "
            "were sampled together."
        ),
    ] = "task"
    reward_gap: Annotated[
        NonNegative, Doc("how much better the chosen episode must be than the rejected one, at least.")
    ] = 0.1
    expert_threshold: Annotated[Finite | None, Doc("the least return of a chosen episode; null asks for none.")] = 0.9
    num_sampled_groups: Annotated[Count, Doc("groups to play for `data: sample`.")] = 128
    beta: Annotated[
        Positive, Doc("how strongly the policy is held to the reference, which is the policy before the first step.")
    ] = 0.1
    label_smoothing: Annotated[
        Annotated[float, Field(ge=0, lt=0.5)], Doc("the chance that a pair is the other way round.")
    ] = 0.0
    kind: Annotated[Literal["sigmoid", "ipo"], Doc("`sigmoid` (DPO) or `ipo`.")] = "sigmoid"

    @property
    def has_env_runners(self) -> bool:
        return super().has_env_runners or self.data == SAMPLE

    def data_sources(self) -> list[str]:
        return [source for source in super().data_sources() if source != SAMPLE]

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        who = self.who
        if self.observation_weight:
            yield f"{who}: observation_weight must be 0; got {self.observation_weight!r}. Leave it out."
        if EXPERT in self.data_sources():
            yield f"{who}: data: must be pairs; got expert, who has no worse episodes. Set data: sample."
        if self.data == SAMPLE:
            for rule, holds in (
                ("an environment; got none. Set env", bool(self.env)),
                (f"group_size of at least 2; got {self.group_size}. Raise it", self.group_size >= 2),
                ("save_trajectories: true, for a resumed run reads them; got false. Set it", self.save_trajectories),
            ):
                if not holds:
                    yield f"{who}: data: sample needs {rule}, or give a path to pairs."


class AgentEvolOptions(OfflineOptions):
    """AgentEvol's own options. A train step is a generation: it plays, keeps, and trains on what it kept."""

    needs_env = True
    learns_from_its_trajectories = True
    _needs_data = False

    lr = 1e-5
    groups_per_step = 64
    keep: Annotated[
        Literal["threshold", "reward"],
        Doc("`threshold` keeps the episodes whose return is at least `threshold`, `reward` weighs all by return."),
    ] = "threshold"
    threshold: Annotated[Finite, Doc("the least return of what `keep: threshold` keeps.")] = 1.0
    keep_per_item: Annotated[
        Count | None, Doc("of each task the first so many that are kept of a generation; null keeps all.")
    ] = 1
    accumulates: Annotated[bool, Doc("train a generation on what earlier ones have kept, too.")] = True
    num_cloning_epochs: Annotated[
        CountOrZero, Doc("passes over the base data before the first generation explores.")
    ] = 1
    num_generation_epochs: Annotated[
        Count, Doc("passes over the base data and the kept episodes in each generation.")
    ] = 1
    restart_from_base: Annotated[
        bool,
        Doc(
            "train each generation from `base_model`, as published, with a new optimizer and its schedule from the "
            "beginning; false goes on with all three."
        ),
    ] = True
    groups_per_request: Annotated[
        Count,
        Doc("groups that are played between two writes to the trajectories. A killed run loses no more than those."),
    ] = 64

    @property
    def has_env_runners(self) -> bool:
        return True


class Method(NamedTuple):
    """A method that ships: the table of its options, and where its class is."""

    table: type[CommonOptions]
    path: str


# By the name that `run` has.
METHODS = {
    "GRPO": Method(GRPOOptions, "rllm_gym.algorithms.grpo:GRPO"),
    "PPO": Method(PPOOptions, "rllm_gym.algorithms.ppo:PPO"),
    "RLOO": Method(RLOOOptions, "rllm_gym.algorithms.rloo:RLOO"),
    "ReMax": Method(ReMaxOptions, "rllm_gym.algorithms.remax:ReMax"),
    "ReinforcePP": Method(ReinforcePPOptions, "rllm_gym.algorithms.reinforce_pp:ReinforcePP"),
    "Distill": Method(DistillOptions, "rllm_gym.algorithms.distill:Distill"),
    "SFT": Method(SFTOptions, "rllm_gym.algorithms.sft:SFT"),
    "DPO": Method(DPOOptions, "rllm_gym.algorithms.dpo:DPO"),
    "AgentEvol": Method(AgentEvolOptions, "rllm_gym.algorithms.agent_evol:AgentEvol"),
}


def find_method(name: str) -> Method:
    """Return a method that ships.

    Raises:
        ConfigError: there is none of this name; names the nearest.
    """
    if name not in METHODS:
        raise ConfigError(f"run: no algorithm has this name; got {name!r}. Did you mean {nearest(name, METHODS)!r}?")
    return METHODS[name]
