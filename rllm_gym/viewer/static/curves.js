// Curves over train steps: raw and smoothed, with the horizon's stages behind them and evaluations as points.
"use strict";

const SMOOTHING = 0.8; // of the exponential mean, debiased
const USUAL = [
  "env_runners/success_rate",
  "env_runners/episode_return_mean",
  "env_runners/num_turns_mean",
  "env_runners/num_sampled_tokens_per_turn_mean",
  "env_runners/invalid_action_fraction",
  "env_runners/truncated_fraction",
  "learners/default_policy/entropy",
  "learners/default_policy/kl",
  "learners/default_policy/logp_difference_mean",
  "learners/default_policy/gradient_norm",
];
const LINE_COLOURS = ["--accent", "--good", "--warm", "--bad", "--violet", "--muted"];

function smoothed(values) {
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    if (!isNumber(value)) return null;
    sum = SMOOTHING * sum + (1 - SMOOTHING) * value;
    weight = SMOOTHING * weight + (1 - SMOOTHING);
    return sum / weight;
  });
}

// Return [{from, to, horizon}] of a curve, for its background.
function stagesOf({ steps, metrics }) {
  const stages = [];
  (metrics.max_episode_steps ?? []).forEach((horizon, k) => {
    const last = stages[stages.length - 1];
    if (last && last.horizon === horizon) last.to = steps[k];
    else if (horizon) stages.push({ from: steps[k], to: steps[k], horizon });
  });
  return stages;
}

function Curves({ query }) {
  const { version, rows } = useStore();
  const [asked, setAsked] = useState(0);
  const { value: curves, error } = useAnswer(() => store.curves(), `${asked}`);
  useEffect(() => {
    const timer = store.isLive ? setInterval(() => document.hidden || setAsked((k) => k + 1), 10000) : null;
    return () => clearInterval(timer);
  }, []);
  const [more, setMore] = useStored("metrics", "");
  if (error) return html`<${Problem} text=${error} />`;
  if (!curves) return html`<p class="busy">loading</p>`;
  if (!curves.length) return html`<p class="empty">No run with results is shown.</p>`;
  const names = [...new Set(curves.flatMap(({ metrics }) => Object.keys(metrics)))].sort();
  const added = more.split(",").filter((name) => names.includes(name));
  const shown = [...USUAL.filter((name) => names.includes(name)), ...added.filter((name) => !USUAL.includes(name))];
  return html`
    <section class="curves">
      <p class="summary">${curves.map(
        (curve, k) => html`
        <span class="key"><i style=${{ background: `var(${LINE_COLOURS[k % LINE_COLOURS.length]})` }}></i><${Shown} text=${nameOfCurve(curve, curves)} /></span>`,
      )}
        <span class="hint">thin: raw, thick: smoothed, points: evaluations; shaded: stages of the horizon</span></p>
      <div class="charts">${shown.map((name) => html`<${Chart} key=${name} name=${name} curves=${curves} />`)}</div>
      <label class="more">More metrics
        <select onChange=${(event) => {
          if (event.target.value) setMore([...added, event.target.value].join(","));
          event.target.value = "";
        }}>
          <option value="">choose</option>
          ${names.filter((name) => !shown.includes(name)).map((name) => html`<option value=${name}>${name}</option>`)}
        </select>
        ${added.length ? html`<button class="link" onClick=${() => setMore("")}>only the usual ones</button>` : ""}</label>
    </section>`;
}

const nameOfCurve = (curve, curves) =>
  curves.filter(({ run }) => run === curve.run).length > 1 ? `${curve.run} ${curve.trial.slice(0, 24)}` : curve.run;

