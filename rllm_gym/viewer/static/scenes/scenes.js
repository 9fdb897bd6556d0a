// Scenes: pictures of an environment's state, drawn from the texts of a record alone, so that they work in replay.
//
// A scene is an object: `matches` (an environment's id), `begin(task)` gives the state in which an episode begins, or null
// where the text is of another form, `step(state, said, reply, turn)` the one after a turn, and `draw({state, said, act})`
// shows it. `act(text)`, in the hub, offers an action; `offers(state)` lists some. A state is never changed, for every turn
// keeps its own.
"use strict";

const scenes = [];

const sceneOf = (record) => scenes.find(({ matches }) => matches.test(record.env_id));

// Return the states before the first turn, after it, and so on; null where nothing can be drawn.
function sceneStates(record, opening, turns) {
  const scene = sceneOf(record);
  const task = opening
    .filter(({ role }) => role === "user")
    .map(({ content }) => String(content))
    .join("\n");
  if (!scene || !task) return null;
  try {
    const states = [scene.begin(task)];
    if (!states[0]) return null;
    turns.forEach((said, k) => {
      const reply = said.replies.map(({ content }) => String(content)).join("\n");
      const [turn, next] = [record.turns[k], record.turns[k + 1]];
      if (next?.attempt > (turn?.attempt ?? 1))
        states.push(scene.begin(reply) ?? scene.begin(task)); // the task begins again
      else if ((turn?.kind ?? "action") !== "action")
        states.push(states[k]); // a plan does nothing
      else states.push(scene.step(states[k], said, reply, turn));
    });
    return { scene, states };
  } catch (error) {
    console.warn(`scene of ${record.env_id}: ${error}`); // a text of another form than this scene knows
    return null;
  }
}

function SceneView({ states: { scene, states }, turn, said, act }) {
  const isBegin = states.length < 2;
  const [when, setWhen] = useStored(`scene-${scene.title}`, scene.when || "after");
  const shown = isBegin || act ? states[states.length - 1] : states[when === "after" ? turn + 1 : turn];
  if (!shown) return null;
  return html`
    <div class=${`scene-of ${scene.title}`}>
      ${
        isBegin || act
          ? ""
          : html`<div class="segments">${["before", "after"].map(
              (name) => html`
        <button class=${name === when ? "on" : ""} aria-pressed=${name === when} onClick=${() => setWhen(name)}>${name} turn ${turn + 1}</button>`,
            )}</div>`
      }
      <${Guard} key=${`${turn}${when}`} what="The scene"><${scene.draw} state=${shown} said=${when === "before" ? said : null} act=${act} /><//>
    </div>`;
}
