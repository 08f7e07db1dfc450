// The keyboard map that the help shows. Keys typed into a control are the control's.
(function () {
  "use strict";
  const goes = { r: "/runs", v: "/verdict", t: "/tail", l: "/timeline", q: "/requests", c: "/compare" };
  let going = false;

  function typing(target) {
    return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.closest("[role=listbox], .ag-root");
  }

  function press(selector) {
    const found = document.querySelector(selector);
    if (found) {
      found.click();
    }
    return Boolean(found);
  }

  // The rail's links keep the selection; a click on one is a move within the app.
  function go(path) {
    for (const link of document.querySelectorAll("#rail a")) {
      if (new URL(link.href).pathname === path) {
        link.click();
        return true;
      }
    }
    return false;
  }

  // Marks the next or previous of the things that a page lets one step through.
  function step(by) {
    const all = [...document.querySelectorAll("[data-step], .step")];
    if (!all.length) {
      return false;
    }
    const at = all.findIndex((each) => each.contains(document.activeElement));
    const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
    return true;
  }

  // Moves or widens the window of time in the address, by a part of what is seen.
  function travel(move, zoom) {
    const begin = document.getElementById("begin");
    const end = document.getElementById("end");
    if (!begin || !end) {
      return false;
    }
    const low = Number(begin.value);
    const high = Number(end.value);
    if (!(high > low)) {
      return false;
    }
    const middle = (low + high) / 2 + move * (high - low);
    const half = ((high - low) / 2) * zoom;
    const query = new URLSearchParams(location.search);
    query.delete("last");
    const from = Math.max(0, middle - half);
    query.set("t", Number(from.toFixed(6)) + "-" + Number((from + 2 * half).toFixed(6)));
    window.dash_clientside.set_props("url", { search: "?" + query.toString() });
    return true;
  }

  const plain = {
    j: () => step(1),
    k: () => step(-1),
    Enter: () => { const marked = document.activeElement; const way = marked && marked.classList.contains("step") && marked.querySelector("a"); if (way) { way.click(); } return Boolean(way); },
    s: () => press("#share"),
    "[": () => press("#blame-previous"),
    "]": () => press("#blame-next"),
    "?": () => press("#help-open"),
    "/": () => { const box = document.querySelector("[data-filter], .filter input"); if (box) { box.focus(); } return Boolean(box); },
    ArrowLeft: () => travel(-0.5, 1),
    ArrowRight: () => travel(0.5, 1),
    "+": () => travel(0, 0.5),
    "=": () => travel(0, 0.5),
    "-": () => travel(0, 2),
    Escape: () => { const chips = document.querySelectorAll("#chips .chip"); if (chips.length) { chips[chips.length - 1].click(); } return chips.length > 0; },
  };

  // The help: a click beside it closes it too.
  document.addEventListener("click", function (event) {
    const help = document.getElementById("help");
    const at = event.target.closest && event.target.closest("#help-open, #help-close");
    if (help && at && at.id === "help-open") { help.showModal(); }
    if (help && ((at && at.id === "help-close") || event.target === help)) { help.close(); }
  });

  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) {
      return;
    }
    if (document.querySelector("dialog[open]")) {
      return;
    }
    if (going) {
      going = false;
      if (goes[event.key] && go(goes[event.key])) {
        event.preventDefault();
      }
      return;
    }
    if (event.key === "g") {
      going = true;
      setTimeout(function () { going = false; }, 1500);
      return;
    }
    const act = plain[event.key];
    if (act && act()) {
      event.preventDefault();
    }
  });
})();
