// TextWorld: a map of the rooms that were entered, and what is carried.
"use strict";

const WAYS = { north: [0, -1], south: [0, 1], east: [1, 0], west: [-1, 0] };
const ROOM = { width: 110, height: 64 };

scenes.push({
  title: "textworld",
  matches: /TextWorld/,
  begin(task) {
    const room = /-= (.+?) =-/.exec(task)?.[1];
    return room ? { room, places: { [room]: [0, 0] }, links: [], carried: [] } : null;
  },

  step(state, { command }, reply) {
    const next = { ...state };
    const room = /-= (.+?) =-/.exec(reply)?.[1];
    const way = WAYS[/^go (north|south|east|west)/.exec(command)?.[1]];
    if (room && way && room !== state.room) {
      const [x, y] = state.places[state.room];
      if (!Object.hasOwn(state.places, room)) next.places = { ...state.places, [room]: [x + way[0], y + way[1]] };
      next.links = [...state.links, [state.room, room]];
    }
    if (room) next.room = room;
    const taken = /^(?:You (?:pick up|take) the (.+?)(?: from .*?)?|.*Taken.*?)[.(]/m.exec(reply);
    const item = taken?.[1] ?? (taken && /^take (.+?)(?: from .*)?$/.exec(command)?.[1]);
    if (item) next.carried = [...state.carried.filter((name) => name !== item), item];
    const left = /You (?:drop|put|insert|eat) the (.+?)(?: on the| into the| onto the|\.|$)/m.exec(reply);
    if (left) next.carried = state.carried.filter((name) => name !== left[1]);
    return next;
  },

  offers: () => ["look", "inventory", "go north", "go south", "go east", "go west"],

  draw({ state }) {
    const all = Object.entries(state.places);
    const [left, top] = [Math.min(...all.map(([, [x]]) => x)), Math.min(...all.map(([, [, y]]) => y))];
    const [right, bottom] = [Math.max(...all.map(([, [x]]) => x)), Math.max(...all.map(([, [, y]]) => y))];
    const at = (name) => [
      (state.places[name][0] - left) * ROOM.width + ROOM.width / 2,
      (state.places[name][1] - top) * ROOM.height + ROOM.height / 2,
    ];
    const size = [(right - left + 1) * ROOM.width, (bottom - top + 1) * ROOM.height];
    return html`
      <h2><${Shown} text=${state.room} /></h2>
      <svg class="map" viewBox=${`0 0 ${size[0]} ${size[1]}`} style=${{ maxWidth: `${size[0]}px` }} role="img" aria-label="Map">
        ${state.links.map(([a, b]) => html`<line x1=${at(a)[0]} y1=${at(a)[1]} x2=${at(b)[0]} y2=${at(b)[1]} />`)}
        ${all.map(
          ([
            name,
          ]) => html`<g transform=${`translate(${at(name)[0]} ${at(name)[1]})`} class=${name === state.room ? "here" : ""}>
          <rect x=${-ROOM.width / 2 + 6} y="-18" width=${ROOM.width - 12} height="36" rx="6" /><text text-anchor="middle" dy="5"><${Shown} text=${name} /></text></g>`,
        )}
      </svg>
      <h3>Carried</h3><ul class="items">${state.carried.map(
        (name) => html`
        <li><${Shown} text=${name} /></li>`,
      )}${state.carried.length ? "" : html`<li class="hint">nothing</li>`}</ul>`;
  },
});
