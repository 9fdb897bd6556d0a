// SciWorld: the room with what was seen in it last, its doors, what is carried, and the way through the house.
"use strict";

function readRoom(text) {
  const called = /This (?:room|outside location) is called the (.+?)\./.exec(text);
  if (!called) return null;
  const [inside, beside = ""] = text.slice(called.index).split("You also see:");
  const lines = (part) =>
    part
      .split("\n")
      .slice(1)
      .map((line) => line.trim())
      .filter(Boolean);
  return { name: called[1], things: lines(inside), doors: lines(beside) };
}

scenes.push({
  title: "sciworld",
  matches: /SciWorld/,
  begin(task) {
    const room = readRoom(task);
    return room && { room: room.name, seen: { [room.name]: room }, way: [room.name], carried: [], focus: "", score: 0 };
  },

  step(state, { command }, reply, turn) {
    const next = { ...state, score: state.score + (turn?.reward ?? 0) };
    const moved = /You move to the (.+?)\./.exec(reply);
    if (moved) Object.assign(next, { room: moved[1], way: [...state.way, moved[1]] });
    const room = readRoom(reply);
    if (room) Object.assign(next, { room: room.name, seen: { ...state.seen, [room.name]: room } });
    const taken = /You move the (.+?) to the inventory/.exec(reply);
    if (taken) next.carried = [...state.carried.filter((name) => name !== taken[1]), taken[1]];
    const put = /You move the (.+?) to the (?!inventory)(.+?)\./.exec(reply);
    if (put) next.carried = state.carried.filter((name) => name !== put[1]);
    if (/^In your inventory, you see:/m.test(reply))
      next.carried = reply
        .split("\n")
        .slice(1)
        .map((line) => line.trim())
        .filter(Boolean);
    const focus = /You focus on the (.+?)\./.exec(reply);
    if (focus) next.focus = focus[1];
    const door = /^open door to (?:the )?(.+)$/.exec(command);
    if (door && /now open/.test(reply) && next.seen[next.room]) {
      const here = next.seen[next.room];
      const doors = here.doors.map((line) =>
        line.includes(`to the ${door[1]} `) ? line.replace("that is closed", "that is open") : line,
      );
      next.seen = { ...next.seen, [next.room]: { ...here, doors } };
    }
    return next;
  },

  offers: (state) => [
    "look around",
    "inventory",
    ...(state.seen[state.room]?.doors ?? []).flatMap((line) => {
      const door = /door to the (.+?) \(that is (open|closed)\)/.exec(line);
      return door ? [door[2] === "open" ? `go to ${door[1]}` : `open door to ${door[1]}`] : [];
    }),
  ],

  draw({ state, act }) {
    const here = state.seen[state.room];
    const list = (lines) =>
      html`<ul class="things">${lines.map((line) => html`<li><${Shown} text=${line} /></li>`)}</ul>`;
    return html`
      <h2><${Shown} text=${state.room || "somewhere"} /> <small>score ${Math.round(100 * state.score)}</small></h2>
      <p class="hint way"><${Shown} text=${state.way.join(" \u2192 ")} /></p>
      ${
        here
          ? html`<h3>Seen here</h3>${list(here.things)}<h3>Doors</h3>
        <ul class="items">${here.doors.map((line) => {
          const door = /door to the (.+?) \(that is (open|closed)\)/.exec(line);
          if (!door) return html`<li><${Shown} text=${line} /></li>`;
          const text = door[2] === "open" ? `go to ${door[1]}` : `open door to ${door[1]}`;
          return html`<li class=${door[2]}>${
            act
              ? html`
            <button class="node" title=${text} onClick=${() => act(text)}><${Shown} text=${door[1]} /></button>`
              : html`<${Shown} text=${door[1]} />`
          } <span class="hint">${door[2]}</span></li>`;
        })}</ul>`
          : html`<p class="hint">not looked around here yet</p>`
      }
      <h3>Carried</h3><ul class="items">${state.carried.map(
        (name) => html`
        <li><${Shown} text=${name} /></li>`,
      )}${state.carried.length ? "" : html`<li class="hint">nothing</li>`}</ul>
      ${state.focus ? html`<p class="hint">focused on <b><${Shown} text=${state.focus} /></b></p>` : ""}`;
  },
});
