// The hub: choose an environment, read its page, and act in it by hand, or let its expert or a model act.
"use strict";

const EMPTY_FORM = { split: "", item: "", seed: "0", horizon: "", config: "", policy: "" };

function HubPage({ env }) {
  const { value: offers, error } = useAnswer(() => getJson("api/hub"), "hub");
  const [session, setSession] = useState(null); // {id, record, form}
  if (!store.isLive)
    return html`<p class="empty">A file has no hub: it needs the server, <code>rllm-gym view</code>.</p>`;
  if (error) return html`<${Problem} text=${error} />`;
  if (!offers) return html`<p class="busy">loading</p>`;
  const chosen = offers.environments.find(({ id }) => id === env);
  return html`
    <section class="hub">
      <nav class="environments" aria-label="Environments">
        ${offers.environments.map(
          ({ id, summary }) => html`
          <a key=${id} class=${id === env ? "on" : ""} href=${addressOf(["hub", id])}><b><${Shown} text=${shortEnv(id)} /></b><small><${Shown} text=${summary} /></small></a>`,
        )}
      </nav>
      ${
        chosen
          ? html`
            <${Hub} key=${env} environment=${chosen} policies=${offers.policies} session=${session?.record.env_id === env ? session : null} setSession=${setSession} />`
          : html`<p class="empty">Choose an environment.</p>`
      }
    </section>`;
}

function Hub({ environment, policies, session, setSession }) {
  const [form, setForm] = useState(session?.form ?? EMPTY_FORM);
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const live = useRef(session?.id);
  live.current = session?.id;
  // Leaving the page ends the session; the server ends idle ones in any case.
  useEffect(() => {
    const close = () =>
      live.current &&
      postJson(`api/hub/sessions/${live.current}`, { do: "close" }, { keepalive: true }).catch(() => {});
    window.addEventListener("pagehide", close);
    return () => {
      window.removeEventListener("pagehide", close);
      close();
    };
  }, []);

  const attempt = async (action) => {
    setBusy(true);
    setProblem("");
    try {
      await action();
    } catch (error) {
      setProblem(error.message);
      if (/ended|died/.test(error.message)) setSession(null);
    } finally {
      setBusy(false);
    }
  };
  const begin = (changes = {}) =>
    attempt(async () => {
      const wanted = { ...form, ...changes };
      setForm(wanted);
      if (session) await postJson(`api/hub/sessions/${session.id}`, { do: "close" });
      setSession(null);
      let config;
      try {
        config = wanted.config.trim() ? JSON.parse(wanted.config) : {};
      } catch (error) {
        throw new Error(`env_config must be JSON: ${error.message}`);
      }
      const opened = await postJson("api/hub/sessions", {
        env: environment.id,
        env_config: config,
        split: wanted.split.trim(),
        item_id: wanted.item.trim() || null,
        seed: wanted.seed === "" ? 0 : Number(wanted.seed),
        horizon: wanted.horizon === "" ? null : Number(wanted.horizon),
        policy: wanted.policy,
      });
      setSession({ id: opened.session, record: opened.record, form: wanted });
    });
  const act = (what) =>
    attempt(async () => {
      const { record } = await postJson(`api/hub/sessions/${session.id}`, what);
      setSession({ ...session, record });
    });
  const field = (name, title, options = {}) =>
    html`<label>${title}<input name=${name} value=${form[name]} ...${options} onInput=${(event) => setForm({ ...form, [name]: event.target.value })} /></label>`;
  return html`
    <div class="play">
      <details class="doc" open=${!session}><summary><h1><${Shown} text=${shortEnv(environment.id)} /></h1> <${Shown} text=${environment.summary} /></summary><${Docstring} text=${environment.doc} /></details>
      <form class="filters" onSubmit=${(event) => {
        event.preventDefault();
        begin();
      }}>
        ${field("split", "Split", { list: "splits", placeholder: "train", size: 7 })}
        <datalist id="splits"><option value="train" /><option value="eval" /><option value="all" /></datalist>
        ${field("item", "Item", { placeholder: "any", size: 14 })}
        ${field("seed", "Seed", { type: "number", min: 0 })}
        ${field("horizon", "Horizon", { type: "number", min: 1, placeholder: "none" })}
        ${field("config", "env_config", { placeholder: "{}", size: 16, class: "mono" })}
        ${
          policies.length
            ? html`<label>Model<select name="policy" onChange=${(event) => setForm({ ...form, policy: event.target.value })}>
          <option value="">none</option>${policies.map(
            (name) => html`
            <option value=${name} selected=${name === form.policy}><${Shown} text=${name} /></option>`,
          )}</select></label>`
            : ""
        }
        <button class="main" disabled=${isBusy}>${session ? "Begin anew" : "Begin"}</button>
        ${
          session
            ? html`
          <button type="button" disabled=${isBusy} onClick=${() => begin({ item: "", seed: String(Number(form.seed || 0) + 1) })}>Another task</button>`
            : ""
        }
      </form>
      <${Problem} text=${problem} />
      ${isBusy && !session ? html`<p class="busy">the environment begins</p>` : ""}
      ${
        session
          ? html`
        <${Game} session=${session} isBusy=${isBusy} act=${act} hasModel=${Boolean(session.form.policy)} hasPicture=${environment.drawsPictures} />`
          : ""
      }
    </div>`;
}

