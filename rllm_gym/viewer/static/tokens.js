// The tokens of an episode as they were trained: which were sampled, how likely, and with what advantage.
"use strict";

// How a sampled token is coloured. `of` is its number, null where it was not stored; `full` is where the colour is full.
const MEASURES = {
  logp: {
    title: "log-probability",
    of: (token) => token.logp,
    full: () => 5,
    says: "the darker, the less likely it was",
  },
  mask: { title: "mask", of: () => 1, full: () => 1, says: "coloured is what the policy sampled, and what is trained" },
  advantage: {
    title: "advantage",
    of: (token) => token.advantage,
    full: (values) => Math.max(1e-9, ...values.map(Math.abs)),
    says: "green is made likelier, red less likely",
    without: "No advantage is stored: outside training, and by methods that need none, none is computed.",
  },
  difference: {
    title: "sampler - trainer",
    of: (token) => (token.trainer == null ? null : token.logp - token.trainer),
    full: (values) => Math.max(1e-3, ...values.map(Math.abs)),
    says: "how far the two log-probabilities are apart",
    without:
      "The trainer's log-probabilities are not stored. Train with save_trainer_logp: true for one more forward pass a step.",
  },
};

function sampledTokens(record, texts) {
  return record.turns.map((turn) =>
    turn.action_ids.map((id, k) => ({
      id,
      text: texts[id] ?? `[${id}]`,
      logp: turn.logp[k],
      advantage: turn.advantage?.[k] ?? null,
      trainer: turn.trainer_logp?.[k] ?? null,
      version: turn.policy_version,
    })),
  );
}

function Tokens({ record, texts, problem, turn, setTurn }) {
  const [kept, setMeasure] = useStored("tokens", "logp");
  const measure = Object.hasOwn(MEASURES, kept) ? kept : "logp";
  const [pointed, setPointed] = useState(null);
  const turns = useMemo(() => sampledTokens(record, texts), [record]);
  const { of, full, says, without } = MEASURES[measure];
  const values = turns.flat().map(of).filter(isNumber);
  const strength = full(values);
  const read = (ids) => ids.map((id) => texts[id] ?? `[${id}]`).join("");
  const isExpert = turns.flat().length > 0 && turns.flat().every((token) => token.logp === 0);
  return html`
    <section class="tokens">
      <div class="bar">
        <span class="segments" role="radiogroup" aria-label="Colour">
          ${Object.entries(MEASURES).map(
            ([name, { title }]) => html`
            <button role="radio" aria-checked=${name === measure} class=${name === measure ? "on" : ""} onClick=${() => setMeasure(name)}>${title}</button>`,
          )}
        </span>
        <${Scale} measure=${measure} strength=${strength} />
        <span class="hint">${says}</span>
      </div>
      <${Problem} text=${problem} />
      ${without && !values.length ? html`<p class="note" id="not-stored">${without}</p>` : ""}
      ${
        turns.length && !turns.flat().length
          ? html`
        <p class="note">This record has texts and no tokens: it was imported, or its text was made elsewhere.</p>`
          : ""
      }
      ${isExpert ? html`<p class="note">All log-probabilities are 0: these actions were not sampled (an expert's, or a person's).</p>` : ""}
      <${TokenNumbers} tokens=${turns.flat()} />
      <div class="stream" onMouseOver=${(event) => setPointed(pointedToken(event, turns))} onFocusIn=${(event) => setPointed(pointedToken(event, turns))}>
        ${turns.map(
          (tokens, t) => html`
          ${isRewritten(record, t) ? html`<p class="seam">a new context, and a new training sample</p>` : ""}
          <div class=${`turn ${t === turn ? "current" : ""}`} key=${t} onClick=${() => setTurn(t)}>
            <span class="number">${t + 1}</span>
            <pre><span class="masked"><${Shown} text=${read(record.turns[t].observation_ids)} /></span>${tokens.map(
              (token, k) => html`<span
              class="token" data-place=${`${t}-${k}`} style=${{ backgroundColor: colour(measure, of(token), strength) }}><${TokenText} text=${token.text} /></span>`,
            )}</pre>
          </div>`,
        )}
        ${
          record.final_observation_ids.length
            ? html`
          <div class="turn"><span class="number"></span><pre><span class="masked"><${Shown} text=${read(record.final_observation_ids)} /></span></pre></div>`
            : ""
        }
      </div>
      ${
        pointed
          ? html`<div class="pointed" role="status">
        <code><${TokenText} text=${pointed.text} /></code> id ${pointed.id}
        <span>log-prob <b>${decimal(pointed.logp, 4)}</b> (${decimal(100 * Math.exp(pointed.logp), 1)} %)</span>
        <span>advantage <b>${signed(pointed.advantage, 4)}</b></span>
        <span>trainer <b>${decimal(pointed.trainer, 4)}</b></span>
        <span>version <b>${pointed.version}</b></span></div>`
          : ""
      }
    </section>`;
}

function pointedToken(event, turns) {
  const place = event.target.closest?.(".token")?.dataset.place;
  if (!place) return null;
  const [t, k] = place.split("-").map(Number);
  return turns[t]?.[k] ?? null;
}

// A newline is shown and kept.
function TokenText({ text }) {
  const lines = text.split("\n");
  return lines.map(
    (line, k) =>
      html`<${Fragment}><${Shown} text=${line} />${k < lines.length - 1 ? html`<span class="newline">\u23ce</span>${"\n"}` : ""}<//>`,
  );
}

function colour(measure, value, strength) {
  if (!isNumber(value)) return "transparent";
  const share = Math.min(1, Math.abs(value) / strength);
  const name =
    measure === "advantage" || measure === "difference"
      ? value >= 0
        ? "good"
        : "bad"
      : measure === "mask"
        ? "accent"
        : "warm";
  return `color-mix(in srgb, var(--${name}) ${Math.round(measure === "mask" ? 30 : 8 + 62 * share)}%, transparent)`;
}

function Scale({ measure, strength }) {
  if (measure === "mask") return null;
  const marks = measure === "logp" ? [0, -1, -2, -3, -4, -5] : [-1, -0.5, 0, 0.5, 1].map((x) => x * strength);
  return html`<span class="scale">${marks.map(
    (value) => html`
    <span style=${{ backgroundColor: colour(measure, value, strength) }}>${precise(value)}</span>`,
  )}</span>`;
}

function TokenNumbers({ tokens }) {
  if (!tokens.length) return null;
  const logps = tokens.map(({ logp }) => logp);
  const differences = tokens
    .filter(({ trainer }) => trainer != null)
    .map(({ logp, trainer }) => Math.abs(logp - trainer));
  const numbers = {
    "sampled tokens": count(tokens.length),
    "mean log-prob": decimal(mean(logps)),
    perplexity: decimal(Math.exp(-mean(logps)), 2),
    "least likely": decimal(logps.reduce((least, logp) => Math.min(least, logp), 0)),
    ...(differences.length
      ? {
          "sampler and trainer apart": `${mean(differences).toExponential(1)} mean, ${Math.max(...differences).toExponential(1)} most`,
        }
      : {}),
  };
  return html`<dl class="numbers">${Object.entries(numbers).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
