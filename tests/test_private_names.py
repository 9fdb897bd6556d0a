"""Private and undocumented names of other libraries that this package uses; an upgrade that drops one is named here."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import sys
import textwrap
from pathlib import Path

import pytest

import rllm_gym

LIBRARIES = ("deepspeed", "openenv", "peft", "py4j", "ray", "textworld", "torch", "transformers", "vllm")

NAMED_TUPLES = {"_asdict", "_fields", "_replace"}  # public, in spite of their underscore
# What our classes override and what our code calls or reads: "module:name", or "module:Class.name" where the class
# defines it or sets it on its instances.
PRIVATE = [
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer._lazy_init_hp_params_optimizer_state",
    "openenv.core.env_server.http_server:HTTPEnvServer._create_session",
    "os:_exit",
    "py4j.java_gateway:GatewayClient._get_connection",
    "py4j.java_gateway:GatewayClient._give_back_connection",
    "ray._private.worker:_global_node",
    "ray.actor:ActorHandle._actor_id",
    "ray.experimental.internal_kv:_internal_kv_del",
    "ray.experimental.internal_kv:_internal_kv_get",
    "ray.experimental.internal_kv:_internal_kv_initialized",
    "ray.experimental.internal_kv:_internal_kv_list",
    "ray.experimental.internal_kv:_internal_kv_put",
    "ray.rllib.algorithms.algorithm:Algorithm._get_env_id_and_creator",
    "ray.rllib.algorithms.algorithm:Algorithm._make_on_env_runners_recreated_callbacks",
    "ray.rllib.algorithms.algorithm:Algorithm._should_create_evaluation_env_runners",
    "ray.rllib.algorithms.algorithm_config:AlgorithmConfig._model_config_auto_includes",
    "ray.rllib.algorithms.algorithm_config:AlgorithmConfig._translate_special_keys",
    "ray.rllib.core.learner.learner:Learner._get_optimizer_state",
    "ray.rllib.core.learner.learner:Learner._log_metrics",
    "ray.rllib.core.learner.learner:Learner._log_steps_trained_metrics",
    "ray.rllib.core.learner.learner:Learner._log_trainable_parameters",
    "ray.rllib.core.learner.learner:Learner._set_optimizer_state",
    "ray.rllib.core.learner.learner:Learner._weights_seq_no",
    "ray.rllib.core.learner.torch.torch_learner:TorchLearner._device",
    "ray.rllib.core.learner.torch.torch_learner:TorchLearner._make_modules_ddp_if_necessary",
    "ray.rllib.core.learner.torch.torch_learner:TorchLearner._uncompiled_update",
    "ray.rllib.core.rl_module.rl_module:RLModule._forward",
    "ray.rllib.core.rl_module.rl_module:RLModule._forward_train",
    "ray.tune.logger.logger:LoggerCallback._restore_from_remote",
    "ray.tune.logger.tensorboardx:TBXLoggerCallback._summary_writer_cls",
    "ray.tune.logger.tensorboardx:TBXLoggerCallback._trial_writer",
    "ray.tune.registry:_global_registry",
    "ray.tune.trainable.trainable:Trainable._storage",
    "torch.nn.modules.dropout:_DropoutNd",
    "torch:ops.aten._scaled_dot_product_cudnn_attention",
    "torch:ops.aten._scaled_dot_product_efficient_attention",
    "torch:ops.aten._scaled_dot_product_flash_attention",
    "torch:ops.aten._scaled_dot_product_flash_attention_for_cpu",
    "torch:ops.aten._scaled_dot_product_flash_attention_for_cpu_backward",
    "transformers.configuration_utils:PreTrainedConfig._attn_implementation",
    "vllm.distributed.parallel_state:_TP",
    "vllm.v1.engine.core_client:InprocClient._finalizer",
    "textworld.envs.pddl.pddl:PddlEnv._entity_infos",
    "textworld.envs.pddl.pddl:PddlEnv._pddl_state",
]
# Without an underscore, but in no documentation either. Their form does not give them away: add what you come to use.
UNDOCUMENTED = [
    "openenv.core.env_client:EnvClient._ensure_connected",  # both in a class that is made when openenv is there
    "openenv.core.env_client:EnvClient._ws",
    "deepspeed.checkpoint.ds_to_universal:main",
    "deepspeed.ops:__compatible_ops__",
    "deepspeed.runtime.engine:DeepSpeedEngine.basic_optimizer",
    "deepspeed.runtime.engine:DeepSpeedEngine.get_global_grad_norm",
    "deepspeed.runtime.engine:DeepSpeedEngine.set_gradient_accumulation_boundary",
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.fp32_partitioned_groups_flat",
    "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.refresh_fp32_params",
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.refresh_fp32_params",
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.single_partition_of_fp32_groups",
    "peft.tuners.lora.layer:LoraLayer.lora_A",
    "peft.tuners.lora.layer:LoraLayer.lora_B",
    "peft.tuners.lora.layer:LoraLayer.scaling",
    "ray._private.services:canonicalize_bootstrap_address",
    "ray.air._internal.usage:tag_callbacks",
    "transformers.utils:is_scipy_available",
    "transformers.utils:is_sklearn_available",
    "vllm.model_executor.layers.linear:LinearBase.input_size",
    "vllm.model_executor.layers.linear:LinearBase.output_size",
    "vllm.model_executor.layers.linear:LinearBase.quant_method",
    "vllm.model_executor.layers.linear:UnquantizedLinearMethod.process_weights_after_loading",
    "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding.org_vocab_size",
    "vllm.model_executor.models.qwen2:Qwen2ForCausalLM.packed_modules_mapping",
    "vllm.v1.engine.core:EngineCore.model_executor",
    "vllm.v1.engine.core:EngineCore.scheduler",
    "vllm.v1.engine.core_client:InprocClient.engine_core",
    "vllm.v1.engine.llm_engine:LLMEngine.engine_core",
    "vllm.v1.worker.gpu_worker:Worker.reload_weights",
]


@functools.cache
def tree_of(source: object) -> ast.AST:
    """Return the syntax tree of a module or class; an empty one of a class that is compiled."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(source)))
    except OSError:
        return ast.parse("")


