// The last queries of the editor that succeeded. The browser stores them, and the login page deletes them, so that the next visitor does not see them.
const HISTORY = "skiway.queries";
const MAX_QUERIES = 20;

function storedQueries() {
  try {
    const found = JSON.parse(localStorage.getItem(HISTORY));
    return Array.isArray(found) ? found.filter((each) => typeof each.sql === "string" && typeof each.catalog === "string") : [];
  } catch {
    return []; // nothing is stored, or the browser does not allow it
  }
}

function storeQueries(queries) {
  try {
    localStorage.setItem(HISTORY, JSON.stringify(queries));
  } catch {
    // the browser does not allow it
  }
}

const list = document.getElementById("history");
if (location.pathname === "/login") {
  storeQueries([]);
} else if (list) {
  const { sql, catalog } = list.dataset;
  const others = storedQueries().filter((each) => each.sql !== sql || each.catalog !== catalog);
  const queries = (sql ? [{ sql, catalog }, ...others] : others).slice(0, MAX_QUERIES);
  storeQueries(queries);
  for (const each of queries) {
    const link = document.createElement("a");
    link.href = `/sql?${new URLSearchParams(each)}`;
    link.textContent = each.sql;
    const item = document.createElement("li");
    item.append(link);
    list.append(item);
  }
  list.parentElement.hidden = queries.length === 0;
}
