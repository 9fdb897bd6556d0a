"""Trajectories: every run appends its episodes; everything that learns from episodes reads them here."""

from rllm_gym.data.conversations import Dialogue, read_dialogues
from rllm_gym.data.keep import Keep
from rllm_gym.data.pairs import best_and_worst, read_dialogue_pairs
from rllm_gym.data.reader import latest_episode, list_shards, read_episodes
from rllm_gym.data.records import SCHEMA_VERSION, EpisodeRecord, TurnRecord, make_records, restore_episode
from rllm_gym.data.sample_file import EpochOrder, SampleFile
from rllm_gym.data.writer import Recorder, TrajectoryWriter

__all__ = [
    "SCHEMA_VERSION",
    "Dialogue",
    "EpisodeRecord",
    "EpochOrder",
    "Keep",
    "Recorder",
    "SampleFile",
    "TrajectoryWriter",
    "TurnRecord",
    "best_and_worst",
    "latest_episode",
    "list_shards",
    "make_records",
    "read_dialogue_pairs",
    "read_dialogues",
    "read_episodes",
    "restore_episode",
]
