"""Faults planted between option, runner, learner and report, to see whether the tests notice: `make mutants`.

Each mutant is one change of one line; the tests named beside it must fail with it. A fault that somebody found in the
code, and that no test had noticed, belongs here together with the test that now does.

    python -m tests.mutants              # all of them, in a copy of the checkout; prints those that survive
    python -m tests.mutants clip entropy # those whose names hold one of these words
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OPTIONS, JOINTS = "tests/wiring/test_options_do.py", "tests/wiring/test_joints.py"


class Mutant(NamedTuple):
    """`old` stands once in `file`, and becomes `new`; `tests` are pytest's arguments."""

    name: str
    file: str
    old: str
    new: str
    tests: str


def option(name: str, file: str, old: str, new: str) -> Mutant:
    """An option that is ignored, which the table of options must notice."""
    return Mutant(f"{name} ignored", file, old, new, f"{OPTIONS} -k -{name}]")


POLICY, LOSS = "algorithms/policy_gradient.py", "algorithms/policy_learner.py"
LEARNER = "rllm_gym/learner/deepspeed.py"
ENGINE_FILES, ENGINE_FILE_TESTS = "rllm_gym/learner/engine_files.py", "tests/learner/test_engine_files.py"
RUNNER, CONFIG = "rllm_gym/rollout/env_runner.py", "rllm_gym/training/config.py"
EVALUATION, MAKER = "rllm_gym/training/evaluation.py", "rllm_gym/training/recorded_samples.py"
AHEAD, AHEAD_TESTS = "rllm_gym/training/samples_ahead.py", "tests/training/test_samples_ahead.py"
BLOCKS, BLOCK_TESTS = "rllm_gym/learner/block_attention.py", "tests/learner/test_block_attention.py"
TRANSFER, TRANSFER_TESTS = "rllm_gym/weights/sender.py", "tests/weights/test_transfer.py"
SYNC, SYNC_TESTS = "rllm_gym/weights/sync.py", "tests/weights/test_sync.py"
VALUES, LOSSES = "tests/wiring/test_values.py", "algorithms/functional/losses.py"
SAMPLES = "rllm_gym/training/samples.py"
METRICS, RECORDS = "rllm_gym/training/metrics.py", "rllm_gym/data/records.py"

PAIRS = "tests/algorithms/test_all_pairs.py"
TOOL_TESTS = "tests/envs/test_tools.py"
PROGRAM, PROGRAM_TESTS = "envs/program", "tests/envs/test_program.py"
GATEWAY, GATEWAY_TESTS = "rllm_gym/server/gateway.py", "tests/server/test_gateway.py"

