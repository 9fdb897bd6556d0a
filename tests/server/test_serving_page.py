"""The Python blocks of docs/serving.md, against a server."""

from __future__ import annotations

import re

import gymnasium

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.contract import play
from tests.needs import skip_without
from tests.serving import ROOT, serving


def test_the_blocks_of_the_page_play_the_environment(capsys):
    skip_without("openenv")
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    client, trl = (block for block in blocks if "GenericEnvClient" in block)
    with serving("--env", "TextCraft-v0", "--workers", "1") as served:
        client, trl = (block.replace("http://127.0.0.1:36001", served.url) for block in (client, trl))
        exec(compile(client, "docs/serving.md", "exec"), {})
        said = capsys.readouterr().out
        assert "Goal: craft" in said and "You are not carrying anything." in said and said.endswith("0.0 False False\n")
        names: dict = {}
        exec(compile(trl, "docs/serving.md", "exec"), names)
        env = names["TextCraft"]()
        opening, *turns = play(gymnasium.make("rllm_gym/TextCraft-v0", obs_type="text"), 0, {"item_id": "textcraft_17"})
        assert env.reset(item_id="textcraft_17").rpartition("\n")[2] == opening[0].rpartition("\n")[2]
        for action, text, *_ in turns:
            assert env.act(action) == text
        assert env.get_reward() == 1.0
        env._client.close()
