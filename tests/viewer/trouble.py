"""An environment that does what it is told: it hangs, dies or fails. Importing this registers it."""

import os
import subprocess
import sys
import time

from rllm_gym import register_text_env
from rllm_gym.envs.base import StepResult, TextEnv


class Trouble(TextEnv):
    name = "trouble"
    num_items = 1
    category = "trouble"

    def split_indices(self, split):
        return [0]

    def reset_item(self, index):
        return "Choose."

    def act(self, action):
        if action == "hang":
            subprocess.Popen(["sleep", "3601"])
            time.sleep(3600)
        if action == "exit":
            sys.exit(3)
        if action == "die":
            os.kill(os.getpid(), 9)
        if action == "fail":
            raise RuntimeError("a gremlin")
        return StepResult("Fine.", 0.5, False, False)


register_text_env("Trouble-v0", Trouble)
