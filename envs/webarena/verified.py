"""WebArena-Verified: evaluates a task by the agent's reply and by what its browser requested from the sites.

The tasks and the evaluators are those of the package webarena-verified; no language model takes part.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.envs.webarena.tasks import need
from rllm_gym.errors import EnvError

# What an answer must look like; the package's own types say so (webarena_verified.types.agent_response).
ANSWER_FORM = """\
- stop [answer]: end the task. The answer is JSON with four keys:
"task_type": "RETRIEVE" if data was asked for, "MUTATE" if something was to be created, changed or deleted, "NAVIGATE"
if a page was to be shown;
"status": "SUCCESS", or what went wrong: "NOT_FOUND_ERROR", "ACTION_NOT_ALLOWED_ERROR", "PERMISSION_DENIED_ERROR",
"DATA_VALIDATION_ERROR", "UNKNOWN_ERROR";
"retrieved_data": the list of what was asked for, else null;
"error_details": null, or the reason in a sentence.
Example: stop [{"task_type": "RETRIEVE", "status": "SUCCESS", "retrieved_data": ["Ada"], "error_details": null}]"""


def is_verified(task_id: int, answer: str, requests: Sequence[Mapping[str, Any]], urls: Mapping[str, str]) -> bool:
    """Say whether a task of WebArena-Verified is solved.

    Args:
        answer: what stood in `stop [...]`.
        requests: what the browser asked for, as entries of a HAR file; see `RequestLog`.
        urls: addresses by site.

    Raises:
        ConfigError: the package is missing.
        EnvError: the evaluation failed.
    """
    result = _evaluators(tuple(urls.items())).evaluate_task(
        task_id=task_id, agent_response=answer, network_trace=list(requests)
    )
    if result.error_msg:
        raise EnvError(f"WebArenaEnv: task {task_id} must be evaluated; got {result.error_msg!r}. Report it.")
    # An evaluator that stumbles over an answer has the status of an error, too; that is the answer's fault.
    return bool(result.score == 1.0)


@functools.lru_cache(maxsize=8)
def _evaluators(urls: tuple[tuple[str, str], ...]) -> Any:
    api: Any = need("webarena_verified.api")
    config: Any = need("webarena_verified.types.config")
    for logger in ("WebArena-Verified", "webarena_verified"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # they tell of every step
    environments = {f"__{site.upper()}__": {"urls": [url]} for site, url in urls}
    return api.WebArenaVerified(config=config.WebArenaVerifiedConfig(environments=environments))
