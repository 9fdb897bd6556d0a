"""The options of each method."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import Doc

from rllm_gym.options.bounds import Count, CountOrZero, Finite, Fraction, NonNegative, Positive
from rllm_gym.options.every_method import CommonOptions


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
        Literal["token", "sequence"], Doc("one probability ratio per `token` or per `sequence`.")
    ] = "token"
    loss_average: Annotated[
        Literal["tokens", "sequences", "episodes", "constant"],
        Doc(
            "what surrogate, KL and entropy are averaged over: `tokens` of the minibatch; `sequences`, or `episodes`, "
            "and each one's tokens; `constant`: a sum over tokens, over sequences times `loss_constant`."
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
            "which groups are dropped: those whose `advantage`s are all 0, or whose episodes all succeeded or all "
            "failed (`success`), or none (`off`)."
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
        Count, Doc("train steps in a row that may teach nothing (all groups dropped) before the run stops.")
    ] = 10
    max_refill_rounds: Annotated[
        CountOrZero,
        Doc(
            "how often a train step samples fresh tasks for the groups that it dropped (dynamic sampling, Yu et al. "
            "2025 (DAPO), arXiv:2503.14476, section 3.2); 0 goes on with what is left."
        ),
    ] = 0


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
            "`algorithms/grpo.py`); options given beside it win."
        ),
    ] = None


class PPOOptions(PolicyGradientOptions):
    """PPO's own options."""

    group_size = 1  # the critic is the baseline, so episodes need no group
    groups_per_step = 64
    filter_groups = "off"
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


class RLOOOptions(GroupRelativeOptions):
    """RLOO's defaults."""

    kl_in = "reward"
    kl_kind = "k1"


class ReMaxOptions(PolicyGradientOptions):
    """ReMax's defaults."""

    group_size = 1
    groups_per_step = 64


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
    filter_groups = "off"  # what the batch is whitened over, all of it is trained on


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
        NonNegative, Doc("how much the environment's words count in the loss, beside 1 for the assistant's.")
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


class SFTOptions(OfflineOptions):
    """SFT's defaults."""

    lr = 1e-5


class DPOOptions(OfflineOptions):
    """DPO's own options. `data: sample` lets the initial policy play groups; samples are pairs."""

    data = "sample"
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


class AgentEvolOptions(OfflineOptions):
    """AgentEvol's own options. A train step is a generation: it plays, keeps, and trains on what it kept."""

    needs_env = True

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
        bool, Doc("train each generation from `base_model`, as published; false goes on with the policy.")
    ] = True
    groups_per_request: Annotated[
        Count,
        Doc("groups that are played between two writes to the trajectories. A killed run loses no more than those."),
    ] = 64


TABLES = {
    "GRPO": GRPOOptions,
    "PPO": PPOOptions,
    "RLOO": RLOOOptions,
    "ReMax": ReMaxOptions,
    "ReinforcePP": ReinforcePPOptions,
    "SFT": SFTOptions,
    "DPO": DPOOptions,
    "AgentEvol": AgentEvolOptions,
}
