"""The trajectory store: every run appends its episodes; everything that learns from episodes reads them here."""

from rllm_gym.data.reader import list_shards, read_episodes
from rllm_gym.data.records import SCHEMA_VERSION, EpisodeRecord, TurnRecord, records_of
from rllm_gym.data.writer import TrajectoryWriter

__all__ = [
    "SCHEMA_VERSION",
    "EpisodeRecord",
    "TrajectoryWriter",
    "TurnRecord",
    "list_shards",
    "read_episodes",
    "records_of",
]
