"""SFT: supervised fine-tuning on recorded episodes, which is behavioural cloning."""

from __future__ import annotations

from ray.rllib.utils.annotations import override

from rllm_gym.algorithms.offline import OfflineAlgorithm, OfflineConfig
from rllm_gym.options.methods import SFTOptions


class SFTConfig(OfflineConfig, SFTOptions):
    """Configuration of SFT.

    Source: as the first stage of Xi et al. 2024 (AgentGym), arXiv:2406.04151, section 4.1.

    Differs: every assistant token counts alike, over the whole optimizer step, however long its episode is.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or SFT)


class SFT(OfflineAlgorithm):
    """Imitates the assistant's tokens of recorded episodes: the loss is `OfflineLearner`'s."""

    @classmethod
    @override(OfflineAlgorithm)
    def get_default_config(cls) -> SFTConfig:
        return SFTConfig()
