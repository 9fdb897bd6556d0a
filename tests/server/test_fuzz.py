"""Requests made from each application's OpenAPI document, valid and not: none may end in a 5xx."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.needs import skip_without
from tests.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("path", ["", "/agentgym"])
def test_no_request_ends_in_a_5xx(path, tmp_path):
    skip_without("openenv")
    # A create without a close is part of it: room for all of them.
    with serving("--env", "TextCraft-v0", "--workers", "1", "--max-sessions", "100000") as served:
        command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
        options = ["run", f"{served.url}{path}/openapi.json", "--checks", "not_a_server_error", "--max-examples", "100"]
        ended = subprocess.run(
            [*command, *options, "--seed", "1", "--no-color", "--url", f"{served.url}{path}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=380,
            env={**os.environ},
        )
        assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
        assert "generated" in ended.stdout
        print(ended.stdout[-1500:])
