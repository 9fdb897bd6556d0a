"""The page in a real browser. `open_page` fails a test in which the browser has complained about anything."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from rllm_gym.data import TrajectoryWriter
from rllm_gym.viewer.episode_index import Index
from rllm_gym.viewer.one_file import export
from tests.viewer.helpers import group_of, play, write_hostile, write_run

expect = pytest.importorskip("playwright.sync_api").expect


def num_shown(page):
    return int(page.locator("#num-shown").inner_text().replace(",", ""))


def shown_rows(page):
    return page.locator("a.row").all_inner_texts()


def open_episode(page, address, **wanted):
    """Go to the first episode with these values in its row; returns its id."""
    state = json.loads(address.get("api/state"))
    rows = [dict(zip(state["columns"], values, strict=True)) for values in state["rows"]]
    id = next(row["id"] for row in rows if all(row[key] == value for key, value in wanted.items()))
    page.goto(f"{address}#/episode/{id}")
    page.locator(".episode h1").wait_for()
    return id


@pytest.mark.promise
def test_the_list_filters_by_every_field_and_the_filters_stand_in_the_address(address, open_page):
    page = open_page(address)
    page.locator("a.row").first.wait_for()
    assert num_shown(page) == 20
    page.select_option("select[name=kind]", "training")
    assert num_shown(page) == 12
    page.select_option("select[name=outcome]", "success")
    assert num_shown(page) == 6
    assert "100 % succeeded" in page.locator(".list .summary").inner_text()
    page.select_option("select[name=outcome]", "failure")
    page.fill("input[name=version_from]", "2")
    page.fill("input[name=version_to]", "2")
    assert num_shown(page) == 2
    page.reload()
    page.locator("a.row").first.wait_for()
    assert num_shown(page) == 2 and page.locator("select[name=outcome]").input_value() == "failure"
    page.get_by_role("button", name="clear").click()
    assert num_shown(page) == 20
    page.fill("input[name=return_from]", "0.5")
    assert num_shown(page) == 10
    page.fill("input[name=return_from]", "")
    page.select_option("select[name=run]", "after")
    assert num_shown(page) == 4
    for name, value, number in [("split", "eval", 4), ("category", "depth_2", 4), ("end", "terminated", 3)]:
        page.select_option(f"select[name={name}]", value)
        assert num_shown(page) == number, name


@pytest.mark.promise
def test_text_is_searched_in_what_was_said(address, open_page):
    page = open_page(address)
    page.locator("a.row").first.wait_for()
    page.keyboard.press("/")
    page.keyboard.type("GIVE up")
    expect(page.locator("#num-shown")).to_have_text("10")
    page.locator("a.row").first.click()
    assert page.locator(".exchange mark").first.inner_text() == "give up"


def test_columns_sort_and_the_keyboard_walks_the_list(address, open_page):
    page = open_page(address)
    page.locator("a.row").first.wait_for()
    page.get_by_role("button", name="Tokens").click()
    tokens = [int(t) for t in page.locator("a.row .c-tokens").all_inner_texts()]
    assert tokens == sorted(tokens, reverse=True)
    page.get_by_role("button", name="Tokens").click()
    assert [int(t) for t in page.locator("a.row .c-tokens").all_inner_texts()] == tokens[::-1]
    for key in ("j", "ArrowDown", "k", "Enter"):
        page.keyboard.press(key)
    page.locator(".episode").wait_for()
    page.keyboard.press("n")
    page.keyboard.press("Escape")
    page.locator("a.row").first.wait_for()
    assert "sort=tokens" in page.url


@pytest.mark.promise
def test_replay_goes_turn_by_turn_with_thought_action_reply_and_scene(address, open_page):
    page = open_page(address)
    open_episode(page, address, item="textcraft_17", success=True)
    assert page.locator(".exchange.current .thought").inner_text() == "I need 4 clay ball."
    assert page.locator(".exchange.current .action").inner_text() == "get 4 clay ball"
    assert page.locator(".exchange.current .said pre").inner_text() == "Got 4 clay ball"
    assert page.locator(".scene .items").inner_text() == "4 clay ball"
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**/2")
    assert page.locator(".exchange.current .action").inner_text().startswith("craft 1 clay using")
    assert "1 clay" in page.locator(".scene .items").inner_text()
    assert page.locator(".scene h2").inner_text().startswith("\u2713")
    assert page.locator(".exchange.current .reward").inner_text() == "+1"
    page.keyboard.press("ArrowRight")  # there is no third
    page.get_by_role("button", name="before turn 2").click()
    assert page.locator(".scene .items").inner_text() == "4 clay ball"
    page.reload()
    page.locator(".exchange.current").wait_for()
    assert page.url.endswith("/2") and page.locator(".bead.on").inner_text() == "2"
    page.keyboard.press("Home")
    page.wait_for_url("**/1")


def test_an_episode_is_made_once_for_all_its_turns(address, open_page):
    page = open_page(address)
    open_episode(page, address, item="textcraft_17", success=True)
    page.locator(".episode").evaluate("episode => (episode.dataset.seen = 'yes')")
    page.keyboard.press("ArrowRight")
    page.locator(".bead.on", has_text="2").wait_for()
    assert page.locator(".episode[data-seen]").count() == 1


def test_one_turn_that_cannot_be_drawn_does_not_hide_the_next(address, open_page):
    page = open_page(address, allowed=["no such turn"])
    id = open_episode(page, address, item="textcraft_17", success=True)
    broken = "given => { if (given.turn) throw Error('no such turn'); return draw(given); }"
    page.evaluate(f"{{ const draw = Strip; Strip = {broken}; }} null")
    page.keyboard.press("ArrowRight")
    page.get_by_text("This view cannot be drawn: Error: no such turn").wait_for()
    page.evaluate(f"go(['episode', '{id}', '1'])")
    page.locator(".bead.on", has_text="1").wait_for()


@pytest.mark.promise
def test_tokens_show_mask_log_probability_advantage_and_the_trainers_difference(address, open_page):
    page = open_page(address)
    id = open_episode(page, address, item="textcraft_17", success=True, step=2)
    record = json.loads(address.get(f"api/episodes/{id}"))["record"]
    page.keyboard.press("t")
    page.locator(".token").first.wait_for()
    assert page.locator(".token").count() == sum(len(turn["action_ids"]) for turn in record["turns"])
    text = page.locator(".stream .turn").first.locator("pre").text_content()
    assert text.startswith("<|im_start|>system") and text.endswith("get 4 clay ball<|im_end|>")
    assert page.locator(".masked").first.text_content().endswith("<|im_start|>assistant\n")
    page.locator(".token").nth(2).hover()
    pointed = page.locator(".pointed").inner_text()
    assert f"{round(record['turns'][0]['logp'][2], 4):g}"[:5] in pointed and "+1" in pointed

    def colours():
        return page.locator(".token").evaluate_all("ts => ts.map(t => t.style.backgroundColor)")

    by_logp = colours()
    assert len(set(by_logp)) > 3 and all("warm" in colour for colour in by_logp)
    page.get_by_role("radio", name="advantage").click()
    assert set(colours()) == {"color-mix(in srgb, var(--good) 70%, transparent)"}
    page.get_by_role("radio", name="mask").click()
    assert len(set(colours())) == 1
    page.get_by_role("radio", name="sampler - trainer").click()
    assert "sampler and trainer apart" in page.locator(".tokens .numbers").inner_text()
    assert not page.locator("#not-stored").count()
    open_episode(page, address, item="textcraft_17", success=True, step=1)
    page.keyboard.press("t")
    page.locator("#not-stored").wait_for()


@pytest.mark.promise
def test_the_group_stands_side_by_side_with_its_advantages(address, open_page):
    page = open_page(address)
    open_episode(page, address, item="textcraft_17", member=2, step=2)
    page.keyboard.press("g")
    page.locator(".member").nth(3).wait_for()
    assert page.locator(".member").count() == 4
    assert "mean return 0.5, 2 succeeded" in page.locator(".group .summary").inner_text()
    assert page.locator(".member.this .title").inner_text().strip() == "member 2"
    assert page.locator(".member dd.good").all_inner_texts() == ["+1", "+1"]
    assert page.locator(".member dd.bad").all_inner_texts() == ["-1", "-1"]
    page.locator(".member .title").first.click()
    page.locator(".exchange.current").wait_for()


def test_two_policies_are_compared_on_the_tasks_of_both(address, open_page):
    page = open_page(f"{address}#/compare")
    page.locator("#num-tasks").wait_for()
    assert page.locator("select[name=a]").input_value() == "before"
    summary = page.locator(".compare .summary").inner_text()
    assert summary.startswith("4 tasks") and "A 25 %" in summary and "B 75 %" in summary and "better on 2" in summary
    page.get_by_role("button", name="textcraft_141").click()
    page.locator(".side .exchange").nth(1).wait_for()
    assert page.locator(".side").nth(0).locator(".action").first.inner_text() == "give up"
    assert page.locator(".side").nth(1).locator(".action").first.inner_text().startswith("get")
    assert "task=" in page.url


def test_curves_mark_the_stages_of_the_horizon(address, open_page):
    page = open_page(f"{address}#/curves")
    page.locator(".chart canvas").first.wait_for()
    assert page.locator(".chart").evaluate_all("cs => cs.map(c => c.dataset.metric)") == [
        "env_runners/success_rate",
        "env_runners/episode_return_mean",
    ]
    assert page.evaluate(
        "stagesOf({steps: [1, 2, 3], metrics: {max_episode_steps: [2, 2, 6]}}).map(s => s.horizon)"
    ) == [2, 6]
    # Both shades are on the canvas.
    shades = page.locator(".chart canvas").first.evaluate(
        """canvas => new Set(canvas.getContext('2d').getImageData(0, canvas.height >> 1, canvas.width, 1).data
             .reduce((all, _, i, d) => (i % 4 ? all : [...all, [...d.slice(i, i + 4)].join()]), [])).size"""
    )
    assert shades > 3


@pytest.mark.promise
@pytest.mark.slow
def test_a_textcraft_task_is_played_to_success_in_the_hub(open_page, serve):
    address = serve([])
    page = open_page(f"{address}#/hub")
    page.get_by_role("link", name="TextCraft-v0").click()
    assert "1.0 for crafting the goal" in page.locator(".docstring").inner_text()
    page.fill("input[name=item]", "textcraft_17")
    page.fill("input[name=horizon]", "5")
    page.get_by_role("button", name="Begin").click()
    page.locator("textarea").wait_for()
    assert "clay ball" in page.locator(".said.user").first.inner_text()
    page.fill("textarea", "Thought: hm\nAction: fly")
    page.keyboard.press("Enter")
    page.get_by_text("Could not execute fly").wait_for()
    page.locator(".scene .node", has_text="clay ball").click()
    assert page.locator("textarea").input_value() == "get 4 clay ball"
    page.keyboard.press("Enter")
    page.locator(".scene .items", has_text="clay ball").wait_for()
    page.locator(".offers .chip", has_text="craft 1 clay").click()
    page.get_by_role("button", name="Act", exact=True).click()
    page.locator("#over").wait_for()
    assert page.locator("#over").inner_text().startswith("Solved")
    assert page.locator(".facts").inner_text().count("succeeded") == 1
    page.get_by_role("button", name="Another task").click()
    page.locator("button[name=expert]").click()
    page.locator(".exchange").wait_for()
    assert len(address.hub._sessions) == 1
    page.goto(f"{address}#/")
    has_ended(address)
    page.goto(f"{address}#/hub/rllm_gym%2FTextCraft-v0")
    page.get_by_role("button", name="Begin").click()
    page.locator("textarea").wait_for()
    page.reload()  # which leaves it, too
    has_ended(address)


def has_ended(address):
    until_s = time.monotonic() + 15
    while address.hub._sessions and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not address.hub._sessions


@pytest.mark.promise
def test_an_exported_page_opens_from_its_file_and_has_it_all(runs, open_page, tmp_path):
    index = Index(runs)
    index.refresh()
    file = tmp_path / "out.html"
    assert export(index, file, max_episodes=16) == (16, 20)
    page = open_page(file.as_uri())
    page.locator("a.row").first.wait_for()
    assert num_shown(page) == 16 and "(4 left out)" in page.locator(".news").inner_text()
    assert not page.get_by_role("link", name="Hub").count()
    page.fill("input[name=text]", "give up")
    expect(page.locator("#num-shown")).not_to_have_text("16")
    page.locator("a.row").first.click()
    page.locator(".exchange mark").first.wait_for()
    page.keyboard.press("t")
    page.locator(".token").first.wait_for()
    assert "<|im_end|>" in page.locator(".stream").text_content()
    page.keyboard.press("g")
    page.locator(".member").first.wait_for()
    page.keyboard.press("3")
    page.locator(".chart canvas").first.wait_for()
    page.keyboard.press("2")
    page.locator("#num-tasks").wait_for()
    id = page.evaluate("store.rows[0].id")
    for view, there in [
        ("curves", ".chart canvas"),
        (f"episode/{id}/1/tokens", ".token"),
        ("?text=give", "#num-shown"),
    ]:
        fresh = open_page(f"{file.as_uri()}#/{view}")  # a link to it, before anything has been read
        fresh.locator(there).first.wait_for()


@pytest.mark.promise
@pytest.mark.parametrize("kind", ["served", "exported"])
def test_a_hostile_trajectory_is_shown_and_nothing_of_it_runs(kind, open_page, tmp_path, serve):
    folder = write_hostile(tmp_path / "<img src=x onerror=alert(1)>")
    if kind == "exported":
        index = Index([folder])
        index.refresh()
        export(index, tmp_path / "out.html", max_episodes=10)
        check_hostile(open_page((tmp_path / "out.html").as_uri()))
    else:
        address = serve([folder])
        check_hostile(open_page(address))


def check_hostile(page):
    base = page.url.split("#")[0]
    page.locator("a.row").first.wait_for()
    ids = page.evaluate("store.rows.map(row => row.id)")
    before = page.evaluate("document.querySelectorAll('script').length")
    views = [
        "",
        "compare",
        "curves",
        *(f"episode/{id}/1{tab}" for id in ids for tab in ("", "/tokens", "/group", "/details")),
    ]
    for view in views:
        page.goto(f"{base}#/{view}")
        page.wait_for_timeout(150)
        assert "taken" not in page.title()
        assert (
            page.evaluate(
                "document.querySelectorAll('main script, main img, main iframe, main b > img, main svg[onload]').length"
            )
            == 0
        )
    assert page.evaluate("document.querySelectorAll('script').length") == before
    page.goto(f"{base}#/episode/{ids[0]}")
    page.locator(".exchange.current .action").wait_for()
    said = page.locator(".exchange.current .action").inner_text()
    assert "<script>document.title='taken'</script>" in said and "<!--<script>" in said
    # What cannot be seen is spelt out: overrides of direction, characters without width, control characters.
    for code in ("202E", "200B", "FEFF", "0000", "001B", "009B", "007F"):
        assert page.locator(f".exchange.current .unseen[title='U+{code}']").count(), code
    # Should a text become markup by a fault of ours, the policy stops it.
    stopped = page.evaluate(
        """() => { try { document.body.innerHTML = '<img src=x onerror="document.title=1">'; return ''; }
                   catch (error) { return error.name; } }"""
    )
    assert stopped == "TypeError"
    page.allowed = ["TrustedHTML", "trusted-types"]


def test_what_a_run_writes_while_it_is_looked_at_comes_by_itself(open_page, tmp_path, serve):
    run = tmp_path / "live"
    trial = write_run(run, num_steps=1)
    address = serve([run])
    with TrajectoryWriter(trial / "trajectories") as writer:
        page = open_page(address)
        page.locator("a.row").first.wait_for()
        assert num_shown(page) == 4
        writer.append(group_of(2))
        expect(page.locator("#num-shown")).to_have_text("8")


def test_on_a_phone_nothing_is_wider_than_the_screen(address, open_page):
    page = open_page(address, viewport={"width": 390, "height": 800}, is_mobile=True, has_touch=True)
    page.locator("a.row").first.wait_for()
    id = open_episode(page, address, item="textcraft_17", success=True)
    for view in (
        "",
        "compare",
        "curves",
        "hub",
        f"episode/{id}",
        f"episode/{id}/1/tokens",
        f"episode/{id}/1/group",
        f"episode/{id}/1/details",
    ):
        page.goto(f"{address}#/{view}")
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view


def test_light_and_dark_follow_the_system_and_the_button(address, open_page):
    page = open_page(address, color_scheme="dark")
    page.locator("a.row").first.wait_for()

    def wait_until(is_it):
        # Not wait_for_function, which evaluates a text in the page: its policy forbids that.
        red = "Number(getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/)[0])"
        deadline_s = time.monotonic() + 20
        while not is_it(page.evaluate(red)):
            assert time.monotonic() < deadline_s
            page.wait_for_timeout(50)

    wait_until(lambda red: red < 100)
    page.get_by_label("Light or dark").click()
    wait_until(lambda red: red > 200)
    page.reload()
    page.locator("a.row").first.wait_for()
    wait_until(lambda red: red > 200)


def test_an_episode_that_is_not_there_is_said(address, open_page):
    page = open_page(f"{address}#/episode/nothing", allowed=["404"])
    assert "no such episode" in page.locator(".problem").inner_text()


def test_an_episode_that_failed_shows_why(open_page, tmp_path, serve):
    record = play(3, solves=False).model_copy(
        update={"end_reason": "error", "error": "the browser died", "is_success": None}
    )
    with TrajectoryWriter(tmp_path / "x" / "trajectories") as writer:
        writer.append([record, record.model_copy(update={"turns": [], "messages": [], "episode_id": "none"})])
    address = serve([tmp_path / "x"])
    page = open_page(address)
    page.locator("a.row .dot.error").first.wait_for()
    page.locator("a.row").first.click()
    assert page.locator(".problem").inner_text() == "the browser died"
    for key in ("t", "g", "d", "n"):
        page.keyboard.press(key)
        page.wait_for_timeout(100)


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(runs, tmp_path):
    command = [sys.executable, "-m", "rllm_gym.cli.main", "rllm-gym", "view", str(runs[0]), "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    try:
        line = process.stdout.readline()
        place, url = re.findall(r"http://\S+", line)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", place) and url.startswith(f"{place}?token=")
        from http.cookiejar import CookieJar, DefaultCookiePolicy
        from urllib.request import HTTPCookieProcessor, build_opener

        jar = CookieJar(DefaultCookiePolicy())
        with build_opener(HTTPCookieProcessor(jar)).open(url) as response:
            assert b"rllm_gym" in response.read()
        assert list(tmp_path.glob("rllm_gym_*"))
    finally:
        process.send_signal(2)
        assert process.wait(30) == 0
    assert not list(tmp_path.glob("rllm_gym_*"))
