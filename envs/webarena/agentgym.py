"""WebArena in AgentGym's protocol.

Source: Xi et al. 2024 (AgentGym), arXiv:2406.04151; github.com/WooooDyy/AgentGym at 3ef9235 (MIT),
agentenv/envs/webarena.py and agentenv-webarena, whose template is p_cot_id_actree_2s.json of WebArena (Apache-2.0).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rllm_gym.envs.agentgym import AgentGymProtocol
from rllm_gym.envs.base import StepResult
from rllm_gym.envs.web.actions import Action
from rllm_gym.envs.webarena.env import WebArenaEnv

if TYPE_CHECKING:
    from rllm_gym.envs.web.page import WebPage

INSTRUCTION = """\
You are an autonomous intelligent agent tasked with navigating a web browser. You will be given web-based tasks.\
 These tasks will be accomplished through the use of specific actions you can issue.

Here's the information you'll have:
The user's objective: This is the task you're trying to complete.
The current web page's accessibility tree: This is a simplified representation of the webpage, providing key \
information.
The current web page's URL: This is the page you're currently navigating.
The open tabs: These are the tabs you have open.
The previous action: This is the action you just performed. It may be helpful to track your progress.

The actions you can perform fall into several categories:

Page Operation Actions:
```click [id]```: This action clicks on an element with a specific id on the webpage.
```type [id] [content] [0|1]```: Use this to type the content into the field with id. By default, the "Enter" \
key is pressed after typing unless the last parameter is set to 0.
```hover [id]```: Hover over an element with id.
`press [key_comb]`:  Simulates the pressing of a key combination on the keyboard (e.g., Ctrl+v).
```scroll [down|up]```: Scroll the page up or down to reveal content below or above the current view.

Tab Management Actions:
```new_tab```: Open a new, empty browser tab.
```tab_focus [tab_index]```: Switch the browser's focus to a specific tab using its index.
```close_tab```: Close the currently active tab.

URL Navigation Actions:
```goto [url]```: Navigate to a specific URL.
```go_back```: Navigate to the previously viewed page.
```go_forward```: Navigate to the next page (if a previous 'go_back' action was performed).

Completion Action:
```stop [answer]```: Issue this action when you believe the task is complete. If the objective is to find a \
text-based answer, provide the answer in the bracket. If you believe the task is impossible to complete, provide\
 the answer as "N/A" in the bracket.

Homepage:
If you want to visit other websites, check out the homepage at http://homepage.com. It has a list of websites \
you can visit.

