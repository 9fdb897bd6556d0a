"""`python -m rllm_gym.envs.program.call_function module:function`: call a function with the task, print its result."""

import inspect
import json
import sys

from rllm_gym.importing import import_object


def main() -> None:
    result = import_object("command", sys.argv[1])(json.load(sys.stdin))
    if inspect.iscoroutine(result):
        import asyncio

        result = asyncio.run(result)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
