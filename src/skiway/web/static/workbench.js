// The SQL workbench: an editor with completion, tabs, a grid and charts. Without it, the form shows the first rows of a query.
import { copyText, element, icon } from "./shell.js";
import { builder } from "./chart.js";
import { grid } from "./grid.js";

const $ = (id) => document.getElementById(id);
const bench = $("workbench");
const form = bench.querySelector("form");
const given = JSON.parse($("given").textContent);
const [status, error, shown, views] = [$("status"), $("error"), $("result"), $("views")];
const STORED = "skiway.tabs.";
const own = STORED + bench.dataset.session;

// --- the editor ---
const ace = window.ace;
ace.config.set("useStrictCSP", true);
ace.define("ace/theme/skiway", ["require", "exports", "module"], (_, theme) => Object.assign(theme, { isDark: false, cssClass: "ace-skiway", cssText: "" }));
const code = $("code");
code.hidden = false;
form.elements.sql.hidden = true;
const editor = ace.edit(code, { mode: "ace/mode/sql", theme: "ace/theme/skiway", value: form.elements.sql.value, fontSize: 13.5, showPrintMargin: false, useWorker: false, tabSize: 2, wrap: true, placeholder: "SELECT … FROM schema.table", enableBasicAutocompletion: true, enableLiveAutocompletion: true, liveAutocompletionDelay: 80, textInputAriaLabel: "Query", scrollPastEnd: 0.1 });
editor.clearSelection();
editor.commands.bindKey("Tab", null); // Tab leaves the editor, as it leaves every field
editor.commands.bindKey("Shift-Tab", null);
editor.commands.addCommand({ name: "run", bindKey: { win: "Ctrl-Enter", mac: "Command-Enter" }, exec: () => run() });
for (const each of bench.querySelectorAll(".keys, #explain, #share")) each.hidden = false;

let wrong;
function mark(place, at = { row: 0, column: 0 }) {
  if (wrong !== undefined) editor.session.removeMarker(wrong);
  wrong = undefined;
  editor.session.clearAnnotations();
  if (!place) return;
  const row = place.line - 1 + at.row;
  const column = place.column - 1 + (place.line === 1 ? at.column : 0);
  const end = editor.session.getAWordRange(row, column).end.column;
  const Range = ace.require("ace/range").Range;
  wrong = editor.session.addMarker(new Range(row, column, row, Math.max(end, column + 1)), "wrong", "text");
  editor.session.setAnnotations([{ row, column, text: error.textContent, type: "error" }]);
  editor.gotoLine(row + 1, column, true);
}
editor.on("change", () => wrong !== undefined && mark(null));

// --- completion ---
let asking;
const completer = {
  id: "server",
  triggerCharacters: ["."],
  identifierRegexps: [/[\w."]/],
  getCompletions(_, session, position, prefix, done) {
    asking?.abort();
    asking = new AbortController();
    const parameters = new URLSearchParams({ q: prefix, sql: session.getValue().slice(0, 20000), catalog: form.elements.catalog.value });
    fetch(`/complete?${parameters}`, { signal: asking.signal })
      .then((answer) => (answer.ok ? answer.json() : { items: [], columns: [] }))
      .then(({ items, columns }) => {
        const qualifier = prefix.slice(0, prefix.lastIndexOf(".") + 1);
        beside(columns);
        done(null, items.map(({ value, note, kind }) => ({ value: kind === "column" ? qualifier + value : value, caption: kind === "column" ? qualifier + value : value, meta: note, score: { column: 900, table: 800, view: 800 }[kind] ?? 100 })));
      })
      .catch((problem) => problem.name === "AbortError" || done(null, []));
  },
};
editor.completers = [completer, ace.require("ace/ext/language_tools").keyWordCompleter];

function beside(columns) {
  const tables = Map.groupBy ? Map.groupBy(columns, (each) => each.table) : new Map([["", columns]]);
  $("beside").hidden = !columns.length;
  $("beside").querySelector("div").replaceChildren(
    ...[...tables].flatMap(([table, all]) => [element("b", {}, table), ...all.map((each) => {
      const button = element("button", { type: "button", title: each.note }, each.value);
      button.addEventListener("click", () => { editor.insert(/^[a-z_]\w*$/.test(each.value) ? each.value : `"${each.value.replaceAll('"', '""')}"`); editor.focus(); });
      return button;
    })]),
  );
}

// --- tabs: their texts are kept until the session ends ---
for (const key of Object.keys(sessionStorage)) if (key.startsWith(STORED) && key !== own) sessionStorage.removeItem(key);
const stored = JSON.parse(sessionStorage.getItem(own) ?? "[]");
const tabs = Array.isArray(stored) ? stored.filter((each) => typeof each.sql === "string").slice(0, 20) : [];
let current = tabs.find((each) => each.sql === editor.getValue());
if (!current && (editor.getValue() || !tabs.length)) tabs.push((current = { sql: editor.getValue() }));
current ??= tabs.at(-1);
if (!editor.getValue() && current.sql) editor.setValue(current.sql, 1);

const titleOf = ({ sql }, number) => sql.trim().replace(/\s+/g, " ").slice(0, 24) || `Query ${number + 1}`;
const keep = () => sessionStorage.setItem(own, JSON.stringify(tabs.map(({ sql }) => ({ sql }))));

function open(tab) {
  current = tab;
  editor.setValue(tab.sql, 1);
  drawTabs();
  show(tab.result ?? null);
  editor.focus();
}

function drawTabs() {
  const list = $("bench-tabs");
  list.hidden = false;
  list.replaceChildren(
    ...tabs.map((tab, number) => {
      const button = element("button", { type: "button", role: "tab", "aria-selected": tab === current, tabindex: tab === current ? 0 : -1 }, titleOf(tab, number));
      button.addEventListener("click", () => open(tab));
      button.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (by) { open(tabs[(number + by + tabs.length) % tabs.length]); list.querySelector("[aria-selected=true]").focus(); }
        if (event.key === "Delete") close(tab);
      });
      return element("span", { class: "bench-tab", role: "presentation" }, button);
    }),
  );
  const more = element("button", { type: "button", "aria-label": "New query" }, icon("plus"));
  more.addEventListener("click", () => { tabs.push({ sql: "" }); open(tabs.at(-1)); });
  const less = element("button", { type: "button", "aria-label": "Close this query" }, icon("x"));
  less.addEventListener("click", () => close(current));
  list.nextElementSibling?.remove();
  list.after(element("span", { class: "bench-more" }, more, ...(tabs.length > 1 ? [less] : [])));
  keep();
}

