// The command and the setup entry follow what is typed. Secrets are not sent before the form is.
const form = document.getElementById("fields");
let waiting;

async function follow() {
  const values = new URLSearchParams();
  for (const field of form.elements) if (field.name && field.type !== "password" && field.type !== "hidden" && field.name !== "action") values.set(field.name, field.value);
  const answer = await fetch(`${form.getAttribute("action")}.json?${values}`);
  if (!answer.ok) return;
  const found = await answer.json();
  for (const name of ["command", "entry"]) {
    const shown = document.getElementById(name);
    if (shown) shown.textContent = found[name];
  }
}

form.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(follow, 150);
});