MUTANTS = [
    Mutant(
        "DeepSpeed takes the machine's GPU for a learner without one",
        LEARNER,
        "deepspeed = import_deepspeed(self._device)",
        "deepspeed = import_deepspeed()",
        "tests/learner/test_libraries.py",
    ),
    Mutant(
        "a file of weights may end in zeros",
        "rllm_gym/cli/train/model_files.py",
        "return begin < end and not any(",
        "return begin > end and not any(",
        "tests/cli/train/test_model_files.py",
    ),
    Mutant(
        "a served session may lie idle for ever",
        "rllm_gym/server/sessions.py",
        "if session.last_used_s < idle_since_s and",
        "if session.last_used_s < -1.0 and",
        "tests/server/test_sessions.py -k nobody",
    ),
    Mutant(
        "a question of NashConv knows nothing of the run's token options",
        "rllm_gym/games/questions.py",
        "env_config), chat, **options)",
        "env_config), chat)",
        "tests/envs/test_token_options.py -k everyone",
    ),
    Mutant(
        "the hub forgets what ends a turn in the checkpoint's run",
        "rllm_gym/viewer/hub_worker.py",
        "self._chat, **token_options)",
        "self._chat)",
        "tests/envs/test_token_options.py -k everyone",
    ),
    Mutant(
        "gymnasium.make forgets the options of the token level",
        "rllm_gym/registration.py",
        "return to_tokens(text_env, **options)",
        "return to_tokens(text_env)",
        "tests/envs/test_token_options.py -k door",
    ),
    Mutant(
        "an option that a run has does not reach its token level",
        "rllm_gym/options/common.py",
        '{"stop": getattr(self, "stop", None), ',
        "{",
        "tests/envs/test_token_options.py -k reaches",
    ),
    Mutant(
        "the chance of a move counts what follows a stop text",
        "rllm_gym/games/token_chances.py",
        "result = self._add(result, said, float(row[token]))",
        "result = self._add(result, said, 0.0)",
        "tests/games/test_token_chances.py -k stop",
    ),
    Mutant(
        "what is behind a stop text is sampled",
        "rllm_gym/rollout/loop.py",
        "is_over=env.early_end(),",
        "is_over=None,",
        "tests/rollout/test_stop_texts.py -k request_tells",
    ),
    # calls of tools
    Mutant(
        "a call in a thought is made",
        "rllm_gym/tool_calls.py",
        "        said = without_thoughts(text)\n        with self._lock:",
        "        said = text\n        with self._lock:",
        f"{TOOL_TESTS} -k thought",
    ),
    Mutant(
        "an answer to a call comes in the user's role",
        "rllm_gym/tool_calls.py",
        'return {"role": "tool",',
        'return {"role": "user",',
        f"{TOOL_TESTS} -k every_prompt",
    ),
    Mutant(
        "a call ends as any turn does",
        "rllm_gym/tokens.py",
        "return ids[len(prompt_ids) :], self._restored(turn, saved)",
        "return [*ids[len(prompt_ids) : -1], self.end_of_turn_id], self._restored(turn, saved)",
        f"{TOOL_TESTS} -k expert_writes_a_call",
    ),
    # an environment's calls and its info
    Mutant(
        "an environment is called from whichever thread is free",
        "rllm_gym/rollout/env_pool.py",
        "job.slot.worker.give(job)",
        "self._workers[len(self._given) % len(self._workers)].give(job)",
        "tests/rollout/test_env_pool.py -k one_thread",
    ),
    Mutant(
        "a hung thread's other environments cost an attempt",
        "rllm_gym/rollout/loop.py",
        "is_retry=not job.is_lost",
        "is_retry=True",
        "tests/rollout/test_env_pool.py -k made_anew",
    ),
    Mutant(
        "episodes that differ by a penalty have ended alike",
        "rllm_gym/types.py",
        "return self.reward - invalid_action_penalty * self.is_invalid_action",
        "return self.reward",
        "tests/test_ties.py -k penalty",
    ),
    Mutant(
        "a flag of another type counts",
        "rllm_gym/infos.py",
        "if key in FLAGS and is_number and value in (0, 1):",
        "if key in FLAGS:",
        "tests/rollout/test_infos.py",
    ),
    Mutant(
        "an evaluation's group lacks its split",
        "rllm_gym/data/records.py",
        "*([split] if split and is_evaluation else [])",
        "*[]",
        "tests/data/test_records.py -k split",
    ),
    # programs as agents
    Mutant(
        "a program's edits count as the model's words",
        f"{PROGRAM}/requests.py",
        'compared = [message["role"], message["content"] or "", calls,',
        'compared = [message["role"], calls,',
        f"{PROGRAM_TESTS} -k edits",
    ),
    Mutant(
        "a program's answers are encoded anew",
        f"{PROGRAM}/tokens.py",
        "sampled = {k: self._actions_taken[turn] for k, turn in request.own_turns.items()}",
        "sampled = {}",
        f"{PROGRAM_TESTS} -k goes_on",
    ),
    Mutant(
        "a program that fails earns 0",
        f"{PROGRAM}/env.py",
        "        if child.exit_code:\n",
        "        if child.exit_code and not self._num_turns:\n",
        f"{PROGRAM_TESTS} -k no_reward_of_0",
    ),
    Mutant(
        "what a program has started outlives it",
        f"{PROGRAM}/supervisor.py",
        "    kill_all(left_below)\n    if owner in ready:",
        "    if owner in ready:",
        f"{PROGRAM_TESTS} -k has_started",
    ),
    Mutant(
        "a program is not told of the horizon",
        "rllm_gym/rollout/loop.py",
        "env is not None and env.wants_end and",
        "env is None and",
        f"{PROGRAM_TESTS} -k beyond_the_horizon",
    ),
    Mutant(
        "any key opens the endpoint's rewards",
        f"{PROGRAM}/endpoint.py",
        "session.reward_token if is_reward else session.key",
        "session.key",
        f"{PROGRAM_TESTS} -k posted_once",
    ),
    Mutant(
        "a program's removed files grow without bound",
        f"{PROGRAM}/supervisor.py",
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))",
        "    pass",
        f"{PROGRAM_TESTS} -k growing_is_bounded",
    ),
    Mutant(
        "requests count once they are read",
        f"{PROGRAM}/endpoint.py",
        "        session.enter()\n        return session\n",
        "        return session\n",
        f"{PROGRAM_TESTS} -k bodies_beyond",
    ),
    Mutant(
        "a program that nobody waits for goes on",
        "rllm_gym/rollout/env_pool.py",
        "                    slot.env.abandon()",
        "                    pass",
        f"{PROGRAM_TESTS} -k not_waited_for",
    ),
    Mutant(
        "log-probabilities are not given to programs",
        "rllm_gym/rollout/loop.py",
        "flight.slot.env.take_logps(completion.logp)",
        "pass",
        f"{PROGRAM_TESTS} -k log_probabilities",
    ),
    Mutant(
        "a stopped supervisor is not woken",
        f"{PROGRAM}/child.py",
        "            self._process.send_signal(signal.SIGCONT)  # a program may have stopped it",
        "            pass",
        f"{PROGRAM_TESTS} -k kills_its_supervisor",
    ),
    Mutant(
        "a killed supervisor's program goes on",
        f"{PROGRAM}/child.py",
        "                kill_all(self._marked)",
        "                pass",
        f"{PROGRAM_TESTS} -k kills_its_supervisor",
    ),
    Mutant(
        "what is forked of a program has no mark",
        f"{PROGRAM}/fork_server.py",
        "    _show_mark(asked",
        "    print(asked",
        f"{PROGRAM_TESTS} -k kills_its_supervisor",
    ),
    Mutant(
        "programs that are forked draw the same numbers",
        f"{PROGRAM}/fork_server.py",
        '        sys.modules["numpy"].random.seed()',
        "        pass",
        f"{PROGRAM_TESTS} -k imported_once",
    ),
    Mutant(
        "a connection without a request stays open",
        "rllm_gym/server/app.py",
        "        self.loop.call_later(KEEP_ALIVE_S, self._close_unless_asked)",
        "        pass",
        "tests/server/test_gateway.py -k connection_without",
    ),
    Mutant(
        "a program has the run's secrets",
        f"{PROGRAM}/child.py",
        "for name, value in os.environ.items() if name not in SECRETS}",
        "for name, value in os.environ.items()}",
        f"{PROGRAM_TESTS} -k secrets",
    ),
    Mutant(
        "a parser knows no types of arguments",
        f"{PROGRAM}/tokens.py",
        "load_parser(name, self.chat.tokenizer, tools), tools",
        "load_parser(name, self.chat.tokenizer, ()), tools",
        f"{PROGRAM_TESTS} -k parser_knows",
    ),
    Mutant(
        "a request comes in behind the end of its session",
        f"{PROGRAM}/endpoint.py",
        "                raise self.refusal\n",
        "                pass\n",
        f"{PROGRAM_TESTS} -k behind_the_end",
    ),
    Mutant(
        "a muted logger speaks again",
        "rllm_gym/library_noise.py",
        "max(logger.level, logging.ERROR)",
        "logging.ERROR",
        "tests/cli/test_notices.py -k stays_muted",
    ),
    Mutant(
        "conversations that begin alike are mixed up",
        GATEWAY,
        "(found is None or rank > found[0])",
        "(found is None or place > found[0][0])",
        f"{GATEWAY_TESTS} -k begin_alike",
    ),
    Mutant(
        "a conversation without a reward earns 0",
        GATEWAY,
        "if posted is None and self._gateway.has_rewards:",
        "if False:",
        f"{GATEWAY_TESTS} -k reward_ends",
    ),
    Mutant(
        "idle conversations stay open",
        GATEWAY,
        "if is_idle or self.is_ending:",
        "if self.is_ending:",
        f"{GATEWAY_TESTS} -k an_idle",
    ),
    # evaluation
    Mutant(
        "evaluation ignores its split",
        EVALUATION,
        "item_ids(env_index, split)",
        "item_ids(env_index)",
        f"{JOINTS} -k split",
    ),
    Mutant(
        "evaluation plays one task",
        "rllm_gym/training/task_sampler.py",
        "items[order[k % len(order)]]",
        "items[0]",
        f"{JOINTS} -k split",
    ),
    option("evaluation_horizon", EVALUATION, "last if horizon is None else horizon", "last"),
    option("evaluation_seed", EVALUATION, "seed=config.evaluation_seed", "seed=0"),
    option("evaluation_config", CONFIG, "return params if explores else", "return params if True else"),
    # weights on their way to the samplers
    Mutant(
        "fused weights lie on one another",
        "rllm_gym/weights/placement.py",
        "row += len(part)",
        "row += 0",
        "tests/rollout/test_vllm_engine.py -k bit_for_bit",
    ),
    Mutant(
        "what vLLM multiplies with is the old weight",
        "rllm_gym/weights/placement.py",
        "if self.is_repacked:",
        "if False:",
        "tests/rollout/test_vllm_engine.py -k bit_for_bit",
    ),
    Mutant(
        "a plan is trusted unseen",
        "rllm_gym/rollout/engines/vllm.py",
        "if planned == self._look():",
        "if True:",
        "tests/rollout/test_vllm_engine.py -k elsewhere",
    ),
    # what reaches the learner
    Mutant(
        "a truncated episode is terminated",
        "rllm_gym/training/samples.py",
        "is_terminated=episode.end_reason == EndReason.TERMINATED",
        "is_terminated=True",
        f"{JOINTS} -k what_ended",
    ),
    Mutant(
        "clip_low and clip_high swapped",
        LOSS,
        "clip_low=self.config.clip_low,\n            clip_high=self.config.clip_high",
        "clip_low=self.config.clip_high,\n            clip_high=self.config.clip_low",
        f"{JOINTS} -k plain_torch",
    ),
    Mutant(
        "entropy with the wrong sign",
        LOSS,
        "loss_BT - config.entropy_coeff",
        "loss_BT + config.entropy_coeff",
        f"{JOINTS} -k plain_torch",
    ),
    Mutant(
        "loss divided by the micro-batch's tokens",
        LOSS,
        'tokens=batch["num_tokens"]',
        "tokens=mask_BT.sum()",
        f"{JOINTS} -k plain_torch",
    ),
    Mutant(
        "KL over the micro-batch's tokens",
        LOSS,
        "self.kl_coeff.get(module_id, config.kl_coeff) * ref_kl_BT",
        'self.kl_coeff.get(module_id, config.kl_coeff) * ref_kl_BT * batch["num_tokens"] / mask_BT.sum()',
        f"{JOINTS} -k plain_torch",
    ),
    Mutant(
        "recomputed log-probabilities with ratio 1",
        LOSS,
        'logp_BT.detach() if self.is_first_step else batch["trainer_logp"]',
        "logp_BT.detach()",
        f"{JOINTS} -k second_epoch",
    ),
    Mutant(
        "dropout left on",
        "rllm_gym/learner/rl_module.py",
        "        self.lm.eval()\n",
        "",
        f"{JOINTS} -k dropout",
    ),
    option("kl_kind", LOSS, 'batch["ref_logp"], kind=config.kl_kind', 'batch["ref_logp"], kind="k3"'),
    option("importance_cap", LOSS, "cap=config.importance_cap", "cap=2.0"),
    option("importance_mode", LOSS, "mode=config.importance_mode", 'mode="truncate"'),
    option("importance_veto", LOSS, "veto=config.importance_veto", "veto=None"),
    option("dual_clip", LOSS, "dual_clip=self.config.dual_clip", "dual_clip=None"),
    option("ratio_level", LOSS, "level=config.ratio_level", 'level="token"'),
    option("adam_betas", LEARNER, "betas=tuple(betas)", "betas=(0.9, 0.999)"),
    option("weight_decay", LEARNER, "weight_decay=weight_decay", "weight_decay=0.0"),
    option("grad_clip", "rllm_gym/learner/deepspeed.py", "config.grad_clip or 0.0", "0.0"),
    option("num_epochs", LEARNER, "{module_id: self.config.num_epochs}", "{module_id: 1}"),
    option("tokens_per_micro_batch", LEARNER, "batch, self.config.tokens_per_micro_batch,", "batch, 8192,"),
    option(
        "normalize_std",
        "algorithms/grpo.py",
        "normalize_std=self.config.normalize_std",
        "normalize_std=True",
    ),
    # weights in vLLM
    Mutant(
        "experts reach vLLM packed",
        "rllm_gym/weights/checkpoint_form.py",
        "yield from revert_weight_conversion(lm, {name: weights[name] for name in names}).items()",
        "yield from {name: weights[name] for name in names}.items()",
        "tests/rollout/test_vllm_families.py -k Qwen3Moe",
    ),
    Mutant(
        "repacked experts are not repacked anew",
        "rllm_gym/weights/placement.py",
        "method.moe_kernel = None",
        "pass",
        "tests/rollout/test_vllm_families.py -k Qwen3Moe",
    ),
    Mutant(
        "a sampler that is off goes on",
        "rllm_gym/training/sync_check.py",
        "if off <= most and",
        "if",
        "tests/wiring/test_sync_check.py -k another",
    ),
    Mutant(
        "calls in thoughts are made",
        "rllm_gym/thoughts.py",
        "for opens, closes in THOUGHTS:",
        "for opens, closes in ():",
        "tests/envs/test_agent_formats.py -k thought",
    ),
    Mutant(
        "only the first of several calls is made",
        "envs/agents/env.py",
        "for command in commands:",
        "for command in commands[:1]:",
        "tests/envs/test_agents.py -k several",
    ),
    Mutant(
        "the doctor looks before the weights have changed only",
        "rllm_gym/cli/doctor.py",
        'for what in ("as loaded", "after a sync of changed weights"):',
        'for what in ("as loaded",):',
        "tests/cli/test_doctor.py -k compared",
    ),
    Mutant(
        "frequencies follow what a row holds",
        "rllm_gym/rotary.py",
        'return rope_type == "longrope" or "dynamic" in rope_type',
        "return False",
        "tests/learner/test_rotary_frequencies.py -k neighbours",
    ),
    # weights past the object store
    option("weight_transfer", CONFIG, 'self.weight_transfer == "broadcast" and', "False and"),
    Mutant(
        "what no engine reads is not taken",
        "rllm_gym/weights/receiver.py",
        "incoming.drain()",
        "pass",
        f"{TRANSFER_TESTS} -k twice",
    ),
    Mutant("far ones are taken for near ones", SYNC, "other == gpu]", "other != gpu]", f"{SYNC_TESTS} -k neighbour"),
    Mutant(
        "nobody sleeps",
        "rllm_gym/training/algorithm.py",
        "if not self._samplers_sleep:",
        "if True:",
        f"{SYNC_TESTS} -k sleep",
    ),
    Mutant(
        "weights are loaded into an engine that sleeps",
        "rllm_gym/rollout/engines/vllm.py",
        "engine = self._live  # awake",
        "engine = self._engine  # awake",
        "tests/rollout/test_vllm_engine.py -k sleeps",
    ),
    Mutant(
        "two engines of a process may sleep",
        "rllm_gym/rollout/policies.py",
        "len(base_models) - len(adapter_hosts) == 1",
        "True",
        f"{SYNC_TESTS} -k none_sleeps",
    ),
    Mutant("who fails stays connected", TRANSFER, "        end.close()\n", "", f"{TRANSFER_TESTS} -k at_once"),
    Mutant(
        "who does not come is waited for",
        TRANSFER,
        "len(members), CONNECT_TIMEOUT)",
        "len(members), TIMEOUT)",
        f"{TRANSFER_TESTS} -k waited_for_long",
    ),
    Mutant(
        "NCCL meets a GPU twice", SYNC, "and len(set(far_gpus)) == len(far_gpus)", "", f"{SYNC_TESTS} -k out_of_reach"
    ),
    # sampling ahead
    Mutant(
        "what is submitted waits for the next train step",
        AHEAD,
        "if is_there and not self._unsent:",
        "if is_there:",
        f"{AHEAD_TESTS} -k while_the_learner",
    ),
    option("staleness", POLICY, "if config.staleness:", "if False:"),
    Mutant(
        "what grows too old is not waited for",
        AHEAD,
        "at + self._staleness <= step",
        "False",
        f"{AHEAD_TESTS} -k slow",
    ),
    Mutant(
        "stale groups are learnt from", POLICY, "if group.age <= self.config.staleness]", "]", f"{AHEAD_TESTS} -k old"
    ),
    Mutant(
        "an evaluation does not wait",
        AHEAD,
        "samplers.finish_ahead = self.drain",
        "pass",
        f"{AHEAD_TESTS} -k evaluation",
    ),
    Mutant(
        "what was played ahead is forgotten by checkpoints",
        POLICY,
        'self.ahead.set_state(state.get("ahead", []))',
        "pass",
        f"{AHEAD_TESTS} -k resumed",
    ),
    Mutant(
        "more episodes are begun than the engine's cache holds",
        "rllm_gym/rollout/loop.py",
        "and self._is_room_in_caches()",
        "and True",
        "tests/rollout/test_loop.py -k than_the_engines_cache_holds",
    ),
    Mutant(
        "all tokens of a turn have the version of its beginning",
        "rllm_gym/rollout/loop.py",
        "token_versions=versions,",
        "",
        "tests/rollout/test_loop.py -k version",
    ),
    option("task_sampling", POLICY, 'config.task_sampling == "difficulty"', "False"),
    option(
        "screening_size",
        POLICY,
        "self.screening_size = config.max_tokens_to_bootstrap, config.screening_size",
        "self.screening_size = config.max_tokens_to_bootstrap, None",
    ),
    Mutant(
        "groups that end alike are played on",
        "rllm_gym/rollout/loop.py",
        "return [] if is_alike else others",
        "return others",
        "tests/rollout/test_loop.py -k rest_of_a_group",
    ),
    Mutant(
        "success is also that of episodes which only some tasks play",
        "rllm_gym/training/metrics.py",
        "for episode in episodes if not episode.is_conditional]",
        "for episode in episodes]",
        "tests/training/test_metrics.py",
    ),
    option("min_probability", POLICY, "min_probability=config.min_probability", "min_probability=0.1"),
    Mutant(
        "the tasks' difficulty is forgotten by checkpoints",
        POLICY,
        'self.task_difficulty.set_state(state.get("task_difficulty", {}))',
        "pass",
        f"{JOINTS} -k takes_the_same_next_step",
    ),
    Mutant(
        "the tasks' difficulty never fades",
        "rllm_gym/training/task_difficulty.py",
        "((train_step - at) / HALF_LIFE)",
        "0",
        "tests/training/test_task_difficulty.py",
    ),
    option("overlong_filter", POLICY, "self.config.overlong_filter and sample.is_overlong", "False"),
    option(
        "invalid_action_penalty",
        POLICY,
        "invalid_action_penalty=self.config.invalid_action_penalty",
        "invalid_action_penalty=0.0",
    ),
    option("max_refill_rounds", POLICY, "range(1 + config.max_refill_rounds)", "range(1)"),
    # the runner
    Mutant(
        "greedy ignored",
        CONFIG,
        "SamplingParams(self.max_new_tokens, temperature=0.0)",
        "self.sampling_params",
        "tests/algorithms/test_group_methods.py -k greedy",
    ),
    option("top_p", CONFIG, "self.temperature, self.top_p, self.top_k", "self.temperature, 1.0, self.top_k"),
    option("top_k", CONFIG, "self.temperature, self.top_p, self.top_k", "self.temperature, self.top_p, 0"),
    option(
        "chat_template",
        RUNNER,
        "ChatTokenizer(model, vocab_size=vocab_size, **config.chat_options)",
        "ChatTokenizer(model, vocab_size=vocab_size)",
    ),
    option("episode_timeout_s", RUNNER, "episode_timeout_s=config.episode_timeout_s", "episode_timeout_s=None"),
    option("env_timeout_s", RUNNER, "env_timeout_s=config.env_timeout_s", "env_timeout_s=None"),
    option("num_env_workers", RUNNER, "num_env_workers=config.num_env_workers", "num_env_workers=0"),
    option("max_episode_retries", RUNNER, "max_retries=config.max_episode_retries", "max_retries=1"),
    Mutant(
        "prefix cache not reset",
        RUNNER,
        "            engine.reset_prefix_cache()",
        "            pass",
        f"{JOINTS} -k prefix",
    ),
    # recorded episodes
    option("min_return", "algorithms/offline.py", "min_return=self.config.min_return", "min_return=None"),
    option("observation_weight", MAKER, "observation_weight=self.observation_weight", "observation_weight=0.0"),
    Mutant(
        "retokenize ignored",
        MAKER,
        "if self.retokenize or not all",
        "if not all",
        "tests/algorithms/test_sft.py -k token",
    ),
    # reports and checkpoints
    Mutant(
        "stored advantages negated",
        RECORDS,
        "advantage=advantage, trainer",
        "advantage=None if advantage is None else [-a for a in advantage], trainer",
        f"{JOINTS} -k stored",
    ),
    Mutant(
        "truncated_fraction without the horizon",
        METRICS,
        'share("horizon") + share("context_limit")',
        'share("context_limit")',
        "tests/training/test_metrics.py",
    ),
    Mutant(
        "success_rate of no episode",
        METRICS,
        "_mean(success_share(episode, only_playing) for episode in of_all_tasks)",
        "0.0",
        "tests/training/test_metrics.py",
    ),
    Mutant(
        "the adaptive signal is always 0",
        "rllm_gym/callbacks/scaling_inter.py",
        'float(metrics["success_rate"]))',
        "0.0)",
        f"{JOINTS} -k adaptive",
    ),
    Mutant(
        "a resumed run forgets its KL coefficient",
        POLICY,
        'self.kl_coeff = dict(state.get("kl_coeff", {}))',
        "self.kl_coeff = {}",
        f"{JOINTS} -k resumed",
    ),
    Mutant(
        "a resumed run forgets its horizon's stage",
        "rllm_gym/callbacks/scaling_inter.py",
        "for name, stage in state.items()}",
        "for name, stage in ()}",
        f"{JOINTS} -k resumed",
    ),
    Mutant(
        "a resumed run forgets the optimizer",
        "rllm_gym/training/algorithm.py",
        "        self._load_engines(Path(path))\n",
        "",
        f"{JOINTS} -k resumed",
    ),
    # a model behind an endpoint
    Mutant(
        "a failed request is taken for an empty action",
        "rllm_gym/rollout/loop.py",
        "if completion.error is not None:",
        "if False:",
        "tests/rollout/test_loop.py -k failed",
    ),
    Mutant(
        "the endpoint's time to wait is not waited",
        "rllm_gym/chat_endpoint.py",
        "if asked.isdigit() else 0.0",
        "if False else 0.0",
        "tests/rollout/test_openai_engine.py",
    ),
    Mutant(
        "an answer that was cut ends its turn",
        "rllm_gym/rollout/engines/openai.py",
        "if not answer.is_cut or not ids:",
        "if True:",
        "tests/rollout/test_openai_engine.py",
    ),
    Mutant(
        "what a resumed evaluation has cost is forgotten",
        "rllm_gym/evaluation/run.py",
        "usage = Counter(_usage(folder))",
        "usage = Counter()",
        "tests/evaluation/test_evaluate.py -k endpoint",
    ),
    # other models
    Mutant(
        "GPT-2's adapter not transposed",
        "rllm_gym/learner/rl_module.py",
        "if layer.fan_in_fan_out:",
        "if False:",
        "tests/learner/test_other_models.py",
    ),
    Mutant(
        "Gemma's logits not capped",
        "rllm_gym/learner/logps.py",
        "        return torch.tanh(logits / softcap) * softcap if softcap else logits\n",
        "        return logits\n",
        "tests/learner/test_other_models.py",
    ),
    # the viewer
    Mutant(
        "the viewer answers to any name",
        "rllm_gym/viewer/server.py",
        "allowed_hosts=HOST_NAMES",
        'allowed_hosts=["*"]',
        "tests/viewer/test_server.py -k another_name",
    ),
    Mutant(
        "the viewer takes what other sites post",
        "rllm_gym/viewer/server.py",
        "if origin is not None and",
        "if origin is None and",
        "tests/viewer/test_server.py -k other_sites",
    ),
    Mutant(
        "the viewer's page may run what is inline",
        "rllm_gym/viewer/page.py",
        "script-src {scripts};",
        "script-src {scripts} 'unsafe-inline';",
        "tests/viewer/test_server.py -k policy",
    ),
    Mutant(
        "the viewer shows what was played again twice",
        "rllm_gym/viewer/episode_index.py",
        "self.hidden.add(other if is_later else number)",
        "self.hidden.add(-1)",
        "tests/viewer/test_index.py -k resumed",
    ),
    Mutant(
        "the viewer takes a thinned file for the one it read",
        "rllm_gym/viewer/shards.py",
        "self.line_at(self._last[0]) != self._last[1]",
        "False",
        "tests/viewer/test_index.py -k thinned",
    ),
    Mutant(
        "the hub's prompt lacks what was said before",
        "rllm_gym/rollout/loop.py",
        "agent.context.extend(completion.token_ids.tolist())",
        "pass",
        "tests/viewer/test_hub.py -k model_acts",
    ),
    Mutant(
        "an adapter is loaded onto another base model",
        "rllm_gym/learner/rl_module.py",
        "            self._check_base(base_hash)\n",
        "",
        "tests/learner/test_rl_module.py -k adapter_returns",
    ),
    Mutant(
        "a sampler without CPUs has an empty bundle",
        "rllm_gym/training/algorithm.py",
        'else {"memory": 1} for bundle',
        "else bundle for bundle",
        "tests/cli/train/test_train_end_to_end.py -k of_its_own",
    ),
    Mutant(
        "a token reads what comes after it in its tree",
        "rllm_gym/learner/packing.py",
        "part.tril() if is_own else part",
        "part",
        "tests/learner/test_shared_prefixes.py",
    ),
    Mutant(
        "a branch goes on from another's beginning",
        "rllm_gym/learner/packing.py",
        "torch.cat([path[:fork], torch",
        "torch.cat([path.flip(0)[:fork], torch",
        "tests/learner/test_shared_prefixes.py",
    ),
    Mutant(
        "a shared row costs nothing",
        "rllm_gym/learner/packing.py",
        "return num_tokens * (1.0 + num_tokens / knee)",
        "return 0.0",
        "tests/learner/test_shared_prefixes.py -k saves_little",
    ),
    option("share_prefixes", "rllm_gym/learner/probes.py", "not config.share_prefixes", "False"),
    Mutant(
        "blocks have equal weights", BLOCKS, "torch.sigmoid(lse - logsumexp[at])", "0.5 * (lse == lse)", BLOCK_TESTS
    ),
    Mutant(
        "the blocks' gradients are not added",
        BLOCKS,
        "of_key[to] += parts[1]",
        "of_key[to] = parts[1]",
        BLOCK_TESTS,
    ),
    Mutant(
        "no block of what is before",
        "rllm_gym/learner/packing.py",
        "for keys in path[:-1]:",
        "for keys in ():",
        BLOCK_TESTS,
    ),
    Mutant(
        "a window is not seen", BLOCKS, 'getattr(config, "sliding_window", None)', "None", f"{BLOCK_TESTS} -k whole_row"
    ),
    Mutant(
        "all is recomputed",
        "rllm_gym/learner/recomputation.py",
        "if is_selective:",
        "if False:",
        f"{BLOCK_TESTS} -k recomputing",
    ),
    Mutant(
        "weights that cannot travel",
        "rllm_gym/rollout/engines/vllm.py",
        "list(coming()) if self._is_split else coming()",
        "coming()",
        "tests/rollout/test_split_model.py -k every_part",
    ),
    Mutant(
        "narrow products are kept",
        "rllm_gym/learner/recomputation.py",
        "is_kept = args[at + 1].shape[-1] >= args[at].shape[-1]",
        "is_kept = True",
        f"{BLOCK_TESTS} -k of_products",
    ),
    Mutant(
        "Gemma's attention not capped",
        "rllm_gym/models.py",
        'return "eager" if',
        "return None if",
        "tests/learner/test_other_models.py",
    ),
    Mutant(
        "options that do not go together unchecked without Ray",
        "rllm_gym/cli/train/check.py",
        "for line in filled.faults():",
        "for line in ():",
        "tests/test_options.py",
    ),
    Mutant(
        "a fault that follows from another told",
        "rllm_gym/cli/train/check.py",
        "for name in self.suspects):",
        "for name in ()):",
        "tests/cli/train/test_look_ahead.py",
    ),
    Mutant(
        "--elsewhere ignored",
        "rllm_gym/cli/train/check.py",
        "if self.is_elsewhere:",
        "if False:",
        "tests/cli/train/test_look_ahead.py",
    ),
    Mutant(
        "a preset over the options beside it",
        "rllm_gym/options/methods.py",
        'key=lambda item: item[0] != "preset"',
        'key=lambda item: item[0] == "preset"',
        "tests/test_options.py",
    ),
    # what an option means, and values on their way
    Mutant(
        "a sequence's ratio spreads the mean advantage",
        LOSSES,
        "mean_B1 = log_ratio_BT.detach().sum(1, keepdim=True)",
        "log_ratio_BT = (log_ratio_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True)).expand_as(mask_BT)\n"
        "        mean_B1 = log_ratio_BT.detach().sum(1, keepdim=True)",
        "tests/test_functional_losses.py -k own_advantage",
    ),
    Mutant(
        "a teacher's advantage is upside down",
        "algorithms/distill.py",
        'gain_NK = rows.column("ref_logp").double() - sampled_NK.double()',
        'gain_NK = sampled_NK.double() - rows.column("ref_logp").double()',
        "tests/algorithms/test_distill.py -k gives_more",
    ),
    Mutant("no return ties", "rllm_gym/ties.py", "TIE = 1e-9", "TIE = 0.0", "tests/test_ties.py"),
    Mutant(
        "ReMax's baseline pays no penalty",
        "algorithms/remax.py",
        "penalty = self.config.invalid_action_penalty",
        "penalty = 0.0",
        "tests/algorithms/test_group_methods.py -k greedy_one",
    ),
    Mutant(
        "a preset drops groups",
        "rllm_gym/options/methods.py",
        '"kl_kind": "k3", "kl_in": "loss", "filter_groups": "off"',
        '"kl_kind": "k3", "kl_in": "loss"',
        "tests/algorithms/test_group_methods.py -k only_dapo",
    ),
    Mutant(
        "a loss is divided by the number of weighted tokens",
        "rllm_gym/learner/batch.py",
        'weight = self.per_token["weight"].masked_fill(~self.mask, 0.0).double().sum()',
        "weight = self.mask.double().sum()",
        "tests/learner/test_batch.py -k sum_of_the_weights",
    ),
    Mutant(
        "every context is a sequence",
        "rllm_gym/learner/batch.py",
        "(row.episode, row.agent) if row.episode else k for",
        "k for",
        "tests/learner/test_batch.py -k over_all_its_samples",
    ),
    Mutant(
        "every epoch has the same order",
        "rllm_gym/learner/batch.py",
        "np.random.SeedSequence((seed, epoch))",
        "np.random.SeedSequence((seed, 0))",
        "tests/learner/test_batch.py -k every_epoch",
    ),
    Mutant(
        "success is that of all players",
        SAMPLES,
        "is_success(episode, stream.agent_id)",
        "is_success(episode)",
        "tests/training/test_success.py",
    ),
    Mutant(
        "a task keeps its seat in evaluations",
        "rllm_gym/training/task_sampler.py",
        "first_seating=k % len(order) + k // len(order)",
        "first_seating=k",
        "tests/training/test_success.py -k every_seat",
    ),
    Mutant(
        "weights are swapped between policies",
        "rllm_gym/rollout/policies.py",
        "for module_id, of_module in weights.items():\n            self._engines[module_id].load_weights(",
        "for module_id, of_module in zip(reversed(list(weights)), weights.values()):\n"
        "            self._engines[module_id].load_weights(",
        f"{VALUES} -k own_weights",
    ),
    Mutant(
        "the environment's truncation is lost",
        "rllm_gym/rollout/env_adapters.py",
        "EndReason.TRUNCATED if truncated else None",
        "None",
        f"{VALUES} -k truncates",
    ),
    Mutant(
        "a group is as old as its newest token",
        AHEAD,
        "version - min(versions, default=version)",
        "version - max(versions, default=version)",
        f"{VALUES} -k oldest_token",
    ),
    Mutant(
        "the KL in the reward is the sampler's",
        POLICY,
        'rows.column("trainer_logp" if config.old_logp == "recompute" else "old_logp")',
        'rows.column("old_logp")',
        f"{VALUES} -k kl_in_the_reward",
    ),
    Mutant(
        "the reference is whole on every learner",
        LEARNER,
        'if is_whole or settings["zero_optimization"]["stage"] != 3:',
        "if True:",
        "tests/learner/test_frozen_models.py",
    ),
    Mutant(
        "a converted optimizer begins anew",
        ENGINE_FILES,
        "safe_set_full_optimizer_state(parameter, state[key], key)",
        "safe_set_full_optimizer_state(parameter, 0 * state[key], key)",
        f"{ENGINE_FILE_TESTS} -k another_zero_stage",
    ),
    Mutant(
        "weights share a converted step, and count it up together",
        ENGINE_FILES,
        "torch.as_tensor(value).clone()",
        "torch.as_tensor(value)",
        f"{ENGINE_FILE_TESTS} -k another_zero_stage",
    ),
    Mutant(
        "a resumed schedule begins at the configured rate",
        ENGINE_FILES,
        'kept = ("lr", "initial_lr") if engine.lr_scheduler is not None else ()',
        "kept = ()",
        f"{VALUES} -k schedules_rate",
    ),
    Mutant(
        "useful_group_share is inverted",
        POLICY,
        "useful_share = len(sampled.useful_groups) / max(1, num_groups)",
        "useful_share = 1 - len(sampled.useful_groups) / max(1, num_groups)",
        f"{VALUES} -k useful_groups",
    ),
    Mutant(
        "an adaptive horizon reads the truncated share of the successes",
        "rllm_gym/callbacks/scaling_inter.py",
        'metrics["horizon_fraction"] / failed',
        'metrics["horizon_fraction"] / metrics["success_rate"]',
        f"{VALUES} -k share_of_the_failures",
    ),
    # combinations of options
    Mutant(
        "a sequence's mean ratio is on every token",
        LOSSES,
        "log_ratio_BT = hide(mean_B1 + (log_ratio_BT - log_ratio_BT.detach()), mask_BT)",
        "log_ratio_BT = log_ratio_BT.sum(1, keepdim=True).expand_as(mask_BT) / mask_BT.sum(1, keepdim=True)",
        f"{PAIRS} -k GRPO-one",
    ),
    Mutant(
        "the others' return holds no penalties",
        SAMPLES,
        "earned = {agent_id: stream.earnings(invalid_action_penalty)",
        "earned = {agent_id: stream.earnings(0.0)",
        f"{PAIRS} -k RLOO-two",
    ),
    Mutant(
        "groups are dropped though filter_groups is off",
        POLICY,
        'if filter_groups == "off":',
        'if filter_groups == "never":',
        f"{PAIRS} -k PPO-one",
    ),
    Mutant(
        "each context is a sequence of the average",
        "rllm_gym/learner/batch.py",
        'for number_B in (self.per_sample["sequence"], self.episode)',
        "for number_B in (torch.arange(len(self.mask)), self.episode)",
        f"{PAIRS} -k PPO-one",
    ),
    Mutant(
        "a sequence's tokens are those of one context",
        LOSSES,
        "num_tokens_B = mask_BT.sum(1) if counts.sequence_tokens_B is None else counts.sequence_tokens_B",
        "num_tokens_B = mask_BT.sum(1)",
        f"{PAIRS} -k PPO-one",
    ),
    Mutant(
        "a group of two falls in halves by seat",
        "algorithms/group_relative.py",
        "self.group_size != 2:",
        "self.group_size != 1:",
        f"{PAIRS} -k halves",
    ),
    # what a resumed run keeps, and what is asked for anew
    Mutant(
        "a KL coefficient follows its target from the configured one",
        POLICY,
        "adaptive_kl_coeff(\n                    kl_coeff, float",
        "adaptive_kl_coeff(\n                    config.kl_coeff, float",
        f"{VALUES} -k goes_on_from",
    ),
    Mutant(
        "a resumed run forgets its empty steps",
        POLICY,
        'state.get("num_empty_steps", 0)',
        "0",
        f"{VALUES} -k empty_steps",
    ),
    Mutant(
        "a resumed run forgets its first evaluation",
        "rllm_gym/training/algorithm.py",
        'self.evaluation_on_start = state.get("evaluation_on_start")',
        "self.evaluation_on_start = None",
        f"{VALUES} -k empty_steps",
    ),
    Mutant(
        "a resumed run may skip as many steps again",
        "rllm_gym/learner/engine_files.py",
        "num_skipped_steps[module_id] = client_state[SKIPPED]",
        "num_skipped_steps[module_id] = 0",
        f"{VALUES} -k counts_on",
    ),
    Mutant(
        "a sampler gives no sign of life before its thread does",
        "rllm_gym/rollout/beats.py",
        "self._beat()  # the first one",
        "pass  # the first one",
        "tests/rollout/test_beats.py -k first_sign",
    ),
    Mutant(
        "a dead runner's share is replayed as in training",
        "rllm_gym/training/samplers.py",
        "num_groups=len(groups), horizons=horizons, params=params)",
        "num_groups=len(groups), horizons=horizons)",
        "tests/training/test_samplers.py -k asked_for",
    ),
    Mutant(
        "every round of refilling has the same keys",
        "rllm_gym/training/task_sampler.py",
        "first = (1 + round) * FIRST_REFILL",
        "first = FIRST_REFILL",
        "tests/algorithms/test_config.py -k dealt_by_weight",
    ),
    Mutant(
        "minibatches need no recomputed log-probabilities",
        POLICY,
        "self.num_epochs * self.num_minibatches > 1",
        "self.num_epochs > 1",
        "tests/algorithms/test_config.py -k recomputed",
    ),
    Mutant(
        "held-out samples are trained on",
        "algorithms/offline.py",
        "np.sort(order[num_held_out:])",
        "np.sort(order)",
        f"{JOINTS} -k held_out",
    ),
    Mutant(
        "DPO's held-out items are samples",
        "algorithms/offline.py",
        "range(min(config.num_evaluation_samples, self.num_items(self.evaluation_samples)))",
        "range(min(config.num_evaluation_samples, len(self.evaluation_samples)))",
        f"{JOINTS} -k count_pairs",
    ),
    Mutant(
        "a generation goes on with the schedule of the one before",
        "algorithms/agent_evol.py",
        "engine.lr_scheduler.load_state_dict(copy.deepcopy(self._schedules[module_id]))",
        "pass",
        f"{JOINTS} -k schedule_begins",
    ),
    Mutant(
        "a generation takes episodes of another horizon",
        "algorithms/agent_evol.py",
        "return same_item and record.max_episode_steps == self.horizons[name]",
        "return same_item",
        "tests/algorithms/test_agent_evol.py -k present_horizon",
    ),
    Mutant(
        "every environment has the first one's split",
        "rllm_gym/data/writer.py",
        "split=split or self._splits[index]",
        "split=split or self._splits[0]",
        "tests/data/test_records.py -k training_episodes_split",
    ),
    Mutant(
        "an answer is learnt as it was written",
        MAKER,
        "action_ids = self.chat.encode_answer([*before, dict(answer)])",
        'action_ids = self.chat.encode_action(answer["content"])',
        "tests/training/test_recorded_samples.py",
    ),
    # an environment of the evaluations' own
    Mutant(
        "evaluations play what is trained on, whatever evaluation_config says",
        EVALUATION,
        "config, environments = self._config, self._config.evaluation_environments",
        "config, environments = self._config, self._config.environments",
        f"{JOINTS} -k environment_of_its_own",
    ),
    Mutant(
        "an evaluation's environment counts among those of training",
        EVALUATION,
        "names = {config.all_environments.index(spec): spec.name for spec in environments}",
        "names = {k: spec.name for k, spec in enumerate(environments)}",
        f"{JOINTS} -k environment_of_its_own",
    ),
    Mutant(
        "a run's evaluation environment is not that of rllib evaluate",
        "rllm_gym/evaluation/policy.py",
        "change_environments(config.evaluation_environments, env",
        "change_environments(config.environments, env",
        "tests/cli/test_evaluate_splits.py -k default",
    ),
    Mutant(
        "players behind a function keep their seats",
        "rllm_gym/rollout/environments.py",
        'lambda made: bool(getattr(made.unwrapped, "rotates_seats", False))',
        "lambda made: False",
        "tests/algorithms/test_group_methods.py -k ones_own",
    ),
]


