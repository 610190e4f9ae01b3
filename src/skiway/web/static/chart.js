// Charts of results. `plotted` decides what is drawn: it aggregates, or refuses, if values of x repeat.
import { element } from "./shell.js";

const LIBRARY = "/static/vendor/echarts-6.1.0/echarts.common.min.js";
const MAX_BARS = 300;
const MAX_COLORS = 12;
const BINS = 30;
export const KINDS = ["bar", "line", "scatter", "histogram"];
export const AGGREGATES = { none: null, sum: (all) => all.reduce((a, b) => a + b, 0), average: (all) => all.reduce((a, b) => a + b, 0) / all.length, minimum: (all) => Math.min(...all), maximum: (all) => Math.max(...all), median, count: (all) => all.length };

function median(all) {
  const sorted = [...all].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

const isTime = (column) => /^(DATE|TIMESTAMP)/.test(column.type);
const isOrdered = (column) => column.is_number || isTime(column);
const numberOf = (value) => (value === null || value === "" ? NaN : Number(value));
// Moments without a time zone are taken as UTC, so that they are drawn as they are written.
const timeOf = (value) => (value === null ? NaN : Date.parse(/^\d{4}-\d\d-\d\d$|[zZ]$|[+-]\d\d:?\d\d$/.test(value) ? value : `${value.replace(" ", "T")}Z`));
const positionOf = (column) => (column.is_number ? numberOf : isTime(column) ? timeOf : (value) => (value === null ? "NULL" : String(value)));

// What a chart shows: {series: [{name, points: [[x, y], …]}], axis: "value" | "time" | "category", notes}, or {problem}.
export function plotted({ columns, rows, is_cut: isCut }, { kind, x, y, color, aggregate }) {
  const named = (name) => columns.find((each) => each.name === name);
  const [xs, ys, colors] = [named(x), named(y), named(color)];
  if (!xs) return { problem: "Choose a column for x." };
  if (isCut) return { problem: `The result has more than ${rows.toLocaleString("en")} rows, and only the first are here: aggregate in SQL.` };
  if (kind === "histogram") return histogram(xs, rows);
  const count = aggregate === "count";
  if (!count && (!ys || !ys.is_number)) return { problem: "Choose a column of numbers for y." };
  if (kind === "scatter" && !isOrdered(xs)) return { problem: `A scatter chart needs numbers or times for x: ${x} is ${xs.type}.` };
  const [place, groups] = [positionOf(xs), new Map()];
  let left = 0;
  for (let row = 0; row < rows; row++) {
    const [at, value] = [place(xs.values[row]), count ? 1 : numberOf(ys.values[row])];
    const isGap = kind === "line" && !count && ys.values[row] === null; // a missing value ends the line
    if ((!Number.isFinite(value) && !isGap) || (isOrdered(xs) && !Number.isFinite(at))) {
      left++;
      continue;
    }
    const name = colors ? String(colors.values[row] ?? "NULL") : count ? "rows" : y;
    if (!groups.has(name)) groups.set(name, new Map());
    const points = groups.get(name);
    if (!points.has(at)) points.set(at, []);
    if (!isGap) points.get(at).push(value);
  }
  if (groups.size > MAX_COLORS) return { problem: `${color} has ${groups.size} values: at most ${MAX_COLORS} colors can be told apart.` };
  const together = AGGREGATES[aggregate] ?? null;
  if (kind !== "scatter" && !together) {
    const repeated = [...groups.values()].reduce((sum, points) => sum + [...points.values()].filter((all) => all.length > 1).length, 0);
    if (repeated) return { problem: `${repeated.toLocaleString("en")} values of ${x} occur more than once${colors ? ` for the same ${color}` : ""}: choose how to aggregate ${y}.` };
  }
  const isAxis = isOrdered(xs) && kind !== "bar";
  const series = [...groups].map(([name, found]) => {
    const points = [...found].flatMap(([at, all]) => all.length === 0 ? [[at, null]] : together && kind !== "scatter" ? [[at, together(all)]] : all.map((value) => [at, value]));
    if (isOrdered(xs)) points.sort((a, b) => a[0] - b[0]);
    return { name, points };
  });
  const labels = isAxis ? null : [...new Set(series.flatMap(({ points }) => points.map(([at]) => at)))];
  if (labels && isOrdered(xs)) labels.sort((a, b) => a - b);
  if (labels && labels.length > MAX_BARS) return { problem: `${labels.length.toLocaleString("en")} bars are too many: use LIMIT or GROUP BY for at most ${MAX_BARS}, or draw a line.` };
  const notes = left ? [`${left.toLocaleString("en")} rows without a value of x or y are left out`] : [];
  return { series, labels, axis: isAxis ? (isTime(xs) ? "time" : "value") : "category", isTime: isTime(xs), notes };
}

function histogram(xs, rows) {
  if (!xs.is_number) return { problem: `A histogram needs numbers: ${xs.name} is ${xs.type}.` };
  const values = xs.values.map(numberOf).filter(Number.isFinite);
  if (!values.length) return { problem: `${xs.name} has no numbers.` };
  let [low, high] = [Infinity, -Infinity];
  for (const each of values) [low, high] = [Math.min(low, each), Math.max(high, each)];
  const bins = low === high ? 1 : BINS;
  const width = (high - low) / bins || 1;
  const counts = Array(bins).fill(0);
  for (const each of values) counts[Math.min(bins - 1, Math.floor((each - low) / width))]++;
  const bound = (number) => Number((low + number * width).toPrecision(6)).toLocaleString("en");
  const labels = counts.map((_, bin) => `${bound(bin)} to ${bound(bin + 1)}`);
  const left = rows - values.length;
  return { series: [{ name: "rows", points: counts.map((count, bin) => [labels[bin], count]) }], labels, axis: "category", notes: left ? [`${left.toLocaleString("en")} rows without a number are left out`] : [] };
}

function optionOf(found, { kind, x, y, aggregate }) {
  const css = getComputedStyle(document.documentElement);
  const color = (name) => { const probe = element("i"); probe.style.color = `var(--${name})`; document.body.append(probe); const value = getComputedStyle(probe).color; probe.remove(); return value; };
  const [text, edge, card] = [color("dim"), color("edge"), color("card")];
  const type = kind === "histogram" ? "bar" : kind;
  const time = (at) => new Date(at).toISOString().replace(/T00:00:00\.000Z$/, "").replace("T", " ").replace(/\.000Z$/, "");
  const label = found.isTime ? time : String;
  const titleOfY = kind === "histogram" || aggregate === "count" ? "rows" : aggregate === "none" || kind === "scatter" ? y : `${aggregate} of ${y}`;
  const axis = { nameLocation: "middle", nameTextStyle: { color: text }, axisLabel: { color: text, hideOverlap: true }, axisLine: { lineStyle: { color: edge } }, splitLine: { lineStyle: { color: edge } } };
  const isCategory = found.axis === "category";
  return {
    useUTC: true,
    animation: !matchMedia("(prefers-reduced-motion: reduce)").matches,
    aria: { enabled: true },
    backgroundColor: card,
    textStyle: { color: text, fontFamily: css.fontFamily },
    color: ["bar", "warn", "good", "violet", "bad", "teal", "accent"].map(color).concat("#8c6d31", "#843c39", "#7b4173", "#637939", "#3182bd"),
    grid: { left: 76, right: 24, top: found.series.length > 1 ? 44 : 24, bottom: 64 },
    legend: found.series.length > 1 ? { type: "scroll", textStyle: { color: text } } : undefined,
    tooltip: { renderMode: "richText", trigger: kind === "scatter" ? "item" : "axis", backgroundColor: card, borderColor: edge, textStyle: { color: color("text") } },
    xAxis: { ...axis, name: x, nameGap: 40, type: found.axis, data: isCategory ? found.labels.map(label) : undefined, scale: true, splitLine: { show: kind === "scatter", lineStyle: { color: edge } } },
    yAxis: { ...axis, name: titleOfY, nameGap: 58, type: "value", scale: kind === "line" || kind === "scatter" },
    series: found.series.map(({ name, points }) => ({ name, type, symbolSize: kind === "scatter" ? 6 : 4, showSymbol: points.length < 60 || kind === "scatter", large: points.length > 5000, barMaxWidth: 60, data: isCategory ? found.labels.map((each) => new Map(points).get(each) ?? null) : points })),
  };
}

let loading;
function library() {
  return (loading ??= new Promise((done, failed) => {
    const script = element("script", { src: LIBRARY });
    script.addEventListener("load", () => done(window.echarts));
    script.addEventListener("error", failed);
    document.head.append(script);
  }));
}

function firstSpec({ columns }) {
  const numbers = columns.filter((each) => each.is_number);
  const y = numbers.at(-1)?.name ?? "";
  const x = columns.find((each) => isTime(each))?.name ?? columns.find((each) => each.name !== y)?.name ?? y;
  return { kind: columns.some((each) => each.name === x && isTime(each)) ? "line" : "bar", x, y, color: "", aggregate: numbers.length ? "none" : "count" };
}

// The builder with its chart. `changed` gets the choices, for the link to share.
export function builder(result, given, changed) {
  const spec = { ...firstSpec(result), ...(given ?? {}) };
  const choose = (name, options, label = name) => {
    const select = element("select", { "aria-label": label });
    for (const each of options) select.append(new Option(each || "–", each, false, each === spec[name]));
    select.addEventListener("change", () => { spec[name] = select.value; draw(); changed({ ...spec }); });
    return element("label", {}, label, select);
  };
  const names = result.columns.map((each) => each.name);
  const picture = element("button", { type: "button" }, "Save as picture");
  const drawn = element("figure", { class: "drawn", role: "img" });
  const about = element("p", { role: "status" });
  const form = element("div", { class: "builder" }, choose("kind", KINDS, "Chart"), choose("x", names), choose("y", ["", ...names]), choose("color", ["", ...names], "Color"), choose("aggregate", Object.keys(AGGREGATES), "Aggregate"), picture);
  let chart;

  async function draw() {
    const found = plotted(result, spec);
    drawn.hidden = picture.hidden = Boolean(found.problem);
    about.className = found.problem ? "notice" : "dim";
    const points = found.series?.reduce((sum, each) => sum + each.points.length, 0) ?? 0;
    about.textContent = found.problem ?? [`${points.toLocaleString("en")} ${spec.kind === "histogram" ? "bins" : "points"}`, ...found.notes].join("; ");
    if (found.problem) return;
    const echarts = await library();
    chart ??= echarts.init(drawn, null, { renderer: "canvas" });
    chart.setOption(optionOf(found, spec), true);
    drawn.setAttribute("aria-label", `${spec.kind} chart of ${spec.kind === "histogram" ? spec.x : `${spec.y || "rows"} by ${spec.x}`}, ${points} points`);
    drawn.plotted = found;
  }

  picture.addEventListener("click", () => {
    const link = element("a", { href: chart.getDataURL({ pixelRatio: 2 }), download: "chart.png" });
    link.click();
  });
  new ResizeObserver(() => chart?.resize()).observe(drawn);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  changed({ ...spec });
  return element("div", {}, form, about, drawn);
}
