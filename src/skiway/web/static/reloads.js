// A page whose content is incomplete loads itself again. If a search has replaced it meanwhile, the answer is not shown.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { elt } = event.detail.requestConfig;
  if (elt.matches(".notice") && !document.contains(elt)) {
    event.detail.shouldSwap = false;
  }
});
