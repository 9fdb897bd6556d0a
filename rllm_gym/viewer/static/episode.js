// One episode: turn by turn with its scene, as tokens, with its group, or all that is stored of it.
"use strict";

const TABS = ["replay", "tokens", "group", "details"];

function EpisodePage({ id, turn: turnText, tab = "replay" }) {
  const { version } = useStore();
  const row = store.row(id);
  const { value, error, isWaiting } = useAnswer(() => store.episode(id), id);
  const numTurns = row?.turns ?? 0;
  const turn = Math.max(0, Math.min(numTurns - 1, (Number(turnText) || 1) - 1));
  const open = (to, where = tab, options = { replaces: true }) =>
    go(["episode", id, String(to + 1), ...(where === "replay" ? [] : [where])], {}, options);
  const setTurn = (to) => open(Math.max(0, Math.min(numTurns - 1, to)));
  const list = store.listed.length ? store.listed : store.rows.filter((other) => !other.isHidden);
  const place = list.findIndex((other) => other.id === id);
  const walk = (by) => {
    const other = list[place + by];
    if (place >= 0 && other) go(["episode", other.id, "1", ...(tab === "replay" ? [] : [tab])]);
  };
  useKeys({
    ArrowRight: () => setTurn(turn + 1),
    ArrowLeft: () => setTurn(turn - 1),
    Home: () => setTurn(0),
    End: () => setTurn(numTurns - 1),
    n: () => walk(1),
    p: () => walk(-1),
    Escape: () => go([], readListQuery()),
    r: () => open(turn, "replay"),
    t: () => open(turn, "tokens"),
    g: () => open(turn, "group"),
    d: () => open(turn, "details"),
  });
  if (error) return html`<${Problem} text=${error} />`;
  if (!row && store.isComplete && !isWaiting && !value)
    return html`<${Problem} text="There is no such episode here." />`;
  if (!row || !value || value.id !== id) return html`<p class="busy">loading</p>`;
  const { record } = value;
  const agents = store.agentsOf(row);
  return html`
    <article class="episode">
      <header>
        <nav class="walk">
          <button onClick=${() => go([], readListQuery())} title="Escape">\u2190 list</button>
          <button onClick=${() => walk(-1)} disabled=${place <= 0} title="p">\u2039 previous</button>
          <button onClick=${() => walk(1)} disabled=${place < 0 || place >= list.length - 1} title="n">next \u203a</button>
        </nav>
        <h1><span class=${`dot ${row.outcome}`}></span> <${Shown} text=${row.item || `seed ${row.seed}`} /> <small><${Shown} text=${shortEnv(row.env)} /></small></h1>
        <${Facts} facts=${factsOf(row)} outcome=${row.outcome} />
        ${
          agents.length > 1
            ? html`<p class="agents">Agents: ${agents.map(
                (other) => html`
          <a class=${other.id === id ? "chip on" : "chip"} href=${addressOf(["episode", other.id])}><${Shown} text=${other.agent} /></a>`,
              )}</p>`
            : ""
        }
        <div class="tabs" role="tablist">
          ${TABS.map(
            (name) => html`
            <button role="tab" aria-selected=${name === tab} class=${name === tab ? "on" : ""} title=${name[0]} onClick=${() => open(turn, name)}>${name}${name === "group" ? ` (${store.groupOf(row).length})` : ""}</button>`,
          )}
        </div>
      </header>
      <${Problem} text=${record.error} />
      ${tab === "replay" ? html`<${Replay} record=${record} turn=${turn} setTurn=${setTurn} mark=${readListQuery().text} />` : ""}
      ${
        tab === "tokens"
          ? html`
        <${Tokens} record=${record} texts=${value.texts} problem=${value.textsProblem} turn=${turn} setTurn=${setTurn} />`
          : ""
      }
      ${tab === "group" ? html`<${Group} row=${row} />` : ""}
      ${tab === "details" ? html`<${Details} record=${record} row=${row} />` : ""}
    </article>`;
}

let lastListQuery = {};
const readListQuery = () => lastListQuery;