function Chart({ name, curves }) {
  const box = useRef(null);
  const theme = useTheme();
  const data = useMemo(() => chartData(name, curves), [name, curves]);
  useLayoutEffect(() => {
    const make = () =>
      new uPlot(chartOptions(data, box.current.clientWidth, stagesOf(curves[0])), data.columns, box.current);
    let plot = make();
    const observer = new ResizeObserver(() => plot.setSize({ width: box.current.clientWidth, height: 220 }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [data, theme]);
  return html`<figure class="chart" data-metric=${name}><figcaption>${name.replace(/^env_runners\/|^learners\/default_policy\//, "").replaceAll("_", " ")}</figcaption><div ref=${box}></div></figure>`;
}

function chartData(name, curves) {
  const steps = [
    ...new Set(
      curves.flatMap((curve) => [
        ...curve.steps,
        ...Object.values(curve.evaluations)
          .flat()
          .map(([step]) => step),
      ]),
    ),
  ].sort((a, b) => a - b);
  const place = new Map(steps.map((step, k) => [step, k]));
  const spread = (pairs) => {
    const column = new Array(steps.length).fill(null);
    for (const [step, value] of pairs) if (isNumber(value)) column[place.get(step)] = value;
    return column;
  };
  const series = [];
  curves.forEach((curve, k) => {
    const values = curve.metrics[name];
    const colour = LINE_COLOURS[k % LINE_COLOURS.length];
    if (!values) return;
    series.push({ label: "raw", colour, kind: "raw", column: spread(curve.steps.map((step, i) => [step, values[i]])) });
    const smooth = smoothed(values);
    series.push({
      label: "smoothed",
      colour,
      kind: "smooth",
      column: spread(curve.steps.map((step, i) => [step, smooth[i]])),
    });
    if (name !== "env_runners/success_rate") return;
    Object.entries(curve.evaluations).forEach(([split, points], s) => {
      series.push({
        label: `evaluation, ${split}`,
        colour: curves.length > 1 ? colour : LINE_COLOURS[1 + (s % 4)],
        kind: "points",
        column: spread(points),
      });
    });
  });
  return { series, columns: [steps, ...series.map(({ column }) => column)] };
}

function chartOptions({ series }, width, stages) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
    font: "11px system-ui",
    labelFont: "11px system-ui",
  };
  return {
    width,
    height: 220,
    cursor: { drag: { x: true, y: false } },
    scales: { x: { time: false } },
    axes: [
      { ...axis, size: 28 },
      { ...axis, size: 56, values: (_, values) => values.map(precise) },
    ],
    legend: { live: true },
    hooks: {
      drawClear: [(plot) => drawStages(plot, stages, colour)],
      draw: [(plot) => labelStages(plot, stages, colour)], // above the grid
    },
    series: [
      { label: "step" },
      ...series.map(({ label, colour: name, kind }) => ({
        label,
        stroke: kind === "raw" ? `color-mix(in srgb, ${colour(name)} 35%, transparent)` : colour(name),
        width: kind === "raw" ? 1 : 2,
        dash: kind === "points" ? [4, 4] : undefined,
        spanGaps: true,
        points: kind === "points" ? { show: true, size: 8, fill: colour(name) } : { show: false },
        value: (_, value) => precise(value),
      })),
    ],
  };
}

function extentOf(plot, { from, to }) {
  const { left, width } = plot.bbox;
  return [Math.max(left, plot.valToPos(from - 0.5, "x", true)), Math.min(left + width, plot.valToPos(to + 0.5, "x", true))];
}

function drawStages(plot, stages, colour) {
  const { ctx, bbox } = plot;
  ctx.save();
  stages.forEach((stage, k) => {
    const [left, right] = extentOf(plot, stage);
    if (right <= left) return;
    ctx.fillStyle = k % 2 ? colour("--stage-odd") : colour("--stage-even");
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
  });
  ctx.restore();
}

function labelStages(plot, stages, colour) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  stages.forEach((stage, k) => {
    const [left, right] = extentOf(plot, stage);
    if (right - left <= 40) return;
    const [text, x, y] = [`horizon ${stage.horizon}`, left + 6, bbox.top + 14 * devicePixelRatio];
    const box = [x - 2, bbox.top + 1, ctx.measureText(text).width + 4, 18 * devicePixelRatio];
    ctx.fillStyle = colour("--card"); // over the lines of the grid and of the curves
    ctx.fillRect(...box);
    ctx.fillStyle = k % 2 ? colour("--stage-odd") : colour("--stage-even");
    ctx.fillRect(...box);
    ctx.fillStyle = colour("--muted");
    ctx.fillText(text, x, y);
  });
  ctx.restore();
}
