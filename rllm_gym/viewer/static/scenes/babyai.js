// BabyAI: the seven by seven cells that the agent sees, itself in the middle of the nearest row.
"use strict";

const VIEW = 7;
const CELL = 40;
const HUES = {
  red: "#e5484d",
  green: "#30a46c",
  blue: "#3e63dd",
  purple: "#8e4ec6",
  yellow: "#e2b203",
  grey: "#8b8d98",
};
const SEEN_THING =
  /There is a (\w+) (?:(open|closed|locked) )?(door|key|ball|box) (\d+) (?:right in front of you (\d+) steps away|(\d+) steps in front of you and (\d+) steps to your (left|right))/g;

function readView(text, before) {
  if (!/The room has walls around you/.test(text)) return before;
  const things = [...text.matchAll(SEEN_THING)].map(([, color, door, kind, number, straight, ahead, aside, side]) => ({
    color,
    door,
    kind,
    number: +number,
    ahead: +(straight ?? ahead),
    right: aside ? (side === "left" ? -aside : +aside) : 0,
  }));
  const barrier = /You are facing a (wall|box) (\d+) steps away/.exec(text);
  return {
    ...before,
    things,
    wall: barrier?.[1] === "wall" ? +barrier[2] : null,
    carries: /You are carrying a (.+?)\./.exec(text)?.[1] ?? "",
    end: /The task (is completed|has failed)/.exec(text)?.[1] ?? "",
  };
}

function readOffers(text) {
  const listed = /Available actions: (\[.*\])/.exec(text);
  try {
    return listed ? JSON.parse(listed[1]).map(String) : [];
  } catch {
    return [];
  }
}

scenes.push({
  title: "babyai",
  matches: /BabyAI/,
  begin(task) {
    const goal = /Your goal: (.*)/.exec(task)?.[1];
    return goal
      ? { ...readView(task, { goal, things: [], wall: null, carries: "", end: "" }), offers: readOffers(task) }
      : null;
  },
  step: (state, said, reply) => ({ ...readView(reply, state), offers: readOffers(reply) }),
  offers: (state) => state.offers,

  draw({ state, act }) {
    const size = VIEW * CELL;
    const place = ({ ahead, right }) => `translate(${(3 + right) * CELL} ${(VIEW - 1 - ahead) * CELL})`;
    const pick = (thing) =>
      act && act(`go to ${thing.color} ${thing.door ? `${thing.door} ` : ""}${thing.kind} ${thing.number}`);
    return html`
      <h2><${Shown} text=${state.goal} /></h2>
      <svg class="grid" viewBox=${`0 0 ${size} ${size}`} role="img" aria-label="What the agent sees">
        ${Array.from(
          { length: VIEW * VIEW },
          (_, k) => html`
          <rect class="cell" x=${(k % VIEW) * CELL} y=${Math.floor(k / VIEW) * CELL} width=${CELL} height=${CELL} />`,
        )}
        ${state.wall !== null ? html`<rect class="wall" x=${3 * CELL} y=${(VIEW - 1 - state.wall) * CELL} width=${CELL} height=${CELL} />` : ""}
        ${state.things.map(
          (thing) => html`<g transform=${place(thing)} class=${act ? "pick" : ""} onClick=${() => pick(thing)}>
          <title>${`${thing.color} ${thing.door ?? ""} ${thing.kind} ${thing.number}`}</title><${Thing} ...${thing} /></g>`,
        )}
        <path class="agent" d=${`M${3 * CELL + 20} ${6 * CELL + 6} l12 27 l-12 -7 l-12 7 z`} />
      </svg>
      <p class="hint">${state.carries ? html`carries a <b><${Shown} text=${state.carries} /></b>` : "carries nothing"}${state.end ? html`, the task <b>${state.end}</b>` : ""}</p>`;
  },
});

function Thing({ kind, color, door }) {
  const hue = HUES[color] || HUES.grey;
  if (kind === "ball") return html`<circle cx="20" cy="20" r="11" fill=${hue} />`;
  if (kind === "box")
    return html`<rect x="8" y="8" width="24" height="24" rx="2" fill="none" stroke=${hue} stroke-width="4" /><path d="M8 20h24" stroke=${hue} stroke-width="3" />`;
  if (kind === "key")
    return html`<circle cx="20" cy="13" r="6" fill="none" stroke=${hue} stroke-width="4" /><path d="M20 19v15M20 28h6M20 33h6" stroke=${hue} stroke-width="4" />`;
  if (door === "open")
    return html`<rect x="3" y="3" width="34" height="34" fill="none" stroke=${hue} stroke-width="4" /><rect x="3" y="3" width="8" height="34" fill=${hue} />`;
  return html`<rect x="3" y="3" width="34" height="34" rx="2" fill=${hue} fill-opacity=${door === "locked" ? 0.75 : 0.35} stroke=${hue} stroke-width="4" />
    ${door === "locked" ? html`<path d="M20 15v10" stroke="#fff" stroke-width="5" />` : html`<circle cx="30" cy="20" r="2.5" fill=${hue} />`}`;
}
