// The tree of catalogs, namespaces, tables and views. Members are read when a container is opened, and kept for the next page.
import { SYMBOLS, element, icon, latest, pathTo } from "./shell.js";

const KEPT = "skiway.tree";
const tree = document.getElementById("tree");
const filter = document.getElementById("q");

function kept() {
  try {
    return { open: [], members: {}, ...JSON.parse(sessionStorage.getItem(KEPT)) };
  } catch {
    return { open: [], members: {} };
  }
}

const known = kept();
const keyOf = (path) => JSON.stringify(path);
const isContainer = (item) => ["catalog", "branch", "namespace"].includes(item.kind);

function keep() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(known));
  } catch {
    known.members = {}; // too large, or the browser does not allow it
  }
}

// Reads the members of a container, or more of them; returns whether they differ from those that are known.
async function readMembers(path, from = "") {
  const answer = await fetch(["/tree", ...path.map(encodeURIComponent)].join("/") + `?from=${encodeURIComponent(from)}`);
  if (!answer.ok) return false;
  const { items, next } = await answer.json();
  const before = known.members[keyOf(path)];
  const all = from === "" ? items : [...before.items, ...items];
  if (!from && before && keyOf(before.items.slice(0, items.length)) === keyOf(items) && (next || before.items.length === items.length)) return false;
  known.members[keyOf(path)] = { items: all, next };
  keep();
  return true;
}

const current = JSON.parse(tree?.dataset.path || "[]");
// The containers that the current object is in: on a branch, the catalog of the branch is one of them.
const above = current.map((_, depth) => current.slice(0, depth + 1));
if (current[0]?.includes("@")) above.unshift([current[0].slice(0, current[0].lastIndexOf("@"))]);

function row(item, level) {
  const open = known.open.includes(keyOf(item.path));
  const link = element("a", { role: "treeitem", href: pathTo(item), tabindex: "-1", "aria-level": level, title: item.path.join(".") });
  link.append(isContainer(item) ? icon("chevron-right", "twist") : element("span", { class: "leaf" }), icon(SYMBOLS[item.kind]), element("span", {}, item.name));
  if (item.kind === "branch") link.setAttribute("aria-label", `branch ${item.name}`);
  link.style.paddingLeft = `${0.25 + (level - 1) * 0.9}rem`; // scripts may set styles, attributes may not
  link.item = item;
  const entry = element("li", { role: "none" }, link);
  if (keyOf(item.path) === keyOf(current)) link.setAttribute("aria-current", "page");
  if (isContainer(item)) {
    link.setAttribute("aria-expanded", open);
    if (open) entry.append(group(item.path, level + 1));
  }
  return entry;
}

function group(path, level) {
  const list = element("ul", { role: "group" });
  const members = known.members[keyOf(path)];
  for (const each of members?.items ?? []) list.append(row(each, level));
  if (members?.next) {
    const more = element("a", { role: "treeitem", href: "#", tabindex: "-1", "aria-level": level, class: "more" }, element("span", { class: "leaf" }), "Show more");
    more.style.paddingLeft = `${0.25 + (level - 1) * 0.9}rem`;
    more.item = { kind: "more", path: [...path, "…more"], of: path };
    list.append(element("li", { role: "none" }, more));
  }
  return list;
}

const items = () => [...tree.querySelectorAll('[role="treeitem"]')];

function draw(focused = document.activeElement?.item) {
  const list = group([], 1);
  list.setAttribute("role", "tree");
  list.setAttribute("aria-label", "Catalogs");
  const top = tree.scrollTop;
  tree.replaceChildren(list);
  tree.scrollTop = top;
  const rows = items();
  const target = focused && rows.find((each) => keyOf(each.item.path) === keyOf(focused.path));
  (target ?? rows.find((each) => each.hasAttribute("aria-current")) ?? rows[0])?.setAttribute("tabindex", "0");
  if (target) target.focus();
}

async function toggle(item, open = !known.open.includes(keyOf(item.path))) {
  known.open = known.open.filter((each) => each !== keyOf(item.path));
  if (open) {
    known.open.push(keyOf(item.path));
    if (!known.members[keyOf(item.path)]) await readMembers(item.path);
  }
  keep();
  draw(item);
}

