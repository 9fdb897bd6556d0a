"""WebArenaEnv: the environment of WebArena, on sites that this package serves or on the benchmark's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rllm_gym.envs.items import TextOptions
from rllm_gym.envs.web.env import INTRODUCTION, SYSTEM_PROMPT, Verdict, WebEnv
from rllm_gym.envs.webarena import tasks
from rllm_gym.envs.webarena.embedded import SITE_URLS, Expert, Sites
from rllm_gym.envs.webarena.evaluators import Outcome, is_solved
from rllm_gym.envs.webarena.functions import functions
from rllm_gym.envs.webarena.judge import DEFAULT_MODEL, load_judge
from rllm_gym.envs.webarena.verified import ANSWER_FORM, is_verified
from rllm_gym.errors import ConfigError, EnvError, nearest

if TYPE_CHECKING:
    from rllm_gym.envs.web.page import WebPage
    from rllm_gym.envs.webarena.request_log import RequestLog

_STOP_LINE = "- stop ["
WEBARENA_PROMPT = f'{SYSTEM_PROMPT}\nAnswer "N/A" if the objective cannot be reached.'
WEBARENA_INTRODUCTION = f'{INTRODUCTION}\nAnswer "N/A" if the objective cannot be reached.'
VERIFIED_PROMPT = SYSTEM_PROMPT[: SYSTEM_PROMPT.index(_STOP_LINE)] + ANSWER_FORM
_NO_EXPERT = "Thought: No expert knows this task.\nAction: stop []"


class WebArenaEnv(WebEnv):
    """Reach an objective on the web: find something out, go somewhere, or change something.

    Task:
        By default tasks on five embedded sites: a shop, a forum, collaborative development, content management and a
        map, served by this package, with a fresh copy for each episode. With `task_set` WebArena's 812 tasks, or those
        of WebArena-Verified, on the benchmark's sites, which the user sets up. A task begins at its start page, logged
        in where it says so, with a tab for each of several start pages.

    Observation:
        Text. "OBJECTIVE: " and the task's intent, verbatim; the accessibility tree of the tab in front, with lines like
        `[12] button 'OK'`; `URL: `, `TABS: `, and `ERROR: ` if something went wrong in the last action. A tree that
        does not fit `max_observation_tokens` is cut, visibly. The embedded sites are at http://shop.test,
        http://forum.test, http://code.test and http://shop-admin.test.

    Action:
        Text: `Thought: ...` and `Action: ...`; without "Action:" the whole text is the action; it may stand between
        triple backticks. `click [id]`, `type [id] [text] [0|1]`, `hover [id]`, `press [keys]`, `scroll [up|down]`,
        `new_tab`, `tab_focus [number]`, `close_tab`, `goto [url]`, `go_back`, `go_forward`, `stop [answer]`.

    Reward:
        1.0 for the `stop` of a solved task, 0.0 for everything else. A task is solved if all of its evaluators say so:
        the answer equals or includes a reference or means the same (string_match), the tab in front is at the right
        address (url_match), pages hold what they should (program_html). For "verified": the answer, and what the
        browser asked the sites for.

    Episode end:
        Terminated by `stop`, right or wrong (later actions are still answered, without effect); never truncated from
        inside.

    Info keys:
        `item_id` ("webarena_17"), `category` (the task's sites: "shopping", "shopping_admin", "reddit", "gitlab",
        "map", "wikipedia", or several in alphabetical order, as "gitlab_reddit"), `is_success` (a right `stop`),
        `is_invalid_action` (see `WebEnv`).

    Data:
        Embedded: written for this package; numbered from 0; no template of `train` occurs in `eval`.
        "webarena": WebArena (Zhou et al. 2023, arXiv:2307.13854; Apache-2.0), from the package webarena-verified.
        Items have WebArena's task ids, as in AgentGym-RL (arXiv:2509.08755), whose lists are the splits: 372 tasks in
        `train`, 50 in `eval`; `all` has all 812. "verified": the same tasks as WebArena-Verified words and evaluates
        them (Apache-2.0), with the same numbers and splits. Tasks that change a site change it for the episodes after
        them and beside them; docs/environments/webarena.md says how to reset the sites.

    Differs from AgentGym: the layout of the observation, which tells errors, too; the address of a site is shown as it
    is; a text without an action is a turn with an error; the judge's questions are worded anew; a page to be
    evaluated is waited for as long as its requests take, at most 3 s.

    Version history:
        v0: first version.

    Args:
        task_set: "embedded", "webarena" or "verified"; None is "webarena" where the address of a site is set as
            `WA_SHOPPING`, `WA_SHOPPING_ADMIN`, `WA_REDDIT`, `WA_GITLAB`, `WA_MAP` or `WA_WIKIPEDIA`, and "embedded"
            where none is. The published sets read the addresses from these variables, or from the same without `WA_`.
        sites: restricts draws to tasks of this site, or of these and no others.
        judge_url: OpenAI-compatible endpoint that compares answers by meaning, like "http://127.0.0.1:8000/v1", for
            "webarena"; None is `OPENAI_BASE_URL`, or else OpenAI's. Its key is read from `OPENAI_API_KEY`.
        judge_model: the endpoint's name of the model.
        fuzzy: False leaves out of the draws the tasks that need the judge.
        auth_folder: folder with the storage states that WebArena's auto_login.py saves, like "shopping_state.json", for
            published tasks; None logs in with the benchmark's accounts.
        max_observation_tokens: see `WebEnv`.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `WebEnv`; an unknown task set or site, a site without an address, a judge that is not set.
        EnvError: from `reset` and `step`: the browser, a site, a log-in or the judge failed.
    """

    name = "webarena"
    safe_options = ("task_set", "sites", "fuzzy", "max_observation_tokens")
    default_system_prompt = WEBARENA_PROMPT
    introduction = WEBARENA_INTRODUCTION

    def __init__(
        self,
        *,
        task_set: str | None = None,
        sites: str | Sequence[str] | None = None,
        judge_url: str | None = None,
        judge_model: str = DEFAULT_MODEL,
        fuzzy: bool = True,
        auth_folder: str | Path | None = None,
        max_observation_tokens: int = 2048,
        **items: Unpack[TextOptions],
    ) -> None:
        self.task_set = tasks.resolve_task_set(task_set)
        self.num_items = len(self._configs)
        self._site_names = _check_sites(sites, self._configs)
        self._urls = dict(SITE_URLS) if self.task_set == "embedded" else tasks.site_urls()
        self._judge_options = (judge_url, judge_model)
        self._fuzzy = fuzzy
        self._auth_folder = None if auth_folder is None else Path(auth_folder).expanduser()
        if self.task_set == "verified":
            self.default_system_prompt = VERIFIED_PROMPT
            self.introduction = f"{INTRODUCTION}\n{ANSWER_FORM}"
        self._config: tasks.Config = {}  # of the present item, with addresses
        self._sites: Sites | None = None
        self._requests: RequestLog | None = None
        super().__init__(max_observation_tokens=max_observation_tokens, **items)
        self._check(self._selection)

    @property
    def category(self) -> str:
        return tasks.category(self._configs[self.index])

    @property
    def instruction(self) -> str:
        return str(self._config["intent"])

    @property
    def _configs(self) -> tuple[tasks.Config, ...]:
        return tasks.load_configs(
            self.task_set
        )  # shared within the process, so that copies of an environment stay small

    def split_indices(self, split: str) -> list[int]:
        return [
            index
            for index in tasks.split_indices(self.task_set, split)
            if self._site_names.issuperset(self._configs[index]["sites"])
            and (self._fuzzy or not tasks.needs_judge(self._configs[index]))
        ]

    def expert_action(self) -> str:
        """Return the next action of the scripted expert; published tasks have none, and are given up."""
        if self.task_set != "embedded":
            return _NO_EXPERT
        expert = Expert(dict(self._configs[self.index]))
        expert.observe(self._as_is(self._first))
        for action, observation in self._history:
            expert.observe(self._as_is(observation), action)
        return expert.action()

    def _as_is(self, text: str) -> str:
        """Return a text with the addresses that the sites have, where a protocol shows others."""
        return text

    def close(self) -> None:
        super().close()
        if self._sites is not None:
            self._sites.close()
        self._sites = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_sites": None, "_requests": None}

    def _open(self, index: int) -> WebPage:
        self._check([index])
        self._config = tasks.render(self._configs[index], self._urls)
        old, self._page = self._page, self._window()  # in this order, or a browser without windows would end
        if old is not None:
            old.close()
        page = self._page
        self._requests = self._log(page) if self.task_set == "verified" else None
        starts = tasks.start_urls(self._config)
        for number, url in enumerate(starts):
            if number > 0:
                page.new_tab()
            page.goto(url)
            if page.error:
                page.goto(url)  # once more: a site that was just reset answers slowly
            if page.error:
                raise EnvError(f"WebArenaEnv: a task's start page must open; got {page.error} Check the site.")
        if len(starts) > 1:
            page.tab_focus(0)
        return page

    def _window(self) -> WebPage:
        """Return a window at no page yet, logged in, that reaches the task's sites."""
        from rllm_gym.envs.web.browser import Browser  # loads Playwright
        from rllm_gym.envs.web.page import WebPage

        names, logins = self._config["sites"], tasks.login_sites(self._config)
        if self.task_set == "embedded":
            self._sites = self._sites or Sites()
            self._sites.reset(names)
            state = self._sites.storage_state(logins)
            return WebPage([self._urls[name] for name in names], server=self._sites.server, storage_state=state)
        addresses = [self._urls[name] for name in names] + tasks.start_urls(self._config)
        if len(names) > 1 and "homepage" in self._urls:
            addresses.append(self._urls["homepage"])  # where an agent finds the way from one site to another
        browser = Browser.shared()  # one for the log-in and the window
        try:
            return WebPage(addresses, storage_state=self._storage_state(logins))
        finally:
            browser.release()

    def _log(self, page: WebPage) -> RequestLog:
        from rllm_gym.envs.webarena.request_log import RequestLog

        return RequestLog(page)

    def _storage_state(self, logins: Sequence[str]) -> Any:
        from rllm_gym.envs.webarena.login import storage_state

        if not logins:
            return None
        if self._auth_folder is None:
            return storage_state(logins, self._urls)
        path = self._auth_folder / f"{'.'.join(logins)}_state.json"
        if not path.is_file():
            raise ConfigError(
                f"WebArenaEnv: auth_folder must hold a storage state for each log-in; got no {path}. Make it with "
                "WebArena's auto_login.py, or leave auth_folder out."
            )
        return str(path)

    def _evaluate(self, answer: str | None) -> Verdict:
        if self._sites is not None:
            self._sites.check()
        if answer is None:
            return Verdict()
        if self.task_set == "verified":
            assert self._requests is not None  # `_open` made it
            solved = is_verified(self._config["task_id"], answer, self._requests.entries(), self._urls)
        else:
            judge = load_judge(*self._judge_options) if tasks.needs_judge(self._config) else None
            page = _Judged(self.page)
            solved = is_solved(Outcome(self._config, answer, page, judge, functions(self._urls)))
        return Verdict(float(solved), is_over=True, is_success=solved)

    def _check(self, indices: Sequence[int]) -> None:
        """Raise if tasks need a site or a judge that is not there."""
        configs = [self._configs[index] for index in indices]
        missing = sorted({site for config in configs for site in config["sites"]} - self._urls.keys())
        if missing:
            raise ConfigError(
                f"WebArenaEnv: the sites of the tasks must have addresses; got none of {', '.join(missing)}. Set "
                f"{', '.join(f'WA_{site.upper()}' for site in missing)}, or choose tasks with sites=."
            )
        num_fuzzy = sum(tasks.needs_judge(config) for config in configs)
        is_set = self._judge_options[0] or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY")
        if num_fuzzy and not is_set:
            raise ConfigError(
                f"WebArenaEnv: tasks whose answers are compared by meaning need a judge; got none for {num_fuzzy} of "
                f"{len(configs)} tasks. Set judge_url or OPENAI_API_KEY, or leave them out with fuzzy=False."
            )


