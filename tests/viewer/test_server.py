"""The server: this machine's page alone may ask, and only its own files are given out."""

import http.client
import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllm_gym_app
from rllm_gym.viewer.page import SCRIPTS, STATIC, STYLES, self_contained_page, static_files

app = make_rllm_gym_app()


def ask(address, path, *, method="GET", body=None, **headers):
    host = address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host)
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    connection.request(method, path, body, names)
    response = connection.getresponse()
    return response.status, response.read(), dict(response.getheaders())


def post(address, path, body, **headers):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(address, path, method="POST", body=body, **{"Content_Type": "application/json", **headers})


@pytest.mark.promise
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "192.168.0.1", ""])
def test_another_name_for_this_server_is_refused(address, host):
    assert ask(address, "/api/state", Host=host)[0] == 400


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "localhost:8420"])
def test_this_machines_names_are_taken(address, host):
    assert ask(address, "/api/state", Host=host)[0] == 200


@pytest.mark.promise
@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static//etc/passwd",
        "/static/%2Fetc%2Fpasswd",
        "/static/vendor/../../server.py",
        "/static/",
        "/server.py",
        "/api/episodes/..%2f..%2fsecret",
        "/api/episodes/nothing",
    ],
)
def test_no_path_leads_out(address, path):
    status, body, _ = ask(address, path)
    assert status == 404 and b"uvicorn" not in body and b"root:" not in body


@pytest.mark.promise
def test_every_answer_has_the_policy_and_none_lets_anything_inline_or_from_elsewhere(address):
    for path in ("/", "/static/app.js", "/api/state", "/api/nothing", "/static/nothing"):
        policy = ask(address, path)[2]["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy and "data:" not in policy


@pytest.mark.promise
def test_other_sites_pages_cannot_post(address):
    wanted = {"env": "rllm_gym/TextCraft-v0"}
    assert post(address, "/api/hub/sessions", wanted, Origin="http://evil.example")[0] == 403
    assert post(address, "/api/hub/sessions", wanted, Origin="null")[0] == 403
    assert post(address, "/api/hub/sessions", wanted, Content_Type="text/plain")[0] == 415
    assert ask(address, "/api/hub/sessions")[0] == 405
    assert not address.hub._sessions


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"nonsense", "Expecting value"),
        (b"[1]", "JSON object"),
        ({"env": "no/Such-v0"}, "one of those that are listed"),
        ({"env": "os:system"}, "one of those that are listed"),
        ({"env": "rllm_gym/TextCraft-v0", "policy": "/etc/passwd"}, "policy must be one of"),
        ({"env": "rllm_gym/TextCraft-v0", "seed": "x"}, "seed must be a whole number"),
        ({"env": "rllm_gym/TextCraft-v0", "seed": -1}, "seed must be a whole number"),
        ({"env": "rllm_gym/TextCraft-v0", "env_config": [1]}, "env_config must be a JSON object"),
        ({"env": "rllm_gym/TextCraft-v0", "cfg": {}}, "got 'cfg'"),
        ({"env": "rllm_gym/TextCraft-v0", "item_id": {"a": 1}}, "item_id must be"),
        (b"1" * ((1 << 20) + 1), "too much"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_line(address, body, said):
    status, answer, _ = post(address, "/api/hub/sessions", body)
    assert status in (400, 413) and said in json.loads(answer)["error"]


def test_a_session_that_is_not_there_is_said(address):
    status, answer, _ = post(address, "/api/hub/sessions/nothing", {"do": "expert"})
    assert status == 400 and "has ended" in json.loads(answer)["error"]


def test_the_page_and_all_that_it_names_is_there(address):
    page = address.get("").decode()
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(named) == len(SCRIPTS) + len(STYLES)
    assert all(address.get(name) for name in named)
    assert set(SCRIPTS) | set(STYLES) <= set(static_files())
    left_out = [name for name in static_files() if name.endswith((".js", ".css")) and name not in SCRIPTS + STYLES]
    assert not left_out


def test_every_library_has_its_licence_and_its_version_in_the_table():
    from tools.viewer_libraries import FOLDER, PACKAGES

    table = (FOLDER / "README.md").read_text()
    files = {file for named in PACKAGES.values() for file in named.values()}
    assert {file.name for file in FOLDER.iterdir()} == files | {"README.md"}
    for package in PACKAGES:
        name, _, version = package.partition("@")
        assert re.search(rf"\[{name}\].*\| {version} \|", table, re.IGNORECASE)


def test_nothing_of_the_page_asks_another_host():
    own = [file for file in STATIC.rglob("*") if file.suffix in (".js", ".css") and file.parent.name != "vendor"]
    for file in own:
        assert not re.search(
            r"https?://|innerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", file.read_text()
        ), file


def test_an_exported_pages_policy_has_hashes_alone():
    policy = re.search(r'Security-Policy" content="([^"]+)"', self_contained_page(b"data"))[1]
    assert policy.count("sha256-") == len(SCRIPTS) + len(STYLES)
    assert "connect-src 'none'" in policy and "unsafe" not in policy and "'self'" not in policy


def test_the_light_core_does_without_the_trainer():
    code = (
        "import sys, rllm_gym.viewer.server, rllm_gym.viewer.one_file, rllm_gym.viewer.hub_worker\n"
        "print([m for m in ('torch', 'ray', 'vllm', 'transformers', 'deepspeed') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "is not there"),
        (["--export", "x.html"], "needs episodes"),
        (["--export", "x.html", "--port", "1"], "a file has no hub"),
        (["--max-episodes", "3"], "is of --export"),
        (["--env", "no_such_module:Env-v0"], "must be a module"),
    ],
)
def test_the_commands_faults_are_said_in_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["view", *arguments])
    assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_said(address, runs):
    port = address.rstrip("/").rpartition(":")[2]
    result = CliRunner().invoke(app, ["view", str(runs[0]), "--port", port])
    assert result.exit_code == 2 and "--port" in result.stderr


@pytest.mark.promise
def test_without_the_printed_token_nobody_gets_in():
    from starlette.testclient import TestClient

    from rllm_gym.viewer.episode_index import Index
    from rllm_gym.viewer.hub import Hub
    from rllm_gym.viewer.server import make_app

    asked = [("GET", path) for path in ("/", "/static/app.js", "/api/state", "/api/hub", "/?token=", "/?token=wrong")]
    with TestClient(make_app(Index([]), Hub({}), "se-cret"), base_url="http://127.0.0.1") as client:
        for method, path in [*asked, ("POST", "/api/hub/sessions")]:
            assert client.request(method, path, json={} if method == "POST" else None).status_code == 403, path
        let_in = client.get("/?token=se-cret", follow_redirects=False)
        assert let_in.headers["location"] == "/"
        assert {"HttpOnly", "SameSite=strict"} <= set(let_in.headers["set-cookie"].split("; "))
        assert client.get("/").status_code == client.get("/api/state").status_code == 200


def test_every_start_has_a_token_of_its_own(monkeypatch):
    from rllm_gym.viewer import server

    addresses = []
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: None)
    monkeypatch.setattr(server, "make_app", lambda index, hub, token: token)
    for has_token in (True, True, False):
        server.serve(None, None, port=0, on_start=addresses.append, has_token=has_token)
    first, second = (address.partition("?token=")[2] for address in addresses[:2])
    assert first != second and len(first) >= 32 and len(second) >= 32
    assert addresses[2].endswith("/")
