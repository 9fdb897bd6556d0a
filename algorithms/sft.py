"""SFT: supervised fine-tuning on recorded episodes, which is behavioural cloning."""

from __future__ import annotations

from rllm_gym.algorithms.offline import OfflineAlgorithm, OfflineConfig
from rllm_gym.options.methods import SFTOptions


class SFTConfig(OfflineConfig, SFTOptions):
    """Configuration of SFT.

    Source: as the first stage of Xi et al. 2024 (AgentGym), arXiv:2406.04151, section 4.1.

    Differs: every assistant token counts alike, over the whole optimizer step, however long its episode is.
    """


class SFT(OfflineAlgorithm):
    """Imitates the assistant's tokens of recorded episodes: the loss is `OfflineLearner`'s."""

    config_class = SFTConfig
