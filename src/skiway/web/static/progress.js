// The page of a job follows its progress: the server sends an event when something has changed, and ends the stream with the job.
const job = document.querySelector("[data-progress]");

if (job) {
  const events = new EventSource(job.dataset.progress);
  events.addEventListener("message", async () => {
    const answer = await fetch(location.pathname);
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("job");
    const shown = document.getElementById("job");
    if (!fresh || !shown) return;
    shown.replaceChildren(...fresh.childNodes);
    shown.dispatchEvent(new CustomEvent("htmx:afterSettle", { bubbles: true })); // the new parts get their buttons
  });
  events.addEventListener("end", () => events.close());
}
