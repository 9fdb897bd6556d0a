"""The browser's process: which one is taken, how it is shared, and what happens when it dies."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from rllm_gym.envs.web import browser, install
from rllm_gym.envs.web.browser import Browser, find_chromium
from rllm_gym.envs.web.page import WebPage
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.memory import process_tree_bytes
from tests.envs.web_site import SITES, Site

NUM_WINDOWS = 16
TIMEOUT_S = 120.0
SHELLS = ("sh", "dash", "bash")


@pytest.fixture(scope="module")
def site():
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def open_window(site, needs_browser):
    windows = []

    def open_window():
        windows.append(WebPage(SITES, server=site.address, timeout_s=TIMEOUT_S))
        return windows[-1]

    yield open_window
    for window in windows:
        window.close()


def chromiums():
    return [p for p in psutil.Process().children(recursive=True) if "chrom" in p.name()]


def main_process():
    # Not a script that starts it, as Debian's packages have.
    return next(p for p in chromiums() if "--type=" not in " ".join(p.cmdline()) and Path(p.exe()).name not in SHELLS)


# Finding one.


def executable(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_a_given_path_comes_first_then_playwrights_own_then_the_systems(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(browser.BROWSER_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"apt-get install chromium.*playwright install chromium"):
        find_chromium()
    system = executable(tmp_path / "bin" / "chromium")
    assert find_chromium() == system
    executable(tmp_path / "playwright" / "chromium-99" / "chrome-linux" / "chrome")
    newest = executable(tmp_path / "playwright" / "chromium-1200" / "chrome-linux64" / "chrome")
    assert find_chromium() == newest
    mine = executable(tmp_path / "mine")
    monkeypatch.setenv(browser.BROWSER_VARIABLE, mine)
    assert find_chromium() == mine
    assert find_chromium(system) == system
    for wrong in (str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(ConfigError, match="must be an executable file"):
            find_chromium(wrong)


def test_the_headless_shell_comes_before_the_whole_browser(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(browser.BROWSER_VARIABLE, raising=False)
    executable(tmp_path / "bin" / "chromium")
    shell = executable(tmp_path / "bin" / "chromium-headless-shell")
    assert find_chromium() == shell
    executable(tmp_path / "playwright" / "chromium-1255" / "chrome-linux64" / "chrome")
    folder = tmp_path / "playwright" / "chromium_headless_shell-1255" / "chrome-headless-shell-linux64"
    shell = executable(folder / "chrome-headless-shell")
    assert find_chromium() == shell


@pytest.mark.parametrize(
    ("system", "user", "commands"),
    [
        ("debian", 0, ["apt-get update", "apt-get install chromium-headless-shell", "playwright install chromium"]),
        ("debian", 1000, ["playwright install chromium"]),
        ("ubuntu", 0, ["playwright install --with-deps chromium"]),
        ("", 0, ["playwright install chromium"]),
    ],
)
def test_a_browser_is_installed_as_the_machine_allows(system, user, commands, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    if system:
        executable(tmp_path / "apt-get")
    monkeypatch.setattr(install, "_system", lambda: system)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found = [" ".join(command) for way in install.ways() for command in way]
    found = [command.replace(f"{sys.executable} -m ", "").replace(" -y", "").replace(" -qq", "") for command in found]
    assert found == commands


def test_where_one_way_to_a_browser_fails_the_next_is_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(browser.BROWSER_VARIABLE, raising=False)
    failing, chromium = "/bin/false", tmp_path / "bin" / "chromium"
    monkeypatch.setattr(install, "ways", lambda: [[["/bin/true"], [failing]], [[failing]]])
    install.main()
    assert f"no browser could be installed. For the web environments, run: /bin/true && {failing}" in (
        capsys.readouterr().out
    )
    copy = ["/bin/cp", executable(tmp_path / "given"), str(chromium)]
    chromium.parent.mkdir()
    monkeypatch.setattr(install, "ways", lambda: [[[failing]], [copy]])
    install.main()
    assert capsys.readouterr().out.endswith(f"the browser is {chromium}\n")


# Sharing it.


def test_the_first_window_starts_it_and_the_last_ends_it(open_window):
    first = open_window()
    process = main_process()
    second = open_window()
    assert main_process() == process
    first.close()
    second.goto("http://shop.test/next")
    assert second.url == "http://shop.test/next"
    second.close()
    second.close()
    assert not process.is_running() and not chromiums()
    assert not [thread for thread in threading.enumerate() if thread.name == "web-browser"]
    assert not [p for p in psutil.Process().children(recursive=True) if p.name().startswith("node")]


def test_a_window_that_is_forgotten_is_closed(open_window):
    keeper = open_window()
    window = WebPage(SITES)
    window.goto("http://forum.test/")
    del window
    gc.collect()
    assert keeper._browser.num_users == 1
    WebPage(SITES)
    keeper.close()
    gc.collect()
    assert not chromiums()


@pytest.mark.slow
def test_sixteen_windows_act_at_once_each_on_its_own_page_within_two_gigabytes(open_window):
    windows = [open_window() for _ in range(NUM_WINDOWS)]

    def play(number):
        window = windows[number]
        window.goto(f"http://shop.test/search?q={number}")
        for _ in range(2):
            window.goto("http://shop.test/")
            window.observe()
            window.click(next(node.id for node in window.nodes if node.name == "next"))
            window.go_back()
            window.observe()
            window.type(next(node.id for node in window.nodes if node.name == "Query"), f"{number}", presses_enter=True)
        return window.url, window.error

    with ThreadPoolExecutor(8) as pool:  # as the rollout loop steps environments
        urls = list(pool.map(play, range(NUM_WINDOWS)))
    assert urls == [(f"http://shop.test/search?q={i}&s=name&d=&t=", "") for i in range(NUM_WINDOWS)]
    used = process_tree_bytes(with_root=False)
    assert used < 2e9


# When it dies.


def test_a_browser_that_dies_fails_its_windows_and_the_next_one_has_a_new_one(open_window):
    window, other = open_window(), open_window()
    window.goto("http://shop.test/")
    process = main_process()
    process.kill()
    process.wait()
    for dead in (window, other):
        with pytest.raises(EnvError, match="browser"):
            dead.goto("http://shop.test/next")
        with pytest.raises(EnvError):
            dead.observe()
    fresh = open_window()
    fresh.goto("http://shop.test/next")
    assert fresh.url == "http://shop.test/next"
    for old in (window, other):
        old.close()
    fresh.goto("http://shop.test/")
    assert fresh.url == "http://shop.test/"  # the end of the old ones did not end it


def test_a_driver_that_dies_fails_its_windows_and_leaves_no_process(open_window):
    window = open_window()
    driver = next(p for p in psutil.Process().children() if "node" in p.name())
    left = chromiums()
    driver.kill()
    with pytest.raises(EnvError):
        window.goto("http://shop.test/next")
    psutil.wait_procs(left, timeout=60)
    assert not [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert open_window().error == ""


def test_a_page_that_crashes_fails_its_window_only(open_window):
    window, other = open_window(), open_window()
    window.goto("http://shop.test/")
    window._window.tab._timeout_s = 10.0
    window._browser.soon(window._window.tab._session.send("Page.crash"))
    with pytest.raises(EnvError, match="crashed"):
        for _ in range(100):
            window.press("Shift")
    with pytest.raises(EnvError, match="crashed"):
        window.observe()
    other.goto("http://shop.test/next")
    assert other.url == "http://shop.test/next"


def test_a_browser_that_does_not_answer_is_given_up(open_window, monkeypatch):
    window = open_window()
    process = main_process()
    monkeypatch.setattr(Browser.run, "__defaults__", (5.0,))
    process.suspend()
    with pytest.raises(EnvError, match="must answer within 5 s"):
        window.goto("http://shop.test/next")
    _, alive = psutil.wait_procs([process], timeout=10)  # the kernel may take a moment to end what was killed
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_program_that_ends_leaves_no_browser(needs_browser):
    script = """
        import os, psutil, sys
        from rllm_gym.envs.web.page import WebPage
        window = WebPage(["http://shop.test"])
        print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), 9)
    """
    for end in ("exit", "kill"):
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), end], capture_output=True, text=True, timeout=300
        )
        processes = [psutil.Process(int(pid)) for pid in result.stdout.split() if psutil.pid_exists(int(pid))]
        _, alive = psutil.wait_procs(processes, timeout=60)
        assert result.stdout and not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
        assert end == "kill" or (result.returncode == 0 and result.stderr == "")


def test_a_forked_child_has_a_browser_of_its_own(open_window):
    window = open_window()
    window.goto("http://shop.test/next")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = WebPage(SITES)
            with pytest.raises(EnvError):
                window.observe()
            code = 0 if mine.url == "about:blank" and not window.is_mine else 2
            mine.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert "You came." in window.observe()