const factsOf = (row) => ({
  outcome: OUTCOMES[row.outcome],
  return: decimal(row.total),
  turns: row.horizon ? `${row.turns} of ${row.horizon}` : row.turns,
  tokens: count(row.tokens),
  "ended by": row.end.replace("_", " "),
  category: row.category,
  split: row.split,
  "played for": row.evaluation ? "evaluation" : "training",
  step: row.step,
  "policy version": row.version < 0 ? null : row.version,
  invalid: row.invalid || null,
  seed: row.seed,
  run: row.runLabel,
});

function Facts({ facts, outcome }) {
  return html`<dl class="facts">${Object.entries(facts)
    .filter(([, value]) => value != null && value !== "")
    .map(
      ([name, value]) => html`
    <div class=${name === "outcome" ? `f-${outcome}` : ""}><dt>${name}</dt><dd><${Shown} text=${value} /></dd></div>`,
    )}</dl>`;
}

// A conversation turn by turn beside the scene after the present turn.
function Replay({ record, turn, setTurn, mark }) {
  const { opening, turns } = useMemo(() => turnsOf(record), [record, record.messages.length]);
  const states = useMemo(() => sceneStates(record, opening, turns), [record, record.messages.length]);
  const current = useRef(null);
  const isOpened = useRef(false);
  useEffect(() => {
    // An episode opens at its head; a link to a turn opens there.
    if (!isOpened.current && turn === 0) return void (isOpened.current = true);
    isOpened.current = true;
    current.current?.scrollIntoView({
      block: "nearest",
      behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
    });
  }, [turn, record]);
  return html`
    <div class="replay">
      <${Strip} record=${record} turn=${turn} setTurn=${setTurn} />
      <div class=${states ? "stage" : "stage alone"}>
        <div class="talk">
          ${opening.map((message) => html`<${Said} message=${message} mark=${mark} isTask=${true} />`)}
          ${turns.map(
            (said, t) => html`
            <div key=${t} class=${`exchange ${t === turn ? "current" : ""}`} ref=${t === turn ? current : null} onClick=${() => setTurn(t)}>
              ${
                isRewritten(record, t)
                  ? html`
                <p class="seam">The history was rewritten here: the agent reads a new prompt of ${count(record.turns[t].observation_ids.length)} tokens.</p>`
                  : ""
              }
              <${Acted} said=${said} number=${t + 1} turn=${record.turns[t]} mark=${mark} />
              ${said.replies.map((message) => html`<${Said} message=${message} mark=${mark} />`)}
            </div>`,
          )}
        </div>
        ${
          states
            ? html`<aside class="scene" aria-label="Scene">
          <${SceneView} states=${states} turn=${turn} said=${turns[turn]} />
        </aside>`
            : ""
        }
      </div>
    </div>`;
}

// Whether a turn begins a new context, and with it a new training sample.
// Older records call it `sample`.
const contextIndex = (record, t) => record.turns[t]?.context_index ?? record.turns[t]?.sample ?? 0;
const isRewritten = (record, t) => t > 0 && contextIndex(record, t) > contextIndex(record, t - 1);

function Strip({ record, turn, setTurn }) {
  return html`
    <div class="strip" role="toolbar" aria-label="Turns">
      <button onClick=${() => setTurn(turn - 1)} disabled=${turn <= 0} aria-label="Previous turn">\u2190</button>
      <div class="beads">
        ${record.turns.map(
          (one, t) => html`
          <button key=${t} class=${`bead ${t === turn ? "on" : ""} ${one.reward > 0 ? "good" : one.reward < 0 ? "bad" : ""} ${one.is_invalid_action ? "invalid" : ""} ${(one.kind ?? "action") === "action" ? "" : "thinking"}`}
            aria-current=${t === turn ? "step" : undefined} onClick=${() => setTurn(t)}
            title=${`turn ${t + 1}${one.kind && one.kind !== "action" ? `, ${one.kind}` : ""}, reward ${decimal(one.reward)}${one.is_invalid_action ? ", invalid action" : ""}`}>${t + 1}</button>`,
        )}
      </div>
      <button onClick=${() => setTurn(turn + 1)} disabled=${turn >= record.turns.length - 1} aria-label="Next turn">\u2192</button>
      <span class="hint">${record.turns.length ? `turn ${turn + 1} of ${record.turns.length}` : "no turn yet"}</span>
    </div>`;
}

