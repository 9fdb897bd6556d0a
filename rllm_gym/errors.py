"""The exceptions that cross module borders."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable


class RllmGymError(Exception):
    """Base of every error this package raises on purpose."""


class EnvError(RllmGymError):
    """An environment failed: its browser died, its server did not answer, its state is lost.

    Environments raise it from `reset` or `step`. The rollout loop retries the episode on a fresh environment, then
    drops and counts it; a failed episode is never trained on as a reward of 0.
    """


class ConfigError(RllmGymError, ValueError):
    """The caller's configuration is wrong. The message is one line: who, the rule, what was got, what to do."""


class MachineError(ConfigError):
    """This machine lacks what another may have: a package, a browser, Java. The message says how to install it."""


class ChatTemplateError(ConfigError):
    """A chat template cannot be used for token-level episodes."""


class NonFiniteError(RllmGymError):
    """A loss, a gradient or a weight is NaN or infinite; the message names the train step."""


class TooManyFailedEpisodesError(RllmGymError):
    """More than `max_failed_fraction` of a train step's episodes failed; carries the first error's text."""


class StorageError(RllmGymError, OSError):
    """A run's results cannot be written: its folder was deleted, or the disk is full. The message is one line."""


class EngineDiedError(RllmGymError):
    """A process that held a part of an engine's model has ended, and the engine with it. The message is one line."""


class LearnerDiedError(RllmGymError):
    """A remote learner died, and its part of the training state with it. The message is one line."""


class TrajectoryError(RllmGymError, ValueError):
    """A trajectory file or folder cannot be read or written: damaged, of another schema version, or in use."""


def nearest(got: object, known: Iterable[str]) -> str:
    """Return the known name most like `got`, for messages about unknown ones."""
    by_lower = {name.lower(): name for name in sorted(known, reverse=True)}
    return by_lower[difflib.get_close_matches(str(got).lower(), by_lower, n=1, cutoff=0.0)[0]]


def describe(error: BaseException) -> str:
    """Return an exception's type, message and innermost frame in one line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    try:
        message = str(error)
    except Exception as other:  # an exception of somebody's; this thread must not end with it
        message = f"(its message cannot be made: {type(other).__name__})"
    return f"{type(error).__name__}: {message} ({frame.filename}:{frame.lineno} in {frame.name})"