def main() -> None:
    """Plant the chosen mutants one by one; refuse to begin where a pattern does not stand exactly once in its file."""
    words = sys.argv[1:]
    if stale := misplaced():
        sys.exit("\n".join(stale))
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutants_") as folder:
        copy = Path(folder) / "checkout"
        copy_checkout(copy)
        for number, mutant in enumerate(chosen, start=1):
            outcome = fate(copy, mutant)
            print(f"{number}/{len(chosen)} {outcome:9} {mutant.name}", flush=True)
            survivors += [mutant.name] if outcome != "killed" else []
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} were noticed", *survivors, sep="\nsurvived: ")
    sys.exit(bool(survivors))


def misplaced() -> list[str]:
    """Return one line for each mutant whose pattern does not stand exactly once in its file."""
    lines = []
    for mutant in MUTANTS:
        path = ROOT / mutant.file
        times = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0
        if times != 1:
            lines.append(f"mutant {mutant.name!r}: the pattern must stand once in {mutant.file}; found {times} times.")
    return lines


def copy_checkout(to: Path) -> None:
    """Copy what git knows of the checkout, symlinks as they are."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def fate(copy: Path, mutant: Mutant) -> str:
    """Return `killed`, `survived`, or `broken`: the line is no longer there, or its tests no longer collect."""
    path = copy / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return "broken"
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *split(mutant.tests)]
        run = subprocess.run(command, cwd=copy, capture_output=True, env=environment(copy), check=False)
    finally:
        path.write_text(text, encoding="utf-8")
    return {0: "survived", 1: "killed"}.get(run.returncode, "broken")


def split(tests: str) -> list[str]:
    path, _, expression = tests.partition(" -k ")
    return [path, "-k", expression.strip("-]")] if expression else [path]


def environment(copy: Path) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(copy)}


if __name__ == "__main__":
    main()