function Acted({ said: { text, ...said }, number, turn, mark }) {
  const isAction = (turn?.kind ?? "action") === "action";
  const { thought, action } = isAction ? said : { thought: text, action: "" }; // a plan is words alone
  return html`
    <div class="acted">
      <div class="who"><span class="name">agent</span> <span class="number">${number}</span>
        ${isAction ? "" : html`<span class="tag kind">${turn.kind}</span>`}
        ${turn?.attempt > 1 ? html`<span class="tag">attempt ${turn.attempt}</span>` : ""}
        ${turn && turn.reward !== 0 ? html`<span class=${`reward ${turn.reward > 0 ? "good" : "bad"}`}>${signed(turn.reward)}</span>` : ""}
        ${turn?.is_invalid_action ? html`<span class="tag invalid">invalid action</span>` : ""}
        ${turn ? html`<span class="hint">${turn.action_ids.length} tokens</span>` : ""}
        ${Object.entries(turn?.rewards ?? {}).map(
          ([name, value]) => html`
          <span class="hint"><${Shown} text=${name} /> ${decimal(value)}</span>`,
        )}</div>
      ${thought ? html`<p class="thought"><${Shown} text=${thought} mark=${mark} /></p>` : ""}
      ${action ? html`<pre class="action"><${Shown} text=${action} mark=${mark} /></pre>` : thought ? "" : html`<p class="hint">(said nothing)</p>`}
    </div>`;
}

const LONG_TEXT = 1600;

function Said({ message, mark, isTask }) {
  const text = String(message.content ?? "");
  const [isOpen, setOpen] = useState(message.role !== "system");
  const [isWhole, setWhole] = useState(text.length <= LONG_TEXT || Boolean(mark));
  const name = message.role === "user" ? (isTask ? "task" : "environment") : message.role;
  return html`
    <div class=${`said ${message.role}`}>
      <div class="who"><span class="name">${name}</span>
        ${
          message.role === "system"
            ? html`
          <button class="link" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${isOpen ? "fold" : "show"}</button>`
            : ""
        }</div>
      ${isOpen ? html`<pre><${Shown} text=${isWhole ? text : text.slice(0, LONG_TEXT)} mark=${mark} /></pre>` : ""}
      ${
        isOpen && !isWhole
          ? html`<button class="link" onClick=${(event) => {
              event.stopPropagation();
              setWhole(true);
            }}>${count(text.length - LONG_TEXT)} more characters</button>`
          : ""
      }
    </div>`;
}

function Details({ record, row }) {
  const { turns, messages, final_observation_ids: rest, ...fields } = record;
  return html`
    <section class="details">
      <h2>Turns</h2>
      <div class="scroll"><table>
        <thead><tr>${["turn", "read", "sampled", "mean log-prob", "reward", "version", "advantage", "env step", ""].map(
          (name) => html`
          <th>${name}</th>`,
        )}</tr></thead>
        <tbody>${turns.map(
          (turn, t) => html`<tr>
          <td><a href=${addressOf(["episode", row.id, String(t + 1)])}>${t + 1}</a></td><td>${count(turn.observation_ids.length)}</td><td>${count(turn.action_ids.length)}</td>
          <td>${decimal(mean(turn.logp))}</td><td>${decimal(turn.reward)}</td><td>${turn.policy_version}</td>
          <td>${turn.advantage ? signed(mean(turn.advantage)) : "-"}</td><td>${turn.env_step}</td><td>${turn.is_invalid_action ? "invalid" : ""}</td></tr>`,
        )}</tbody>
      </table></div>
      <h2>Record</h2>
      <div class="scroll"><table>${Object.entries(fields).map(
        ([name, value]) => html`
        <tr><th><${Shown} text=${name} /></th><td><${Shown} text=${typeof value === "string" ? value : JSON.stringify(value)} /></td></tr>`,
      )}</table></div>
    </section>`;
}