function Game({ session: { id, record }, isBusy, act, hasModel, hasPicture }) {
  const [text, setText] = useState("");
  const [turn, setTurn] = useState(0);
  const [temperature, setTemperature] = useState("1");
  const box = useRef(null);
  const isOver = Boolean(record.end_reason);
  useEffect(() => {
    setTurn(Math.max(0, record.turns.length - 1));
    setText("");
  }, [record]);
  const { opening, turns } = turnsOf(record);
  const states = sceneStates(record, opening, turns);
  const last = states?.states[states.states.length - 1];
  const offers = last ? states.scene.offers(last) : [];
  const offer = (said) => {
    setText(said);
    box.current?.focus();
  };
  const send = () => text.trim() && !isBusy && act({ do: "act", text });
  return html`
    <div class="game">
      <${Facts} facts=${factsOfGame(record)} outcome=${outcomeOfGame(record)} />
      <${Problem} text=${record.error} />
      <${HubReplay} record=${record} turn=${turn} setTurn=${setTurn} states=${states} act=${isOver ? null : offer} picture=${hasPicture ? `api/hub/sessions/${id}/picture?turn=${record.turns.length}&seed=${record.seed}` : ""}>
        ${
          isOver
            ? html`
              <p class=${`over ${outcomeOfGame(record)}`} id="over">${record.is_success ? "Solved" : "Over"}: ${record.end_reason.replace("_", " ")}</p>`
            : html`
          <div class="compose">
            <textarea ref=${box} name="action" rows="2" placeholder="Your action (Enter sends, Shift+Enter is a new line)" value=${text} disabled=${isBusy}
              onInput=${(event) => setText(event.target.value)}
              onKeyDown=${(event) => {
                if (event.key === "Enter" && !event.shiftKey) {
                  event.preventDefault();
                  send();
                }
              }}></textarea>
            <div class="buttons">
              <button class="main" onClick=${send} disabled=${isBusy || !text.trim()}>Act</button>
              <button name="expert" onClick=${() => act({ do: "expert" })} disabled=${isBusy}>Expert acts</button>
              ${
                hasModel
                  ? html`
                    <button name="model" onClick=${() => act({ do: "model", temperature: Number(temperature) || 0 })} disabled=${isBusy}>Model acts</button>
                <label>temperature <input size="4" inputmode="decimal" value=${temperature} onInput=${(event) => setTemperature(event.target.value)} /></label>`
                  : ""
              }
              ${isBusy ? html`<span class="busy">waiting</span>` : ""}
            </div>
            ${
              offers.length
                ? html`<div class="offers">${offers.slice(0, 40).map(
                    (said) => html`
              <button class="chip" onClick=${() => offer(said)}><${Shown} text=${said} /></button>`,
                  )}</div>`
                : ""
            }
          </div>`
        }
      <//>
    </div>`;
}

const outcomeOfGame = ({ end_reason: end, is_success: isSuccess }) =>
  end === "error" ? "error" : !end ? "none" : isSuccess ? "success" : "failure";

const factsOfGame = ({ turns, ...record }) => ({
  outcome: record.end_reason ? OUTCOMES[outcomeOfGame(record)] : "open",
  task: record.item_id,
  return: decimal(turns.reduce((sum, turn) => sum + turn.reward, 0)),
  turns: record.max_episode_steps ? `${turns.length} of ${record.max_episode_steps}` : turns.length,
  tokens: count(turns.reduce((sum, turn) => sum + turn.action_ids.length, 0)),
  "ended by": record.end_reason.replace("_", " "),
  category: record.category,
  split: record.split,
  invalid: turns.filter((turn) => turn.is_invalid_action).length || null,
  seed: record.seed,
});

// As `Replay`, but the scene is that of now, and what is in it can be chosen.
function HubReplay({ record, turn, setTurn, states, act, picture, children }) {
  const { opening, turns } = turnsOf(record);
  const end = useRef(null);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [record]);
  return html`
    <div class="replay">
      <${Strip} record=${record} turn=${turn} setTurn=${(to) => setTurn(Math.max(0, Math.min(record.turns.length - 1, to)))} />
      <div class=${states || picture ? "stage" : "stage alone"}>
        <div class="talk">
          ${opening.map((message) => html`<${Said} message=${message} isTask=${true} />`)}
          ${turns.map(
            (
              said,
              t,
            ) => html`<div key=${t} class=${`exchange ${t === turn ? "current" : ""}`} onClick=${() => setTurn(t)}>
            ${
              isRewritten(record, t)
                ? html`
              <p class="seam">The history was rewritten here.</p>`
                : ""
            }<${Acted} said=${said} number=${t + 1} turn=${record.turns[t]} />${said.replies.map(
              (message) => html`
              <${Said} message=${message} />`,
            )}</div>`,
          )}
          ${children}
          <div ref=${end}></div>
        </div>
        ${
          states || picture
            ? html`<aside class="scene" aria-label="Scene">
          ${picture ? html`<img src=${picture} alt="Picture of the environment" />` : ""}
          ${states ? html`<${SceneView} states=${states} turn=${turns.length - 1} act=${act ?? (() => {})} />` : ""}
        </aside>`
            : ""
        }
      </div>
    </div>`;
}

// A docstring's sections; everything in it is text.
function Docstring({ text }) {
  const parts = text.split(/\n\n+/);
  return html`<div class="docstring">${parts.map((part) => {
    const heading = /^([A-Z][\w ]*):\n([\s\S]*)$/.exec(part);
    const body = (heading ? heading[2] : part).replace(/^ {4}/gm, "");
    return html`${heading ? html`<h3>${heading[1]}</h3>` : ""}<pre><${Shown} text=${body} /></pre>`;
  })}</div>`;
}
