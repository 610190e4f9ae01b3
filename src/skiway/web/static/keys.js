// "/" moves to the search box, and Ctrl+Enter runs the query in the editor.
document.addEventListener("keydown", (event) => {
  const inField = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "/" && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("q").focus();
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "sql") {
    event.target.form.requestSubmit();
  }
});