To be successful, it is very important to follow the following rules:
1. You should only issue an action that is valid given the current observation
2. You should only issue one action at a time.
3. You should follow the examples to reason step by step and then issue the next action.
4.For ALL actions that take parameters, you MUST enclose each parameter in square brackets [].
5. Generate the action in the correct format. Start with a "Let's think step-by-step...In summary, the next \
action I will perform is" phrase, followed by action inside triple backticks (```). For example, "Let's think \
step-by-step. This page has a search box whose ID is [164]. According to the nominatim rule of openstreetmap, I \
can search for the restaurants near a location by "restaurants near". I can submit my typing by pressing the \
Enter afterwards. In summary, the next action I will perform is ```type [164] [restaurants near CMU] [1]```".
6. Issue stop action when you think you have achieved the objective. Don't generate anything after stop."""
NO_FENCE = """\
Cannot parse action from response. Your action should be inside triple backticks (```). Please adjust accordingly."""
SHOWN_AS = {
    "reddit": "http://reddit.com",
    "shopping": "http://onestopmarket.com",
    "shopping_admin": "http://luma.com/admin",
    "gitlab": "http://gitlab.com",
    "wikipedia": "http://wikipedia.org",
    "map": "http://openstreetmap.org",
    "homepage": "http://homepage.com",
}
MAX_COMMAND_CHARS = 8_000  # the time of its expressions grows with the square of the length
_FENCED = re.compile(r"```(.*?)```", re.DOTALL)
# WebArena's create_id_based_action(), browser_env/actions.py.
_FORMS = {
    "click": re.compile(r"click ?\[(?P<number>[0-9]+)\]"),
    "hover": re.compile(r"hover ?\[(?P<number>[0-9]+)\]"),
    "type": re.compile(r"type ?\[(?P<number>[0-9]+)\] ?\[(?P<text>.+)\] ?\[(?P<enter>[0-9]+)\]"),
    "press": re.compile(r"press ?\[(?P<text>.+)\]"),
    "scroll": re.compile(r"scroll ?\[?(?P<text>up|down)\]?"),
    "goto": re.compile(r"goto ?\[(?P<text>.+)\]"),
    "tab_focus": re.compile(r"tab_focus ?\[(?P<number>[0-9]+)\]"),
    "stop": re.compile(r"stop ?\[(?P<text>.+)\]|stop"),
    **{verb: re.compile(verb) for verb in ("new_tab", "close_tab", "go_back", "go_forward")},
}


def read_action(command: str) -> Action | str:
    """Return the action that WebArena reads in a command, or what it says where there is none."""
    command = command[:MAX_COMMAND_CHARS]
    verb = command.split("[")[0].strip() if "[" in command else "".join(command.split()[:1])
    if not command:
        return "list index out of range"
    if verb not in _FORMS:
        return f"Invalid action {command}"
    if verb == "type" and not command.endswith(("[0]", "[1]")):
        command += " [1]"
    match = _FORMS[verb].search(command)
    if match is None:
        return f"Invalid {verb} action {command}"
    found = match.groupdict(default="")
    return Action(verb, int(found.get("number") or -1), found.get("text", ""), found.get("enter") == "1")


class AgentGymWebArena(AgentGymProtocol, WebArenaEnv):
    """`WebArenaEnv` with WebArena's instruction and layout; of several actions between backticks the first is taken.

    The addresses of the sites are shown as those of well-known sites, and read as such. The tree is `WebEnv`'s.
    """

    preamble = ((INSTRUCTION, "Ok."),)
    turn_form = "{thought} In summary, the next action I will perform is ```{action}```"

    def _open(self, index: int) -> WebPage:
        self._previous = "None"
        return super()._open(index)

    def act(self, action: str) -> StepResult:
        fenced = _FENCED.search(action)
        parsed = NO_FENCE if fenced is None else read_action(self._as_is(fenced[1].strip()))
        if isinstance(parsed, str):
            return StepResult(parsed, 0.0, self._is_over, is_invalid=True)
        self._previous = self._told(parsed)
        verdict = self._carry_out(self.page, parsed)
        if not self._is_over:
            self._is_over, self.is_success = verdict.is_over, verdict.is_success
        observation = self._observe()
        self._history.append((action, observation))
        return StepResult(observation, verdict.reward, self._is_over, self.page.is_impossible)

    def _observe(self) -> str:
        page = self.page

        def frame() -> tuple[str, str]:
            current = page.current_tab
            titles = [
                f"Tab {k}{' (current)' if k == current else ''}: {title}" for k, (_, title) in enumerate(page.tabs)
            ]
            footer = (
                f"URL: {self._as_shown(page.url)}\nOBJECTIVE: {self.instruction}\nPREVIOUS ACTION: {self._previous}"
            )
            return f"OBSERVATION:\n{' | '.join(titles)}\n\n", f"\n{footer}"

        text = page.observe(max_tokens=self.max_observation_tokens, count_tokens=self._cost, frame=frame)
        self._nodes = tuple(page.nodes)
        return text

    def _told(self, action: Action) -> str:
        """Return the words of "PREVIOUS ACTION" for an action, on the page before it."""
        if action.verb in ("click", "hover", "type"):
            node = next((node for node in self._nodes if node.id == action.number), None)
            if node is None:
                return (
                    f'Attempt to perfom "{action.verb}" on element "[{action.number}]" but no matching element found. '
                    "Please check the observation more carefully."
                )
            text = action.text + " " * action.presses_enter
            typed = f" [{text}]" if action.verb == "type" else ""
            what = " ".join(node.line.split()[1:])
            return f"{action.verb} [{action.number}]{typed} where [{action.number}] is {what}"
        if action.verb == "tab_focus":
            return f"page_focus [{action.number}]"
        return f"{action.verb} [{action.text}]" if action.verb in ("press", "scroll", "goto", "stop") else action.verb

    def _as_shown(self, text: str) -> str:
        for site, url in self._urls.items():
            text = text.replace(url, SHOWN_AS.get(site, url))
        return text

    def _as_is(self, text: str) -> str:
        for site, url in self._urls.items():
            shown = SHOWN_AS.get(site, url)
            text = text.replace(shown, url).replace(shown.replace("http", "https"), url)
        return text
