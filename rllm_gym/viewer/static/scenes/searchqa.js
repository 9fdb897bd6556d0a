// SearchQA: the question, the last search with its hits, and the answer.
"use strict";

const HIT = /Doc (\d+)\(Title: "(.*?)"\) ([\s\S]*?)(?=\nDoc \d+\(Title: "|$)/g;

scenes.push({
  title: "searchqa",
  matches: /SearchQA/,
  begin(task) {
    const question = /Question: (.*)/.exec(task)?.[1];
    return question ? { question, searches: [], answers: [] } : null;
  },
  step(state, { text }, reply) {
    const query = /<search>([\s\S]*?)<\/search>/.exec(text)?.[1];
    const found = /<information>([\s\S]*?)<\/information>/.exec(reply)?.[1];
    if (query !== undefined && found !== undefined) {
      const hits = [...found.matchAll(HIT)].map(([, , title, said]) => ({ title, said: said.trim() }));
      return { ...state, searches: [...state.searches, { query: query.trim(), hits }] };
    }
    const answer = [...text.matchAll(/<answer>([\s\S]*?)<\/answer>/g)].pop()?.[1];
    return answer === undefined
      ? state
      : { ...state, answers: [...state.answers, { answer: answer.trim(), verdict: reply.trim() }] };
  },
  offers: () => [
    "<think>I need to look this up.</think>\n<search></search>",
    "<think>I know the answer.</think>\n<answer></answer>",
  ],

  draw({ state }) {
    const last = state.searches[state.searches.length - 1];
    return html`
      <h2><${Shown} text=${state.question} /></h2>
      ${
        last
          ? html`<p class="query">\u2315 <${Shown} text=${last.query} /></p>
        ${last.hits.map(
          (hit) => html`
          <div class="hit"><b><${Shown} text=${hit.title} /></b><p><${Shown} text=${hit.said} mark=${state.answers[state.answers.length - 1]?.answer} /></p></div>`,
        )}
        ${last.hits.length ? "" : html`<p class="hint">no passage found</p>`}`
          : html`<p class="hint">nothing searched yet</p>`
      }
      ${
        state.searches.length > 1
          ? html`<h3>Earlier searches</h3><ul class="things">${state.searches.slice(0, -1).map(
              ({ query }) => html`
        <li><${Shown} text=${query} /></li>`,
            )}</ul>`
          : ""
      }
      ${state.answers.map(
        ({ answer, verdict }) => html`
        <p class=${/^Correct/.test(verdict) ? "verdict good" : "verdict bad"}><b><${Shown} text=${answer} /></b> <${Shown} text=${verdict} /></p>`,
      )}`;
  },
});
