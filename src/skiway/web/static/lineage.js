// Follows the lines of a lineage: the object or column under the pointer, or with the focus, is shown with all that leads to and from it.
const graph = document.querySelector(".network");
const lines = [...graph.querySelectorAll("[data-from]")];
const nodes = [...graph.querySelectorAll("[data-node]")];

function reached(start, from, to) {
  const found = new Set([start]);
  for (const name of found) for (const line of lines) if (line.dataset[from] === name) found.add(line.dataset[to]);
  return found;
}

function follow(name) {
  const all = name ? new Set([...reached(name, "from", "to"), ...reached(name, "to", "from")]) : new Set();
  graph.classList.toggle("followed", Boolean(name));
  for (const line of lines) line.classList.toggle("lit", all.has(line.dataset.from) && all.has(line.dataset.to));
  for (const node of nodes) node.classList.toggle("lit", all.has(node.dataset.node) || [...all].some((each) => each.startsWith(`${node.dataset.node}/`)));
}

const nameAt = (event) => event.target.closest("[data-node]")?.dataset.node;
for (const kind of ["pointerover", "focusin"]) graph.addEventListener(kind, (event) => follow(nameAt(event)));
graph.addEventListener("pointerleave", () => follow());
graph.addEventListener("focusout", () => follow());