def attributes_of_self(cls: type, context: type[ast.expr_context]) -> set[str]:
    """Return the names that a class's source reads from (`ast.Load`) or sets on (`ast.Store`) `self` and `cls`."""
    return {
        node.attr
        for node in ast.walk(tree_of(cls))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, context)
        and ast.unparse(node.value) in ("self", "cls")
    }


def is_theirs(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


def our_modules() -> list:
    """Import all of the package, and return the modules that hold code."""
    for info in pkgutil.walk_packages(rllm_gym.__path__, "rllm_gym."):
        if not info.name.endswith("__main__"):
            importlib.import_module(info.name)
    ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "rllm_gym"]
    return [module for module in ours if Path(module.__file__).stat().st_size]


def names_touched_by_class(cls: type) -> set[str]:
    """Return the names of the libraries' base classes that a class of ours defines, reads or sets."""
    bases = [base for base in cls.__mro__ if is_theirs(base.__module__)]
    theirs = {name for base in bases for name in (*vars(base), *attributes_of_self(base, ast.Store))}
    ours = [base for base in cls.__mro__ if base.__module__.startswith("rllm_gym.")] if bases else []
    return theirs & {
        name
        for base in ours
        for name in (*vars(base), *attributes_of_self(base, ast.Load), *attributes_of_self(base, ast.Store))
    }


def names_touched_elsewhere(module: object) -> set[str]:
    """Return the names that a module imports from the libraries, or reads from objects that it did not make."""
    imported, read, ours = set(), set(), set()
    for node in ast.walk(tree_of(module)):
        match node:
            case ast.ImportFrom() if is_theirs(node.module):
                imported |= {alias.name for alias in node.names}
            case ast.Attribute(ctx=ast.Store()):
                ours.add(node.attr)
            case ast.Attribute() if ast.unparse(node.value) not in ("self", "cls", "super()"):
                read.add(node.attr)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                ours.add(node.name)
            case ast.Name(ctx=ast.Store()):  # a field of a dataclass
                ours.add(node.id)
    return (imported | read - ours) - NAMED_TUPLES


def exists(path: str) -> bool:
    module, _, name = path.partition(":")
    owner = importlib.import_module(module)
    *classes, name = name.split(".")
    for cls in classes:
        owner = getattr(owner, cls)
    is_set = inspect.isclass(owner) and any(
        name in attributes_of_self(base, ast.Store) for base in owner.__mro__ if is_theirs(base.__module__)
    )
    return is_set or hasattr(owner, name)


def last_parts(paths: list[str]) -> set[str]:
    return {path.replace(":", ".").rpartition(".")[2] for path in paths}


@pytest.mark.parametrize("path", PRIVATE + UNDOCUMENTED)
def test_the_name_is_still_there(path: str) -> None:
    assert exists(path), f"{path} is gone in the installed version; see who uses it in rllm_gym"


def test_every_private_name_that_is_touched_is_listed() -> None:
    touched = set()
    for module in our_modules():
        touched |= names_touched_elsewhere(module)
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                touched |= names_touched_by_class(cls)
    private = {name for name in touched if name.startswith("_") and not name.endswith("__")}
    assert private - {"_abc_impl", "_backward_cls"} == last_parts(PRIVATE)  # the exceptions are set by metaclasses


def test_every_undocumented_name_that_is_listed_is_used() -> None:
    words = {
        getattr(node, field)
        for module in our_modules()
        for node in ast.walk(tree_of(module))
        for kind, field in ((ast.Attribute, "attr"), (ast.Constant, "value"), (ast.AsyncFunctionDef, "name"))
        if isinstance(node, kind)
    }
    assert last_parts(UNDOCUMENTED) <= words