class _Judged:
    """The tab in front, as the evaluators see it."""

    def __init__(self, page: WebPage) -> None:
        self._page = page

    @property
    def url(self) -> str:
        return self._page.url

    def evaluate(self, expression: str) -> Any:
        from rllm_gym.envs.web.page import PageError

        try:
            return self._page.evaluate(expression)
        except PageError:  # the agent has left it in a state in which it does not answer
            return None

    def elsewhere(self, url: str) -> _LookedUp:
        return _LookedUp(self._page, url)


class _LookedUp:
    """Another page, as the evaluators see it; opened anew for each question."""

    def __init__(self, page: WebPage, url: str) -> None:
        self._page = page
        self.url = url

    def evaluate(self, expression: str) -> Any:
        from rllm_gym.envs.web.page import PageError

        try:
            return self._page.look_up(self.url, _AT_REST.replace("EXPRESSION", expression))
        except PageError as e:
            raise EnvError(f"WebArenaEnv: a page that is evaluated must open; got {e}. Check the site.") from e

    def elsewhere(self, url: str) -> _LookedUp:
        return _LookedUp(self._page, url)


# Waits until what the page's scripts have asked for is there, at most 3 s, as long as WebArena always waits.
_AT_REST = """(async () => {
  const end = Date.now() + 3000;
  while (window.__pendingRequests > 0 && Date.now() < end) await new Promise((done) => setTimeout(done, 50));
  return EXPRESSION;
})()"""


def _check_sites(sites: str | Sequence[str] | None, configs: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    known = sorted({site for config in configs for site in config["sites"]})
    chosen = known if sites is None else [sites] if isinstance(sites, str) else list(sites)
    for site in chosen:
        if site not in known:
            raise ConfigError(
                f"WebArenaEnv: sites must be some of {', '.join(known)}; got {site!r}. "
                f"Did you mean {nearest(site, known)!r}?"
            )
    return frozenset(chosen)
