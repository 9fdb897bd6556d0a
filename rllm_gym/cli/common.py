"""What both commands share: one line per error, and exit codes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import typer

from rllm_gym.errors import ConfigError, StorageError

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Print without a traceback the caller's mistakes, and exit with code 2; a full or lost disk, with code 1."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from error
    except StorageError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt as error:
        print("ended at once, without a checkpoint", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from error
