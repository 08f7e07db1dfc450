// Links marked data-download: fetched, so that a refusal becomes a line on the page and not a page of its own.
(function () {
  "use strict";
  function say(text) {
    const line = document.getElementById("exported");
    if (line) { line.textContent = text; }
  }

  function nameOf(answer) {
    const found = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") || "");
    return found ? found[1] : "export";
  }

  function save(name, blob) {
    const url = URL.createObjectURL(blob);
    window.dash_clientside.files.save(name, url);
    window.setTimeout(() => URL.revokeObjectURL(url), 60000);
  }

  document.addEventListener("click", function (event) {
    const link = event.target.closest && event.target.closest("a[data-download]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) { return; }
    event.preventDefault();
    if (link.dataset.busy) { return; }
    link.dataset.busy = "yes";
    say("making " + link.textContent + " …");
    fetch(link.href, { credentials: "same-origin" })
      .then(async function (answer) {
        if (!answer.ok) { say(((await answer.text()).trim() || "refused").split("\n")[0].slice(0, 400)); return; }
        const name = nameOf(answer);
        save(name, await answer.blob());
        say(name + " is downloaded");
      })
      .catch(() => say("the server does not answer; nothing was downloaded"))
      .finally(() => { delete link.dataset.busy; });
  });

  // A menu over the page closes as menus do.
  document.addEventListener("keydown", function (event) {
    const menu = document.querySelector(".export-menu[open]");
    if (event.key === "Escape" && menu) { menu.open = false; menu.querySelector("summary").focus(); event.stopPropagation(); }
  }, true);
  document.addEventListener("click", function (event) {
    const menu = document.querySelector(".export-menu[open]");
    if (menu && !menu.contains(event.target)) { menu.open = false; }
  });
})();
