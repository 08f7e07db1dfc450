// Copying flags; saving charts, and their tables: both made in the browser, of what is drawn, when somebody asks.
(function () {
  "use strict";
  // Dark colours and what they are on paper (dashboards/palette.py): an image is light unless it is asked for as it is.
  const PRINTED = {
    "#111827": "#ffffff", "#e5e7eb": "#1f2937", "#a3adbb": "#5b6472", "#2a3546": "#e5e7eb", "#0b1220": "#1f2937",
    "rgba(209,213,219,0.22)": "rgba(75,85,99,0.22)", "rgba(209,213,219,0.55)": "rgba(75,85,99,0.55)", "#f3f4f6": "#111827",
    "#f29bcb": "#8a2c6e", "rgba(242,155,203,0.25)": "rgba(138,44,110,0.22)", "rgba(255,138,61,0.50)": "rgba(213,94,0,0.45)",
    "rgba(209,213,219,0.09)": "rgba(75,85,99,0.09)",
    "#1c7fc4": "#0072b2", "#ff8a3d": "#b34700", "#e69f00": "#c27d00", "#56b4e9": "#2f97d3",
  };
  const DARK = new RegExp(Object.keys(PRINTED).map((each) => each.replace(/[.()]/g, "\\$&")).join("|"), "gi");

  function drawn(name) {
    const box = document.getElementById(name);
    return box && box.querySelector(".js-plotly-plot");
  }

  function printed(value) {
    if (typeof value === "string") {
      return value.length < 40 ? value.replace(DARK, (found) => PRINTED[found.toLowerCase()]) : value;
    }
    if (Array.isArray(value)) { return value.map(printed); }
    if (value && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype) {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, printed(each)]));
    }
    return value;
  }

  function save(name, url) {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
  }
  const api = (window.dash_clientside = window.dash_clientside || {});
  api.files = { save: save };

  // Traces with all that is drawn of them, where a page draws what Plotly does not (ways.js, dots.js).
  function whole(figure, traces) {
    const all = (trace) => trace.marker && trace.marker.maxdisplayed ? { ...trace, marker: { ...trace.marker, maxdisplayed: 0 } } : trace;
    return traces.map((trace, at) => ({ ...all(trace), ...(figure.whole && figure.whole[at]) }));
  }

  function image(figure, name, kind, asItIs) {
    const dark = document.documentElement.dataset.theme === "dark" && !asItIs;
    const change = dark ? printed : (each) => each;
    const size = figure._fullLayout;
    const copy = { data: change(whole(figure, figure.data)), layout: { ...change(figure.layout), width: size.width, height: size.height } };
    const scale = kind === "png" ? 2 : 1;
    return window.Plotly.toImage(copy, { format: kind, width: size.width, height: size.height, scale: scale })
      .then((url) => save(name + "." + kind, url));
  }

  function cell(value) {
    if (value === null || value === undefined || (typeof value === "number" && !isFinite(value))) { return ""; }
    const text = String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) && !/^[+\-]?[\d.]/.test(text) ? "'" + text : text;
    return /[",\n\r]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
  }

  // What is drawn by its logarithm is saved as it is: a trace says so in its meta. A map's empty fields are no rows then, and its
  // points rows of one.
  function plain(value, scale) {
    return scale === "log10" ? Number(Math.pow(10, value).toPrecision(6)) : scale === "log1p" ? Math.round(Math.expm1(value)) : value;
  }

  function rowsOf(trace, heat) {
    const name = trace.name || "";
    const meta = trace.meta || {};
    const y = meta.y ? Array.from(trace.y || [], (each) => plain(each, meta.y)) : trace.y || [];
    const x = trace.x || Array.from(y, (_, at) => trace.x0 + at * trace.dx);
    if (trace.type === "heatmap") {
      const found = [];
      for (let row = 0; row < y.length; row += 1) {
        for (let at = 0; at < trace.z[row].length; at += 1) {
          const value = plain(trace.z[row][at], meta.z);
          if (value || !meta.z) { found.push([y[row], x[at], value, "", ""]); }
        }
      }
      return found;
    }
    const error = trace.error_x && trace.error_x.array ? trace.error_x : null;
    const ids = trace.customdata || [];
    if (heat) { return Array.from(x, (value, at) => [y[at], value, 1, ids[at], ""]); }
    return Array.from(x, (value, at) => [name, value, y[at], error ? value - error.arrayminus[at] : ids[at],
      error ? value + error.array[at] : ""]);
  }

  // Series, x, y; then what else is drawn: the ends of an interval, or whose point it is.
  function table(figure) {
    const full = whole(figure, figure._fullData || []);
    const titles = figure.layout || {};
    const title = (axis, plain) => ((titles[axis] && titles[axis].title && titles[axis].title.text) || plain);
    const error = full.some((trace) => trace.error_x && trace.error_x.array);
    const heat = full.find((trace) => trace.type === "heatmap");
    const named = (heat && heat.meta) || {};
    const head = heat ? [named.name || "engine or row", title("xaxis", "x"), named.value || "value", "id", ""]
      : ["series", title("xaxis", "x"), title("yaxis", "y"), error ? "low" : "id", error ? "high" : ""];
    const rows = [].concat(...full.filter((trace) => trace.visible !== "legendonly").map((trace) => rowsOf(trace, heat)));
    const used = head.map((_, at) => at < 3 || rows.some((row) => cell(row[at]) !== ""));
    return [head, ...rows].map((row) => row.filter((_, at) => used[at]).map(cell).join(",")).join("\r\n") + "\r\n";
  }

  document.addEventListener("click", function (event) {
    const copy = event.target.closest && event.target.closest("[data-copy]");
    if (!copy) { return; }
    const label = copy.dataset.label = copy.dataset.label || copy.textContent;
    const say = function (text) {
      copy.textContent = text;
      window.setTimeout(() => { copy.textContent = label; }, 3000);
    };
    // Over plain HTTP from another machine there is no clipboard: then what is to be copied is selected.
    const copied = navigator.clipboard ? navigator.clipboard.writeText(copy.dataset.copy) : Promise.reject();
    copied.then(() => say("Copied"), function () {
      const text = copy.parentElement.querySelector(".flags");
      if (text) { window.getSelection().selectAllChildren(text); }
      say("Selected: copy it");
    });
  });

  document.addEventListener("click", function (event) {
    const button = event.target.closest && event.target.closest("[data-export]");
    if (!button) { return; }
    const name = button.dataset.chart;
    const figure = drawn(name);
    if (!figure || !figure._fullLayout) { return; }
    if (button.dataset.export === "csv") {
      const url = URL.createObjectURL(new Blob([table(figure)], { type: "text/csv" }));
      save(name + ".csv", url);
      window.setTimeout(() => URL.revokeObjectURL(url), 60000);
      return;
    }
    image(figure, name, button.dataset.export, event.shiftKey);
  });

  function fill(box) {
    const told = JSON.parse(box.dataset.table);
    const made = document.createElement("table");
    made.className = "data";
    made.createCaption().textContent = told.caption;
    const head = made.createTHead().insertRow();
    told.head.forEach(function (text, at) {
      const th = document.createElement("th");
      th.scope = "col";
      th.textContent = text;
      th.className = at >= 1 ? "number" : "";
      head.append(th);
    });
    const body = made.createTBody();
    for (const row of told.rows) {
      const line = body.insertRow();
      row.forEach(function (text, at) {
        const td = line.insertCell();
        td.textContent = text;
        td.className = at >= 1 ? "number" : "";
      });
    }
    box.replaceChildren(made);
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", told.caption);
  }

  document.addEventListener("toggle", function (event) {
    const details = event.target;
    if (!details.open || !details.querySelector) { return; }
    const box = details.querySelector(".told");
    if (!box) { return; }
    fill(box);
    if (!box.dataset.kept) {
      box.dataset.kept = "yes";
      new MutationObserver(function () { fill(box); }).observe(box, { attributes: true, attributeFilter: ["data-table"] });
    }
  }, true);
})();
