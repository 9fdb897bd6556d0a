"""SearchQA in AgentGym's protocol.

Source: Xi et al. 2024 (AgentGym), arXiv:2406.04151; github.com/WooooDyy/AgentGym at 3ef9235 (MIT),
agentenv/envs/searchqa.py and agentenv-searchqa.
"""

from __future__ import annotations

from rllm_gym.envs.agentgym import AgentGymProtocol
from rllm_gym.envs.base import StepResult
from rllm_gym.envs.searchqa.env import TURN_FORM, SearchQAEnv
from rllm_gym.envs.searchqa.protocol import elements
from rllm_gym.envs.searchqa.scoring import is_exact_match

INSTRUCTION = """\
You must always reason inside <think>...</think> first; if you lack knowledge, issue a <search>...</search> and \
then stop; do not generate <information> or <answer> yet; wait for external input between \
<information>...</information> before continuing; resume only when new <information> is given; do not skip steps\
 or anticipate answers early."""
QUESTION = """\
You must reason inside <think>...</think> first. If you do not have enough knowledge, issue a <search>...</search> and \
then STOP. Do not generate <information> or <answer> yet. Wait for external input wrapped in \
<information>...</information>. After receiving information, reason again in <think>. If confident, output your final \
answer in <answer>...</answer>. Do not output <answer> before receiving <information> unless you are fully confident. \
If you find no further external knowledge needed, you can directly provide the answer inside <answer> and </answer>, \
without detailed illustrations. For example, <answer> Beijing </answer>. Follow this process every time.

 Question: {question}"""
RIGHT = "Congratulations! You have answered the question correctly."
WRONG = "Sorry, your answer is incorrect. Please try again."
INVALID = """\
Your previous action is invalid. If you want to search, you should put the query between <search> and </search>. If \
you want to give the final answer, you should put the answer between <answer> and </answer>. Please try again."""


class AgentGymSearchQA(AgentGymProtocol, SearchQAEnv):
    """`SearchQAEnv` with AgentGym's words; its answer's reward is 1 or 0, at every answer, and no format is paid."""

    preamble = ((INSTRUCTION, "Ok."),)
    turn_form = TURN_FORM

    def reset_item(self, index: int) -> str:
        super().reset_item(index)
        return QUESTION.format(question=self._question.text.strip())

    def act(self, action: str) -> StepResult:
        search, answer = (next(elements(action, tag), None) for tag in ("search", "answer"))
        if search and (not answer or search.begin < answer.begin):
            query = search.content.strip()
            self._searched.append(query)
            found = self._search(query).removeprefix("<information>").removesuffix("</information>").strip()
            return StepResult(f"<information>{found}</information>", 0.0, is_over=False, is_invalid=False)
        if answer is None:
            return StepResult(INVALID, 0.0, is_over=False, is_invalid=True)
        last = list(elements(action, "answer"))[-1].content.strip()
        is_right = is_exact_match(last, self._question.answers)
        self.is_success = self.is_success or is_right
        return StepResult(RIGHT if is_right else WRONG, float(is_right), is_over=is_right, is_invalid=False)
