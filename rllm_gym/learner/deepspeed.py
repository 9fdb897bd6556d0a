"""The learner: an RLlib TorchLearner whose optimizers are DeepSpeed engines (ZeRO 0-3)."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from ray.rllib.core import ALL_MODULES, COMPONENT_RL_MODULE
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils import force_list

from rllm_gym.errors import RllmGymError
from rllm_gym.learner.batch import Batch, MicroBatch, split_into_micro_batches
from rllm_gym.learner.logps import count_chunks, tokens_per_chunk
from rllm_gym.learner.stats import TokenStats
from rllm_gym.memory import give_back_freed_memory

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed probes for accelerators
import deepspeed

# Its CPU build compiles for half a minute; gloo does the same work here.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

CHECKPOINT_TAG = "engine"


class DeepSpeedLearner(TorchLearner):
    """Updates language models by token-budget micro-batches; subclasses give the loss (`compute_loss_for_module`).

    The loss is normalised by the sampled tokens of the whole minibatch, over micro-batches and ranks, so that neither
    their number nor their sizes change the gradient.

    Differs: from RLlib's TorchLearner: no DDP (DeepSpeed reduces gradients), one optimizer step per minibatch whatever
    the number of forward passes, metrics that are equal on all ranks.
    """

    # --- building ---

    def build(self) -> None:
        if self.config.num_learners == 0 and not dist.is_initialized():
            # RLlib starts no process group for a local learner, and DeepSpeed wants one.
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        os.environ.setdefault("LOCAL_RANK", "0")  # RLlib's remote learners set none, and DeepSpeed insists
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // max(1, self.config.num_learners)))
        # RLlib's seeding makes torch also fill new memory, a tenth of an update here; nothing reads it unwritten.
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.engines: dict[str, Any] = {}
        super().build()
        self._gather_weights()

    def configure_optimizers(self) -> None:
        # Counted here, while the weights are whole: ZeRO-3 leaves parameters of size 0.
        self._num_parameters = {module_id: _count_parameters(module) for module_id, module in self.module.items()}
        super().configure_optimizers()

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        if not self.should_module_be_updated(module_id):
            return  # frozen: no optimizer, no engine, whole weights everywhere
        module = self.module[module_id]
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        settings = self._deepspeed_config(module_id, sum(parameter.numel() for parameter in parameters))
        optimizer = None
        if "optimizer" not in settings:
            optimizer = torch.optim.AdamW(
                parameters,
                lr=self.learning_rate(module_id),
                betas=tuple(self.config.adam_betas),
                weight_decay=self.config.weight_decay,
            )
        engine, *_ = deepspeed.initialize(
            model=module, optimizer=optimizer, model_parameters=parameters, config=settings, dist_init_required=False
        )
        self.engines[module_id] = engine
        if self.config.zero_stage == 3:
            module.gather_parameters = deepspeed.zero.GatheredParameters
        self.register_optimizer(module_id=module_id, optimizer=engine.basic_optimizer, params=parameters)

    def learning_rate(self, module_id: str) -> float:
        """Return the rate of the module's optimizer."""
        return self.config.lr

    def deepspeed_options(self, module_id: str) -> Mapping[str, Any]:
        """Return what is merged over the generated DeepSpeed configuration of the module's engine."""
        return self.config.deepspeed

    def _deepspeed_config(self, module_id: str, num_parameters: int) -> dict[str, Any]:
        # On CPU the default bucket of 5e8 elements allocates 2 GB in every backward pass.
        bucket = min(int(5e8), num_parameters + num_parameters % 2)  # it wants an even number
        generated = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,  # the boundary is set by hand, see _step
            "gradient_clipping": self.config.grad_clip or 0.0,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": self.config.dtype == "bfloat16"},
            "fp16": {"enabled": self.config.dtype == "float16"},
            "steps_per_print": 10**9,
            "zero_optimization": {
                "stage": self.config.zero_stage,
                "reduce_bucket_size": bucket,
                "allgather_bucket_size": bucket,
            },
        }
        return merge(generated, self.deepspeed_options(module_id))

    def _make_modules_ddp_if_necessary(self) -> None:
        pass  # DeepSpeed reduces the gradients

    # --- one train step ---

    MEAN_STATS: tuple[str, ...] = ("policy_loss", "entropy")
    MAX_STATS: tuple[str, ...] = ()
    LOSS_STAT = "policy_loss"

    def _uncompiled_update(
        self, batch: Mapping[str, Mapping[str, torch.Tensor]], **kwargs: Any
    ) -> tuple[dict, dict, dict]:
        losses = {}
        for module_id in self.policy_ids:  # the same order on all ranks
            start = time.perf_counter()
            module_batch = Batch.from_mapping(batch[module_id], self._device)
            metrics = self._update_module(module_id, module_batch)
            metrics["update_s"] = time.perf_counter() - start
            self.metrics.log_dict({(module_id, name): value for name, value in metrics.items()}, window=1)
            losses[module_id] = torch.tensor(metrics[self.LOSS_STAT])
        self._gather_weights()
        return {}, losses, {}

    @property
    def policy_ids(self) -> list[str]:
        """The modules that are trained and sample; what else is trained (critics) goes along with one of them."""
        return [module_id for module_id in self.engines if not self.module[module_id].learner_only]

    def modules_to_step(self, module_id: str) -> list[str]:
        """Return the modules that take an optimizer step on each of the policy's minibatches."""
        return [module_id]

    def _update_module(self, module_id: str, batch: Batch) -> dict[str, float]:
        self.stats = TokenStats(self.MEAN_STATS, self.MAX_STATS)
        self.prepare_batch(module_id, batch)
        num_sampled, num_minibatches = 0.0, 0
        self.gradient_norms: dict[str, list[float]] = defaultdict(list)
        for _ in range(self.config.num_epochs):
            for minibatch in batch.minibatches(self.config.num_minibatches):
                num_tokens = self.all_reduce(minibatch.mask.sum().double(), dist.ReduceOp.SUM)
                if (
                    num_tokens == 0
                ):  # nothing to learn from: even a zero gradient would move the weights, by Adam's momentum
                    continue
                self.is_first_step = num_minibatches == 0
                num_sequences = self.all_reduce(minibatch.mask.any(-1).sum().double(), dist.ReduceOp.SUM)
                for trained_id in self.modules_to_step(module_id):
                    self.gradient_norms[trained_id].append(self._step(trained_id, minibatch, num_tokens, num_sequences))
                num_sampled += num_tokens.item()
                num_minibatches += 1
        self._num_policy_steps += len(self.gradient_norms[module_id])
        num_tokens = self.all_reduce(batch.lengths.sum().double(), dist.ReduceOp.SUM).item() if num_minibatches else 0.0
        return self.stats.reduced(self.all_reduce) | {
            "gradient_norm": self.mean_gradient_norm(module_id),
            "num_optimizer_steps": float(len(self.gradient_norms[module_id])),
            "num_sampled_tokens_trained": num_sampled / self.config.num_epochs,
            "num_tokens_trained": num_tokens,
        }

    def mean_gradient_norm(self, module_id: str) -> float:
        """Return the mean over the optimizer steps of the present update, before clipping; 0 without any."""
        norms = self.gradient_norms[module_id]
        return sum(norms) / max(1, len(norms))

    def prepare_batch(self, module_id: str, batch: Batch) -> None:
        """Add to the batch what must be computed with the weights as they are before the first step."""

    def _step(self, module_id: str, minibatch: Batch, num_tokens: torch.Tensor, num_sequences: torch.Tensor) -> float:
        """Take one optimizer step; returns the norm of the gradient before clipping.

        Args:
            num_tokens, num_sequences: sampled tokens, and sequences that have any, on all learners: what losses are
                divided by.
        """
        engine = self.engines[module_id]
        micro_batches = list(self.micro_batches(module_id, minibatch))
        for number, micro_batch in enumerate(micro_batches):
            engine.set_gradient_accumulation_boundary(number == len(micro_batches) - 1)
            out = engine(micro_batch.model_inputs)
            loss = self.compute_loss_for_module(
                module_id=module_id,
                config=self.config,
                batch={**micro_batch.tensors, "num_tokens": num_tokens, "num_sequences": num_sequences},
                fwd_out=out,
            )
            engine.backward(loss * _world_size(), scale_wrt_gas=False)  # DeepSpeed averages over ranks
            if number == len(micro_batches) - 1 and self.config.zero_stage == 0:
                # ZeRO-0 clips inside step() and keeps no norm unless the gradients are flattened for it.
                norm = _gradient_norm(self.module[module_id])
            engine.step()
        if self.config.zero_stage != 0:
            norm = engine.get_global_grad_norm()
        return float(norm) if norm is not None and math.isfinite(float(norm)) else 0.0

    def micro_batches(self, module_id: str, batch: Batch) -> Iterator[MicroBatch]:
        """Cut a batch by the token budget; every rank gets equally many, the last ones perhaps empty."""
        parts = self.split(batch)
        count = int(self.all_reduce(torch.tensor(len(parts)), dist.ReduceOp.MAX))
        parts += [MicroBatch.filler(batch)] * (count - len(parts))
        chunk_tokens = tokens_per_chunk(self.module[module_id].lm.config.vocab_size)
        chunks = torch.tensor([count_chunks(part.num_sampled_tokens, chunk_tokens) for part in parts])
        for part, num_chunks in zip(parts, self.all_reduce(chunks, dist.ReduceOp.MAX).tolist(), strict=True):
            yield part.with_chunks(num_chunks)

    def split(self, batch: Batch) -> list[MicroBatch]:
        """Cut a batch by the token budget, on this rank."""
        return split_into_micro_batches(batch, self.config.tokens_per_micro_batch)

    def forward_logps(self, module_id: str, batch: Batch, lm_forward: Any = None) -> torch.Tensor:
        """Return log-probabilities [B, T] of a whole batch; see `forward_per_token`."""
        return self.forward_per_token("logp", module_id, batch, lm_forward)

    @torch.no_grad()
    def forward_per_token(self, name: str, module_id: str, batch: Batch, forward: Any = None) -> torch.Tensor:
        """Return an output [B, T] of a whole batch, by micro-batches, without gradients; 0 in the padding.

        Args:
            name: of the output.
            forward: maps a micro-batch's model inputs to `{name: [b, t]}`; default: the module as it is.
        """
        forward = forward or self.engines[module_id]
        out_BT = torch.zeros(batch.tokens.shape, dtype=torch.float32, device=batch.tokens.device)
        for part in self.micro_batches(module_id, batch):
            out = forward(part.model_inputs)[name]
            if not part.is_filler:
                out_BT[part.rows, : out.shape[1]] = out
        return out_BT

    @staticmethod
    def all_reduce(value: torch.Tensor, op: Any) -> torch.Tensor:
        """Return the value reduced over all learners (collective)."""
        value = value.clone()
        if _world_size() > 1:
            if dist.get_backend() == "nccl":
                value = value.cuda()
            dist.all_reduce(value, op=op)
        return value

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Update; where no policy took a step, the weights that the samplers know are still the newest version."""
        self._num_policy_steps = 0
        result = super().update(*args, **kwargs)
        if self._num_policy_steps == 0:
            self._weights_seq_no -= 1
        give_back_freed_memory()
        return result

    def _log_trainable_parameters(self) -> None:
        pass  # RLlib logs them once, and its means of nothing are NaN from the second result on; see _log_metrics

    def _log_metrics(self, batch: Any) -> None:
        counts = dict(self._num_parameters)
        counts[ALL_MODULES] = tuple(map(sum, zip(*counts.values(), strict=True)))
        for module_id, (trainable, frozen) in counts.items():
            self.metrics.log_value((module_id, "num_trainable_parameters"), trainable, window=1)
            self.metrics.log_value((module_id, "num_non_trainable_parameters"), frozen, window=1)

    def _log_steps_trained_metrics(self, batch: Any) -> None:
        # RLlib counts the rows of padded batches as steps; the algorithm logs episodes and tokens instead.
        self.metrics.log_value((ALL_MODULES, "num_env_steps_trained"), batch.env_steps(), reduce="sum")
        self.metrics.log_value(
            (ALL_MODULES, "num_env_steps_trained_lifetime"), batch.env_steps(), reduce="lifetime_sum"
        )

    # --- weights and checkpoints ---

    def _gather_weights(self) -> None:
        for module_id in self.engines:
            if self.module[module_id].gather_parameters is not None:
                self.module[module_id].gather(keep=not dist.is_initialized() or dist.get_rank() == 0)

    def get_state(
        self, components: Any = None, *, not_components: Any = None, inference_only: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Return RLlib's state; `inference_only`, for the samplers, leaves out the modules that only learners have."""
        if inference_only:
            hidden = [f"{COMPONENT_RL_MODULE}/{id_}" for id_, module in self.module.items() if module.learner_only]
            not_components = [*force_list(not_components), *hidden] or None
        return super().get_state(components, not_components=not_components, inference_only=inference_only, **kwargs)

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if COMPONENT_RL_MODULE in state:
            self.refresh_master_weights()

    def refresh_master_weights(self) -> None:
        """Make the optimizers' float32 copies follow loaded weights, or the next step undoes the load."""
        for engine in self.engines.values():
            if hasattr(engine.optimizer, "refresh_fp32_params"):
                engine.optimizer.refresh_fp32_params()

    def _get_optimizer_state(self) -> dict:
        return {}  # DeepSpeed writes its own, beside RLlib's files

    def _set_optimizer_state(self, state: dict) -> None:
        pass

    def save_engines(self, folder: str) -> None:
        """Write weights, optimizer and schedule (collective: every learner must be asked)."""
        for module_id, engine in self.engines.items():
            engine.save_checkpoint(f"{folder}/{module_id}", tag=CHECKPOINT_TAG)

    def load_engines(self, folder: str) -> None:
        """Read what `save_engines` wrote (collective).

        Raises:
            RllmGymError: the checkpoint lacks a module, or was written by another number of learners or ZeRO stage.
        """
        for module_id, engine in self.engines.items():
            path = f"{folder}/{module_id}"
            try:
                loaded, _ = engine.load_checkpoint(path, tag=CHECKPOINT_TAG)
            except Exception as error:  # DeepSpeed raises anything from AssertionError to KeyError here
                raise RllmGymError(f"{_cannot_load(path)} ({type(error).__name__}: {error})") from error
            if loaded is None:
                raise RllmGymError(_cannot_load(path))
        self._gather_weights()


def _cannot_load(path: str) -> str:
    return (
        f"DeepSpeedLearner: cannot load the optimizer state in {path}. Resume with the number of learners and the "
        f"ZeRO stage "
        "that wrote it, or start a new run from its exported model."
    )


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _count_parameters(module: torch.nn.Module) -> tuple[int, int]:
    """Return the numbers of trainable and of frozen parameters."""
    sizes = [(parameter.requires_grad, parameter.numel()) for parameter in module.parameters()]
    return sum(n for trains, n in sizes if trains), sum(n for trains, n in sizes if not trains)


def _gradient_norm(module: torch.nn.Module) -> torch.Tensor:
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient.float()) for gradient in gradients]))


def merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings merged; `over` wins."""
    merged = dict(base)
    for key, value in over.items():
        merged[key] = (
            merge(merged[key], value) if isinstance(value, Mapping) and isinstance(merged.get(key), dict) else value
        )
    return merged
