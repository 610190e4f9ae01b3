// Ctrl+K: objects, pages, and the actions of this page.
import { SYMBOLS, element, icon, latest, pathTo } from "./shell.js";

const palette = document.getElementById("palette");
const box = palette?.querySelector("input");
const results = palette?.querySelector('[role="listbox"]');
let objects = [];

function textOf(link) {
  return link.getAttribute("aria-label") ?? link.innerText ?? link.textContent;
}

// Links and buttons of the page: those of the menu are pages, those of the object are actions.
function commands() {
  const pages = [...document.querySelectorAll(".groups a")].map((link) => ({ name: link.textContent.trim(), note: "page", symbol: "corner-down-left", run: () => location.assign(link.href) }));
  const actions = [...document.querySelectorAll("main .actions a, main .actions button, main .tabs a, [data-command]")].map((each) => ({ name: textOf(each).trim(), note: "on this page", symbol: "play", run: () => each.click() }));
  const once = new Map([...actions, ...pages].map((each) => [`${each.name} ${each.note}`, each]));
  return [...once.values()];
}

function show() {
  const words = box.value.trim().toLowerCase().split(/\s+/);
  const matching = commands().filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  const begins = ({ name }) => words[0] && name.toLowerCase().startsWith(box.value.trim().toLowerCase());
  const all = [...matching.filter(begins), ...objects, ...matching.filter((each) => !begins(each))];
  results.replaceChildren(
    ...all.map(({ name, note, symbol, run }, number) => {
      const option = element("div", { role: "option", id: `palette-${number}`, "aria-selected": number === 0 }, icon(symbol), element("span", {}, name), element("small", {}, note));
      option.addEventListener("click", run);
      return option;
    }),
  );
  if (!all.length) results.append(element("div", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "Nothing matches."));
  box.setAttribute("aria-activedescendant", all.length ? "palette-0" : "");
}

const search = latest(({ results: found }) => {
  objects = found.slice(0, 12).map((each) => ({
    name: each.path.join("."),
    note: each.where === "name" ? each.kind : each.where,
    symbol: SYMBOLS[each.kind],
    run: () => location.assign(pathTo(each)),
  }));
  show();
});

function move(by) {
  const options = [...results.querySelectorAll("[id]")];
  const at = options.findIndex((each) => each.getAttribute("aria-selected") === "true");
  options[at]?.setAttribute("aria-selected", "false");
  const next = options[(at + by + options.length) % options.length];
  next?.setAttribute("aria-selected", "true");
  next?.scrollIntoView({ block: "nearest" });
  box.setAttribute("aria-activedescendant", next?.id ?? "");
}

function openPalette() {
  box.value = "";
  objects = [];
  show();
  palette.showModal();
}

if (palette) {
  for (const each of document.querySelectorAll("[data-palette]")) {
    each.addEventListener("click", (event) => {
      event.preventDefault();
      openPalette();
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      palette.open ? palette.close() : openPalette();
    }
  });
  box.addEventListener("input", () => {
    const text = box.value.trim();
    if (!text) objects = [];
    show();
    if (text) search(`/search.json?${new URLSearchParams({ q: text })}`);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter") {
      palette.close();
      results.querySelector('[aria-selected="true"]')?.click();
    } else return;
    event.preventDefault();
  });
  palette.addEventListener("click", (event) => event.target === palette && palette.close());
}