function focus(link) {
  if (!link) return;
  for (const each of items()) each.setAttribute("tabindex", "-1");
  link.setAttribute("tabindex", "0");
  link.focus();
}

async function showMore(item) {
  const { items: shown, next } = known.members[keyOf(item.of)];
  await readMembers(item.of, next);
  draw(known.members[keyOf(item.of)].items[shown.length]);
}

function onKey(event) {
  const link = event.target.closest('[role="treeitem"]');
  if (!link || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = items();
  const at = rows.indexOf(link);
  const level = (each) => Number(each.getAttribute("aria-level"));
  const { item } = link;
  const isOpen = link.getAttribute("aria-expanded") === "true";
  if (event.key === "ArrowDown") focus(rows[at + 1]);
  else if (event.key === "ArrowUp") at ? focus(rows[at - 1]) : filter.focus();
  else if (event.key === "Home") focus(rows[0]);
  else if (event.key === "End") focus(rows.at(-1));
  else if (event.key === "ArrowRight" && isContainer(item)) isOpen ? focus(rows[at + 1]) : toggle(item, true);
  else if (event.key === "ArrowLeft" && isOpen) toggle(item, false);
  else if (event.key === "ArrowLeft") focus(rows.slice(0, at).findLast((each) => level(each) < level(link)));
  else if (event.key.length === 1 && /\S/.test(event.key) && event.key !== "/") {
    const starts = (each) => each.item.name?.toLowerCase().startsWith(event.key.toLowerCase());
    focus([...rows.slice(at + 1), ...rows.slice(0, at)].find(starts));
  } else return;
  event.preventDefault();
}

// While there is a text in the filter, the tree shows what matches it: names, columns, tags and comments.
const showMatches = latest(({ results }) => {
  const list = element("ul", { role: "tree", "aria-label": "Matches", class: "found" });
  for (const each of results) {
    const name = element("span", {}, each.path.at(-1), element("small", {}, each.path.slice(0, -1).join(".") + (each.where === "name" ? "" : `, ${each.where}`)));
    const link = element("a", { role: "treeitem", href: pathTo(each), tabindex: "-1", "aria-level": 1, title: each.path.join(".") }, icon(SYMBOLS[each.kind]), name);
    link.item = { ...each, name: each.path.at(-1) };
    list.append(element("li", { role: "none" }, link));
  }
  const count = results.length;
  document.getElementById("tree-status").textContent = `${count} ${count === 1 ? "result" : "results"}`;
  tree.replaceChildren(count ? list : element("p", { class: "dim" }, "Nothing matches."));
  items()[0]?.setAttribute("tabindex", "0");
});

async function refresh() {
  const paths = [[], ...above.slice(0, -1)];
  const changed = await Promise.all(paths.map((path) => readMembers(path)));
  const [only, ...others] = known.members[keyOf([])]?.items ?? [];
  if (only && !others.length && !known.seen) {
    known.open.push(keyOf(only.path)); // on the first visit: there is nothing to choose from
    changed.push(await readMembers(only.path));
  }
  known.seen = true;
  keep();
  if (changed.some(Boolean) && !filter.value.trim()) draw();
}

if (!tree) {
  sessionStorage.removeItem(KEPT); // of a visitor who has logged out
} else {
  for (const key of above.map(keyOf)) {
    if (!known.open.includes(key)) known.open.push(key);
  }
  draw();
  tree.querySelector('[aria-current="page"]')?.scrollIntoView({ block: "nearest" });
  refresh();
  tree.addEventListener("keydown", onKey);
  tree.addEventListener("click", (event) => {
    const link = event.target.closest('[role="treeitem"]');
    if (link?.item.kind === "more") showMore(link.item);
    else if (event.target.closest(".twist")) toggle(link.item);
    else return;
    event.preventDefault();
  });
  let waiting;
  filter.addEventListener("input", () => {
    clearTimeout(waiting);
    const text = filter.value.trim();
    waiting = setTimeout(() => (text ? showMatches(`/search.json?${new URLSearchParams({ q: text })}`) : draw()), 120);
  });
  filter.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown") return;
    event.preventDefault();
    focus(items()[0]);
  });
}
