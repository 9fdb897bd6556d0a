"""The learner: an RLlib TorchLearner whose optimizers are DeepSpeed engines (ZeRO 0-3)."""

from __future__ import annotations

import copy
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from ray.rllib.core import ALL_MODULES, COMPONENT_RL_MODULE
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils import force_list
from ray.rllib.utils.annotations import override

from rllm_gym.errors import ConfigError, NonFiniteError
from rllm_gym.learner import engine_files
from rllm_gym.learner.batch import Batch, collate
from rllm_gym.learner.libraries import import_deepspeed, wait_for_imports
from rllm_gym.learner.logps import FrozenModel, count_chunks, tokens_per_chunk
from rllm_gym.learner.packing import MicroBatch, split_into_micro_batches
from rllm_gym.learner.probes import attention_knee, count_parameters, row_faults
from rllm_gym.memory import GIVE_BACK_EVERY, give_back_freed_memory, keep_freed_memory
from rllm_gym.types import Sample
from rllm_gym.weights.sender import WeightSender

Forward = Callable[[dict[str, Any]], dict[str, torch.Tensor]]  # a micro-batch's model inputs -> outputs


class DeepSpeedLearner(WeightSender):
    """Updates language models by token-budget micro-batches; subclasses give the loss.

    `compute_loss_for_module` gets a micro-batch's tensors ([B, T] and [B], see `rllm_gym.learner.batch`) and
    `num_tokens`, `num_sequences`, `num_episodes`: what the whole minibatch holds over all micro-batches and ranks.
    Losses are divided by these, so that neither the number nor the sizes of micro-batches change the gradient.

    Differs: from RLlib's TorchLearner: no DDP (DeepSpeed reduces gradients), one optimizer step per minibatch whatever
    the number of forward passes, metrics that are equal on all ranks.
    """

    MEAN_STATS: tuple[str, ...] = ("loss",)
    MAX_STATS: tuple[str, ...] = ()
    LOSS_STAT = "loss"
    _sums: dict[str, torch.Tensor]
    _maxima: dict[str, torch.Tensor]

    # --- building ---

    @override(TorchLearner)
    def build(self) -> None:
        wait_for_imports()
        if self.config.num_learners == 0 and not dist.is_initialized():
            # RLlib starts no process group for a local learner, and DeepSpeed wants one.
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        os.environ.setdefault("LOCAL_RANK", "0")  # RLlib's remote learners set none, and DeepSpeed insists
        torch.set_num_threads(self.config.num_learner_threads)
        # RLlib's seeding makes torch also fill new memory, a tenth of an update here; nothing reads it unwritten.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self.engines: dict[str, Any] = {}
        self.num_skipped_steps: dict[str, int] = defaultdict(int)
        self.train_step = 0
        super().build()
        policies = [engine for id_, engine in self.engines.items() if not self.module[id_].learner_only]
        self.packing_fault, self.sharing_fault = row_faults(policies, self.config, self._device)
        if self.config.packing is True and self.packing_fault:
            raise ConfigError(
                "packing: the model must keep sequences apart by their positions; base_model does not "
                f"({self.packing_fault}). Set packing: false, or auto."
            )
        self._gather_weights()
        keep_freed_memory(sparingly=bool(self.config.gradient_checkpointing))

    @override(TorchLearner)
    def configure_optimizers(self) -> None:
        # Counted here, while the weights are whole: ZeRO-3 leaves parameters of size 0.
        self._num_parameters = {module_id: count_parameters(module) for module_id, module in self.module.items()}
        self._knees = {id_: attention_knee(module.bare_lm, self._device) for id_, module in self.module.items()}
        super().configure_optimizers()

    @override(TorchLearner)
    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        if not self.should_module_be_updated(module_id):
            return  # frozen: no optimizer, no engine, whole weights everywhere
        module = self.module[module_id]
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        num_parameters = sum(parameter.numel() for parameter in parameters)
        settings = deepspeed_config(self.config, num_parameters, self.deepspeed_options(module_id))
        optimizer = None
        if "optimizer" not in settings:
            lr, betas, weight_decay = self.learning_rate(module_id), self.config.adam_betas, self.config.weight_decay
            optimizer = torch.optim.AdamW(parameters, lr=lr, betas=tuple(betas), weight_decay=weight_decay)
        deepspeed = import_deepspeed(self._device)
        engine, *_ = deepspeed.initialize(
            model=module, optimizer=optimizer, model_parameters=parameters, config=settings, dist_init_required=False
        )
        self.engines[module_id] = engine
        if engine.zero_optimization_stage() == 3:
            module.gather_parameters = deepspeed.zero.GatheredParameters
        self.register_optimizer(module_id=module_id, optimizer=engine.basic_optimizer, params=parameters)

    def freeze(self, lm: Any, *, is_whole: bool = False) -> Any:
        """Return a module that scores with a model that learns nothing: model inputs -> `logp` and `entropy`.

        At ZeRO-3 the learners share it as they share the policy.

        Args:
            is_whole: leave it whole on every learner, for what reads the model itself.
        """
        frozen = FrozenModel(lm.requires_grad_(False), temperature=float(self.config.temperature)).eval()
        options = {"zero_optimization": self.config.deepspeed.get("zero_optimization", {})}
        settings = deepspeed_config(self.config, sum(p.numel() for p in lm.parameters()), options)
        if is_whole or settings["zero_optimization"]["stage"] != 3:
            return frozen.to(self._device)
        settings["zero_optimization"].pop("offload_optimizer", None)  # there is none
        engine, *_ = import_deepspeed(self._device).initialize(model=frozen, config=settings, dist_init_required=False)
        return engine

    def learning_rate(self, module_id: str) -> float:
        return self.config.option_of(module_id, "lr")

    def deepspeed_options(self, module_id: str) -> Mapping[str, Any]:
        """Return the options to merge over the generated DeepSpeed configuration of the module's engine."""
        return self.config.deepspeed

    @override(TorchLearner)
    def _make_modules_ddp_if_necessary(self) -> None:
        pass  # DeepSpeed reduces the gradients

    @property
    def sample_ids(self) -> list[str]:
        """The trained modules that samples are made for; what else is trained goes along with one of them."""
        return [module_id for module_id in self.engines if self.module[module_id].has_samples]

    # --- one train step ---

    @override(Learner)
    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        self.train_step = timesteps.get("train_step", self.train_step)

    @override(Learner)
    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Update; where no policy took a step, the weights that the samplers know are still the newest version."""
        self._num_policy_steps = 0
        result = super().update(*args, **kwargs)
        if self._num_policy_steps == 0:
            self._weights_seq_no -= 1
        if self._weights_seq_no % GIVE_BACK_EVERY == 0:
            give_back_freed_memory()
        return result

    @property
    def policy_version(self) -> int:
        return self._weights_seq_no

    @override(TorchLearner)
    def _uncompiled_update(self, batch: Mapping[str, Mapping[str, torch.Tensor]], **kwargs: Any) -> tuple[dict, ...]:
        losses = {}
        for module_id in self.sample_ids:  # the same order on all ranks
            start = time.perf_counter()
            metrics = self._update_module(module_id, Batch.from_mapping(batch[module_id], self._device))
            metrics["update_s"] = time.perf_counter() - start
            self.metrics.log_dict(metrics, key=module_id, window=1)
            losses[module_id] = torch.tensor(metrics[self.LOSS_STAT])
        self._gather_weights()
        return {}, losses, {}

    def passes(self, module_id: str) -> dict[str, int]:
        """Return which modules take optimizer steps on the policy's batch, and in how many passes over it."""
        return {module_id: self.config.num_epochs}

    def _update_module(self, module_id: str, batch: Batch) -> dict[str, float]:
        self._start_statistics()
        self.gradient_norms: dict[str, list[float]] = defaultdict(list)
        num_tokens = self.all_reduce(batch.mask.sum().double(), dist.ReduceOp.SUM).item()
        # Nothing to learn from: even a gradient of zero would move the weights, by Adam's momentum.
        for trained_id, num_epochs in self.passes(module_id).items() if num_tokens else ():
            for epoch in range(num_epochs):
                for minibatch in self._minibatches(batch, epoch):
                    self._step(trained_id, minibatch)
            is_finite = torch.tensor(float(self.module[trained_id].is_finite()))
            if not self.all_reduce(is_finite, dist.ReduceOp.MIN).item():
                raise self._non_finite("weight", trained_id)
        self._num_policy_steps += len(self.gradient_norms[module_id]) * (not self.module[module_id].learner_only)
        num_read = self.all_reduce(batch.lengths.sum().double(), dist.ReduceOp.SUM).item()
        return self._statistics() | {
            "gradient_norm": self.mean_gradient_norm(module_id),
            "num_optimizer_steps": float(len(self.gradient_norms[module_id])),
            "num_skipped_steps": float(self.num_skipped_steps[module_id]),
            "num_sampled_tokens_trained": num_tokens,
            "num_tokens_trained": num_read if num_tokens else 0.0,
        }

    def _minibatches(self, batch: Batch, epoch: int) -> Iterator[Batch]:
        return batch.minibatches(self.config.num_minibatches, seed=self.config.seed or 0, epoch=epoch)

    def mean_gradient_norm(self, module_id: str) -> float:
        """Return the mean over the optimizer steps of the present update, before clipping; 0 without any."""
        return sum(self.gradient_norms[module_id]) / max(1, len(self.gradient_norms[module_id]))

    def _step(self, module_id: str, minibatch: Batch) -> None:
        """Take one optimizer step, or discard its gradient if that is not finite (collective)."""
        if (counts := self.all_reduce(minibatch.counts(), dist.ReduceOp.SUM))[0] <= 0:
            return
        engine, is_finite = self.engines[module_id], True
        before = copy.deepcopy((self._sums, self._maxima))
        self.is_first_step = not self.gradient_norms[module_id]
        micro_batches = list(self.micro_batches(module_id, minibatch))
        self.step_share = 1.0 / (len(micro_batches) * world_size())  # of a micro-batch in what a step sums up
        for number, micro_batch in enumerate(micro_batches):
            engine.set_gradient_accumulation_boundary(number == len(micro_batches) - 1)
            loss = self._loss(module_id, micro_batch, counts, engine(self.model_inputs(micro_batch)))
            is_finite &= math.isfinite(loss.item())
            engine.backward(loss * world_size(), scale_wrt_gas=False)  # DeepSpeed averages over ranks
        is_finite = self.all_reduce(torch.tensor(float(is_finite)), dist.ReduceOp.MIN).item() > 0
        # ZeRO-0 clips inside step() and keeps no norm unless the gradients are flattened for it.
        norm = self.module[module_id].gradient_norm() if engine.zero_optimization_stage() == 0 else None
        is_discarded = norm is not None and not (is_finite and math.isfinite(norm))
        if is_discarded:
            engine.zero_grad()
        else:
            engine.step()  # a sharded optimizer looks itself, and discards a gradient that is not finite
            is_discarded = getattr(engine.optimizer, "overflow", False)
        if is_discarded:
            self._sums, self._maxima = before
            return self._count_skipped_step(module_id)
        if not is_finite:
            raise self._non_finite("loss", module_id)
        norm = engine.get_global_grad_norm() if norm is None else norm
        self.gradient_norms[module_id].append(0.0 if norm is None else float(norm))

    def model_inputs(self, part: MicroBatch) -> dict[str, Any]:
        """Return the fields of a micro-batch from which a module computes the loss; a method may add some."""
        return part.model_inputs

    def _loss(self, module_id: str, part: MicroBatch, counts: torch.Tensor, out: Any) -> torch.Tensor:
        names = ("num_tokens", "num_sequences", "num_episodes")
        batch = {**part.tensors, **dict(zip(names, counts.to(part.batch.tokens.device), strict=True))}
        return self.compute_loss_for_module(module_id=module_id, config=self.config, batch=batch, fwd_out=out)

    def _count_skipped_step(self, module_id: str) -> None:
        if self.config.weight_dtype == "float16":
            return  # its loss scale is found by such steps
        self.num_skipped_steps[module_id] += 1
        if self.num_skipped_steps[module_id] > self.config.skip_non_finite_steps:
            raise self._non_finite("loss or gradient", module_id)

    def _non_finite(self, what: str, module_id: str) -> NonFiniteError:
        return NonFiniteError(
            f"DeepSpeedLearner: non-finite {what} of module {module_id!r} at train step {self.train_step}; "
            f"{self.num_skipped_steps[module_id]} steps were skipped, skip_non_finite_steps is "
            f"{self.config.skip_non_finite_steps}. Lower lr, or look at the rewards and log-probabilities."
        )

    def micro_batches(self, module_id: str, batch: Batch) -> Iterator[MicroBatch]:
        """Cut a batch by the token budget; every rank gets equally many, the last ones perhaps empty."""
        knee = self._knees[module_id] if self.sharing_fault is None else None
        parts = split_into_micro_batches(
            batch, self.config.tokens_per_micro_batch, is_packed=self.packing_fault is None, knee=knee
        )
        count = int(self.all_reduce(torch.tensor(len(parts)), dist.ReduceOp.MAX))
        parts += [MicroBatch.filler(batch)] * (count - len(parts))
        chunk_tokens = tokens_per_chunk(self.module[module_id].lm.config.get_text_config().vocab_size)
        chunks = torch.tensor([count_chunks(int(part.batch.mask.sum()), chunk_tokens) for part in parts])
        for part, num_chunks in zip(parts, self.all_reduce(chunks, dist.ReduceOp.MAX).tolist(), strict=True):
            yield part.with_chunks(num_chunks)

    # --- without learning ---

    @torch.no_grad()
    def score(self, samples: Sequence[Sample], shards: Sequence[Sequence[int]], names: Sequence[str]) -> list[tuple]:
        """Compute fields of samples with the weights as they are (collective).

        Args:
            samples: all of them; this learner scores `shards[rank]`.
            names: of the fields, see `score_forward`.

        Returns:
            (index of the sample, {name: float32 [T] or float}).
        """
        found: dict[int, dict[str, Any]] = {index: {} for index in shards[dist.get_rank()]}
        for module_id in sorted({sample.module for sample in samples}.intersection(self.sample_ids)):
            mine = [index for index in found if samples[index].module == module_id]
            batch = Batch.from_mapping(collate([samples[index] for index in mine]), self._device)
            forwards = [self.score_forward(name, module_id) for name in names]
            # Cut as the update cuts, so that the first pass meets the same numbers.
            for minibatch in self._minibatches(batch, epoch=0):
                for part in self.micro_batches(module_id, minibatch):
                    for forward in forwards:
                        out = forward(part.model_inputs)  # also where there is nothing: the passes are collective
                        for row, fields in part.split_rows(out) if mine else ():
                            found[mine[row]] |= fields
        return list(found.items())

    def score_forward(self, name: str, module_id: str) -> Forward:
        """Return the function that computes a field of samples: model inputs -> {field: [b, t] or [b]}."""
        if name != "trainer_logp":
            raise ValueError(f"score: {type(self).__name__} cannot compute {name!r}.")
        return lambda inputs: {name: self.engines[module_id](inputs)["logp"]}

    @torch.no_grad()
    def evaluate(self, samples: Sequence[Sample], shards: Sequence[Sequence[int]]) -> dict[str, float]:
        """Return the statistics of training on other samples, without learning from them (collective)."""
        self._start_statistics()
        self.is_first_step = True
        for module_id in sorted({sample.module for sample in samples}.intersection(self.sample_ids)):
            mine = [samples[index] for index in shards[dist.get_rank()] if samples[index].module == module_id]
            batch = Batch.from_mapping(collate(mine), self._device)
            counts = self.all_reduce(batch.counts(), dist.ReduceOp.SUM)
            parts = list(self.micro_batches(module_id, batch))
            self.step_share = 1.0 / (len(parts) * world_size())
            for part in parts:
                self._loss(module_id, part, counts, self.engines[module_id](self.model_inputs(part)))
        return self._statistics()

    # --- statistics of an update, over micro-batches and ranks ---

    def _start_statistics(self) -> None:
        self._sums = {name: torch.zeros(2, dtype=torch.float64) for name in self.MEAN_STATS}  # value, weight
        self._maxima = {name: torch.zeros((), dtype=torch.float64) for name in self.MAX_STATS}

    def add_means(self, mask: torch.Tensor, **values: torch.Tensor) -> None:
        """Average values of the mask's shape over the elements under the mask."""
        for name, value in values.items():
            total = value.detach().masked_fill(~mask, 0.0).double().sum()
            self._sums[name] += torch.tensor([float(total), float(mask.sum())], dtype=torch.float64)

    def add_step_means(self, **values: torch.Tensor) -> None:
        """Average over the optimizer steps what a step's micro-batches sum up to, such as losses."""
        for name, value in values.items():
            self._sums[name] += torch.tensor([float(value.detach()), self.step_share], dtype=torch.float64)

    def add_maxima(self, mask: torch.Tensor, **values: torch.Tensor) -> None:
        """Keep the largest of values (0 at least) over the elements under the mask."""
        for name, value in values.items():
            self._maxima[name] = value.detach().masked_fill(~mask, 0.0).double().max().cpu().maximum(self._maxima[name])

    def _statistics(self) -> dict[str, float]:
        means = {name: self.all_reduce(sums, dist.ReduceOp.SUM).tolist() for name, sums in self._sums.items()}
        maxima = {name: self.all_reduce(value, dist.ReduceOp.MAX).item() for name, value in self._maxima.items()}
        return {name: value / (weight or 1.0) for name, (value, weight) in means.items()} | maxima

    @staticmethod
    def all_reduce(value: torch.Tensor, op: Any) -> torch.Tensor:
        """Return the value reduced over all learners (collective)."""
        value = value.clone()
        if world_size() > 1:
            if dist.get_backend() == "nccl":
                value = value.cuda()
            dist.all_reduce(value, op=op)
        return value.cpu()

    @override(TorchLearner)
    def _log_trainable_parameters(self) -> None:
        pass  # RLlib logs them once, and its means of nothing are NaN from the second result on; see _log_metrics

    @override(Learner)
    def _log_metrics(self, batch: Any) -> None:
        counts = dict(self._num_parameters)
        counts[ALL_MODULES] = tuple(map(sum, zip(*counts.values(), strict=True)))
        for module_id, (trainable, frozen) in counts.items():
            self.metrics.log_value((module_id, "num_trainable_parameters"), trainable, window=1)
            self.metrics.log_value((module_id, "num_non_trainable_parameters"), frozen, window=1)

    @override(Learner)
    def _log_steps_trained_metrics(self, batch: Any) -> None:
        # RLlib counts the rows of padded batches as steps; the algorithm logs episodes and tokens instead.
        for name, reduce in {"num_env_steps_trained": "sum", "num_env_steps_trained_lifetime": "lifetime_sum"}.items():
            self.metrics.log_value((ALL_MODULES, name), batch.env_steps(), reduce=reduce)

    # --- weights and checkpoints ---

    def _gather_weights(self) -> None:
        for module_id in self.engines:
            if self.module[module_id].gather_parameters is not None:
                self.module[module_id].gather(keep=not dist.is_initialized() or dist.get_rank() == 0)

    @override(Learner)
    def get_state(
        self, components: Any = None, *, not_components: Any = None, inference_only: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Return RLlib's state; `inference_only`, for the samplers, leaves out the modules that only learners have."""
        if inference_only:
            hidden = [f"{COMPONENT_RL_MODULE}/{id_}" for id_, module in self.module.items() if module.learner_only]
            not_components = [*force_list(not_components), *hidden] or None
        return super().get_state(components, not_components=not_components, inference_only=inference_only, **kwargs)

    @override(Learner)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if COMPONENT_RL_MODULE in state:
            self.refresh_master_weights()

    def refresh_master_weights(self) -> None:
        """Make the optimizers' float32 copies follow loaded weights, or the next step undoes the load."""
        for engine in self.engines.values():
            if hasattr(engine.optimizer, "refresh_fp32_params"):
                engine.optimizer.refresh_fp32_params()

    @override(TorchLearner)
    def _get_optimizer_state(self) -> dict:
        return {}  # DeepSpeed writes its own, beside RLlib's files

    @override(TorchLearner)
    def _set_optimizer_state(self, state: dict) -> None:
        pass

    def save_engines(self, folder: str) -> None:
        engine_files.save_engines(self.engines, folder, self.num_skipped_steps)

    def engines_to_convert(self, folder: str) -> dict[str, tuple[engine_files.Layout, engine_files.Layout]]:
        return engine_files.engines_to_convert(self.engines, folder)

    def convert_engines(self, module_ids: Sequence[str], folder: str, converted: str) -> None:
        """Convert modules' files, on one of the learners; the others see what it writes."""
        if dist.get_rank() == 0:
            engine_files.convert_engines(self.engines, module_ids, folder, converted)

    def load_engines(self, folder: str, converted: str | None = None) -> None:
        engine_files.load_engines(self.engines, folder, self.num_skipped_steps, converted)
        self._gather_weights()


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


# --- the configuration of an engine ---


def deepspeed_config(config: Any, num_parameters: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `deepspeed.initialize`.

    Args:
        config: the algorithm's configuration.
        num_parameters: that are trained.
        options: merged over what is generated here.
    """
    # On CPU the default bucket of 5e8 elements allocates 2 GB in every backward pass.
    bucket = min(int(5e8), num_parameters + num_parameters % 2)  # it wants an even number
    generated = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,  # the learner sets the boundary by hand
        "gradient_clipping": config.grad_clip or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.weight_dtype == "bfloat16"},
        "fp16": {"enabled": config.weight_dtype == "float16"},
        "steps_per_print": 10**9,
        "zero_optimization": {
            "stage": zero_stage(config, options),
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        },
    }
    return merge(generated, options)


def zero_stage(config: Any, options: Mapping[str, Any]) -> int:
    """Return the ZeRO stage: the configured one, or what is best if it leaves the choice.

    A single learner has nobody to share with, and the flat copies of the higher stages cost it time and memory; but of
    16-bit weights they are the float32 ones, and what is offloaded is theirs.
    """
    if config.zero_stage is not None:
        return int(config.zero_stage)
    is_offloaded = any(name.startswith("offload") for name in options.get("zero_optimization", {}))
    return 0 if config.num_learners <= 1 and config.weight_dtype == "float32" and not is_offloaded else 2


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings merged; `over` wins."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = (
            merge(merged[key], value) if isinstance(value, Mapping) and isinstance(merged.get(key), dict) else value
        )
    return merged
