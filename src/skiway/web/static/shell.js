// What all pages share: keys, copy buttons, and tables that can be sorted. Pages work without it.
const ICONS = "/static/icons-1.33.0.svg";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function icon(name, kind = "") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("class", `icon ${kind}`);
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `${ICONS}#${name}`);
  svg.append(use);
  return svg;
}

export const SYMBOLS = { catalog: "database", branch: "git-branch", namespace: "folder", table: "table-2", view: "eye" };
const PAGES = { table: "tables", view: "views" };

export function pathTo({ kind, path }) {
  const segments = path.map((each) => encodeURIComponent(each));
  return ["", PAGES[kind] ?? "catalogs", ...segments].join("/").replace(/\.json$/, "%2Ejson");
}

// Calls `then` with what the server answers to the newest of several requests.
export function latest(then) {
  let running;
  return async (address) => {
    running?.abort();
    const own = (running = new AbortController());
    try {
      const answer = await fetch(address, { signal: own.signal });
      if (answer.ok) then(await answer.json());
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
}

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element("textarea"); // pages without TLS have no clipboard
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

function addCopyButton(to) {
  const button = element("button", { type: "button", class: "copy", "aria-label": "Copy" }, icon("copy"));
  button.addEventListener("click", async () => {
    await copyText((to.querySelector("code") ?? to).innerText);
    button.replaceChildren(icon("check"), " Copied");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  const around = element("div", { class: "copyable" });
  to.replaceWith(around);
  around.append(to, button);
}

const valueOf = (row, place) => row.cells[place]?.dataset.value ?? row.cells[place]?.innerText.trim() ?? "";
const numberIn = (text) => (/^[-−~≈]?[\d,]+(\.\d+)?\b/.test(text) ? Number(text.replace(/[^\d.eE-]/g, "")) : NaN);

function sortBy(table, header, place) {
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, place), row]);
  const isNumber = rows.every(([text]) => !/\d/.test(text) || !Number.isNaN(numberIn(text)));
  rows.sort(([a], [b]) => (isNumber ? (numberIn(a) || 0) - (numberIn(b) || 0) : a.localeCompare(b, undefined, { numeric: true })));
  if (down) rows.reverse();
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function makeSortable(table) {
  for (const [place, header] of [...(table.tHead?.rows[0]?.cells ?? [])].entries()) {
    if (!header.innerText.trim() || header.querySelector("a, button")) continue;
    const button = element("button", { type: "button", class: "sort" });
    button.append(...header.childNodes, icon("arrow-up"));
    button.addEventListener("click", () => sortBy(table, header, place));
    header.append(button);
  }
}

function prepare(part) {
  part.querySelectorAll("pre").forEach((each) => each.closest(".copyable") ?? addCopyButton(each));
  part.querySelectorAll("table.sortable, table.list").forEach(makeSortable);
}

document.addEventListener("keydown", (event) => {
  const inField = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    const filter = document.getElementById("q");
    if (filter && !filter.checkVisibility()) document.getElementById("side").showPopover();
    filter?.focus();
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "sql") event.target.form.requestSubmit();
});
document.addEventListener("htmx:afterSettle", (event) => prepare(event.target));
prepare(document);
