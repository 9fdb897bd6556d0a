// A group: all episodes of one task side by side, with what they earned and their advantages.
"use strict";

const MOST_BESIDE = 64;

function Group({ row }) {
  const { version } = useStore();
  const mates = useMemo(() => store.groupOf(row).slice(0, MOST_BESIDE), [row.id, version]);
  const { value, error, isWaiting } = useAnswer(
    () => Promise.all(mates.map((mate) => store.episode(mate.id))),
    mates.map(({ id }) => id).join(),
  );
  if (error) return html`<${Problem} text=${error} />`;
  if (!value || isWaiting) return html`<p class="busy">loading</p>`;
  const rewards = mates.map(({ total }) => total);
  const isEven = new Set(rewards).size === 1;
  return html`
    <section class="group">
      <p class="summary"><b>${mates.length}</b> episodes of one task, mean return <b>${decimal(mean(rewards))}</b>, <b>${mates.filter((mate) => mate.outcome === "success").length}</b> succeeded.
        ${isEven && mates.length > 1 ? html` <span class="hint">All ended alike: relative to each other they teach nothing.</span>` : ""}</p>
      <div class="beside">
        ${mates.map((mate, k) => html`<${Member} key=${mate.id} mate=${mate} record=${value[k].record} isThis=${mate.id === row.id} />`)}
      </div>
    </section>`;
}

function Member({ mate, record, isThis }) {
  const { turns } = turnsOf(record);
  const advantages = record.turns.flatMap((turn) => turn.advantage ?? []);
  const advantage = mean(advantages);
  return html`
    <div class=${`member ${isThis ? "this" : ""}`}>
      <a class="title" href=${addressOf(["episode", mate.id])}><span class=${`dot ${mate.outcome}`}></span> member ${mate.member}</a>
      <dl class="numbers">
        <div><dt>return</dt><dd>${decimal(mate.total)}</dd></div>
        <div><dt>advantage</dt><dd class=${advantage > 0 ? "good" : advantage < 0 ? "bad" : ""}>${advantage === null ? "-" : signed(advantage, 2)}</dd></div>
        <div><dt>tokens</dt><dd>${count(mate.tokens)}</dd></div>
      </dl>
      <${AdvantageBar} value=${advantage} />
      <ol>${turns.map(
        (said, t) => html`
        <li class=${record.turns[t]?.is_invalid_action ? "invalid" : ""}>
          <a href=${addressOf(["episode", mate.id, String(t + 1)])}><pre class="action"><${Shown} text=${brief(said.action || said.thought)} /></pre></a>
          <p class="hint"><${Shown} text=${brief(said.replies.map(({ content }) => content).join(" "))} /></p>
        </li>`,
      )}</ol>
      <p class="hint">${mate.end.replace("_", " ")}</p>
    </div>`;
}

function AdvantageBar({ value }) {
  if (value === null) return null;
  const width = Math.min(50, Math.abs(value) * 20);
  return html`<div class="advantage" title=${`advantage ${signed(value)}`}>
    <span class=${value > 0 ? "good" : "bad"} style=${{ left: value > 0 ? "50%" : `${50 - width}%`, width: `${width}%` }}></span></div>`;
}

const brief = (text, most = 160) => (text.length > most ? `${text.slice(0, most)}\u2026` : text);