function close(tab) {
  if (tabs.length < 2) return;
  tabs.splice(tabs.indexOf(tab), 1);
  open(tabs.at(-1));
}

editor.on("change", () => { current.sql = editor.getValue(); current.renamed ??= setTimeout(() => { delete current.renamed; drawTabs(); }, 400); });

// --- runs ---
let running;
const address = (parameters) => `/run?${new URLSearchParams({ catalog: form.elements.catalog.value, ...parameters })}`;
const size = (bytes) => (bytes < 1024 ? `${bytes} B` : bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`);

async function run(parameters = {}) {
  const selected = !editor.selection.isEmpty();
  const at = selected ? editor.getSelectionRange().start : { row: 0, column: 0 };
  const sql = selected ? editor.getSelectedText() : editor.getValue();
  if (!sql.trim() || running) return;
  const tab = current;
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, "0")).join("");
  const began = performance.now();
  running = id;
  [$("run").disabled, $("cancel").hidden, error.hidden] = [true, false, true];
  mark(null);
  const tick = () => (status.textContent = `Running for ${((performance.now() - began) / 1000).toFixed(1)} s …`);
  const timer = setInterval(tick, 100);
  try {
    const answer = await fetch(address({ sql, run: id, ...parameters }));
    const found = await answer.json();
    if (!answer.ok || found.error) {
      tab.result = null;
      if (tab === current) { show(null); error.textContent = found.error; error.hidden = false; mark(found.place, at); }
      return;
    }
    tab.result = { ...found, sql, catalog: form.elements.catalog.value };
    if (tab === current) show(tab.result);
  } catch {
    [error.textContent, error.hidden, status.textContent] = ["The server cannot be reached: try again.", false, ""];
  } finally {
    clearInterval(timer);
    running = undefined;
    [$("run").disabled, $("cancel").hidden] = [false, true];
    if (!tab.result) status.textContent = "";
  }
}

form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
$("explain").addEventListener("click", () => run({ explain: "on" }));
$("cancel").addEventListener("click", () => fetch(address({ run: running, cancel: "on" })));

// --- results ---
function show(result, view = "Rows") {
  error.hidden = true;
  const has = Boolean(result?.columns);
  [views.hidden, $("exports").hidden] = [!has, !has];
  if (!result) { [status.textContent] = [""]; shown.replaceChildren(); return; }
  history.replaceState(null, "", linkTo(result));
  if (result.plan !== undefined) {
    status.textContent = "The plan of the query, which did not run.";
    shown.replaceChildren(element("pre", { tabindex: 0 }, result.plan));
    return;
  }
  const facts = [`${result.is_cut ? "The first " : ""}${result.rows.toLocaleString("en")} ${result.rows === 1 ? "row" : "rows"}`, `${Math.round(result.ms).toLocaleString("en")} ms`];
  if (result.bytes_read) facts.push(`${size(result.bytes_read)} read`, `${result.files_read} of ${result.files_read + result.files_pruned} files`);
  status.replaceChildren(facts.join(" · "));
  if (result.run) status.append(" · ", element("a", { href: `/history/${result.run}` }, "Why this long?"));
  for (const link of $("exports").querySelectorAll("a")) link.href = `/results?${new URLSearchParams({ sql: result.sql, catalog: result.catalog, format: link.dataset.format })}`;
  views.replaceChildren(
    ...["Rows", "Chart"].map((name) => {
      const button = element("button", { type: "button", role: "tab", "aria-selected": name === view }, name);
      button.addEventListener("click", () => { show(result, name); views.querySelector("[aria-selected=true]").focus(); });
      return button;
    }),
  );
  shown.replaceChildren(view === "Rows" ? grid(result) : builder(result, result.chart, (spec) => { result.chart = spec; history.replaceState(null, "", linkTo(result)); }));
}

const linkTo = ({ sql, catalog, chart }) => `/sql?${new URLSearchParams({ catalog, sql, ...(chart ? { chart: JSON.stringify(chart) } : {}) })}`;
$("share").addEventListener("click", async () => {
  const result = current.result ?? { sql: editor.getValue(), catalog: form.elements.catalog.value };
  await copyText(new URL(linkTo(result), location.href).href);
  status.textContent = "The link is copied: it has the query and the chart, and whoever opens it sees what they may see.";
});

drawTabs();
if (given.has_run) {
  if (given.values) current.result = { ...given.values, sql: current.sql, catalog: form.elements.catalog.value };
  else await run();
  if (current.result?.columns) {
    try {
      current.result.chart = given.chart ? JSON.parse(given.chart) : undefined;
    } catch { /* the link was changed by hand */ }
    show(current.result, current.result.chart ? "Chart" : "Rows");
  }
} else if (!error.hidden) mark(given.place);
