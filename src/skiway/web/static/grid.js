// A grid for many rows: it draws only those that can be seen. Columns have their values in an array each.
import { element } from "./shell.js";

const HEIGHT = 28;
const AROUND = 12;

export const textOf = (value) => (value === null ? "NULL" : typeof value === "object" ? JSON.stringify(value) : String(value));

function widthOf({ name, type, values }) {
  const longest = values.slice(0, 200).reduce((most, value) => Math.max(most, textOf(value).length), Math.max(name.length, type.length));
  return `${Math.min(Math.max(longest, 5), 42) + 3.5}ch`;
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : textOf(a).localeCompare(textOf(b), undefined, { numeric: true });
}

export function grid({ columns, rows }) {
  const order = [...Array(rows).keys()];
  const widths = [`${String(rows).length + 4}ch`, ...columns.map(widthOf)];
  const cell = (role, text, place, isNumber) => {
    const made = element("div", { role, class: isNumber ? "number" : "" }, text);
    made.style.width = widths[place];
    return made;
  };
  const head = element("div", { role: "row", class: "line top", "aria-rowindex": 1 }, cell("columnheader", "#", 0));
  const seen = element("div", { class: "seen", role: "rowgroup" });
  const all = element("div", { role: "presentation" }, seen);
  const box = element("div", { class: "cells", role: "table", tabindex: 0, "aria-label": "Result", "aria-rowcount": rows + 1, "aria-colcount": columns.length + 1 }, element("div", { role: "rowgroup", class: "heading" }, head), all);
  all.style.height = `${rows * HEIGHT}px`;
  box.style.maxHeight = `${(rows + 2) * HEIGHT + 8}px`;
  let first = -1;

  function draw(isForced) {
    const start = Math.max(0, Math.floor(box.scrollTop / HEIGHT) - AROUND);
    if (start === first && !isForced) return;
    first = start;
    const end = Math.min(rows, start + Math.ceil((box.clientHeight || 600) / HEIGHT) + 2 * AROUND);
    seen.style.transform = `translateY(${start * HEIGHT}px)`;
    seen.replaceChildren(
      ...order.slice(start, end).map((row, number) => {
        const line = element("div", { role: "row", class: "line", "aria-rowindex": start + number + 2 }, cell("cell", String(start + number + 1), 0));
        line.firstChild.classList.add("place");
        columns.forEach(({ values, is_number: isNumber }, place) => {
          const made = cell("cell", textOf(values[row]), place + 1, isNumber);
          if (values[row] === null) made.classList.add("null");
          line.append(made);
        });
        return line;
      }),
    );
  }

  columns.forEach((column, place) => {
    const header = cell("columnheader", "", place + 1, column.is_number);
    const button = element("button", { type: "button" }, column.name);
    button.addEventListener("click", () => {
      const down = header.getAttribute("aria-sort") === "ascending";
      for (const each of head.children) each.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      order.sort((a, b) => compare(column.values[a], column.values[b]) * (down ? -1 : 1) || a - b);
      draw(true);
    });
    header.append(button, element("small", {}, column.type));
    head.append(header);
  });
  box.addEventListener("scroll", () => draw(false), { passive: true });
  new ResizeObserver(() => draw(true)).observe(box);
  return box;
}
