"use strict";
(function () {
  const stored = JSON.parse(document.getElementById("figures").textContent);
  const choice = document.getElementById("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, showSendToCloud: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  /* Arrays that figures share stand in the page once and are pointed at by number. */
  function whole(value) {
    if (Array.isArray(value)) return value.map(whole);
    if (value === null || typeof value !== "object") return value;
    const found = {};
    for (const key of Object.keys(value)) {
      found[key] = key === "bdata" && typeof value[key] === "number" ? stored.arrays[value[key]] : whole(value[key]);
    }
    return found;
  }

  function draw() {
    const theme = choice.value === "system" ? (dark.matches ? "dark" : "light") : choice.value;
    document.documentElement.dataset.theme = theme;
    for (const box of document.querySelectorAll("[data-figure]")) {
      const figure = whole(stored.figures[box.dataset.figure][theme]);
      Plotly.react(box, figure.data, figure.layout, config);
    }
  }

  choice.addEventListener("change", draw);
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", function () {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
  draw();
})();
