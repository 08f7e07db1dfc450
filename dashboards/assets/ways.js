// Brushing over the trials of a study: everything between a box and the repainted lines happens in the browser.
(function () {
  "use strict";
  const api = (window.dash_clientside = window.dash_clientside || {});
  const FIGURE = "tn-ways";
  let shown = null;
  let painted = null;
  let chosen = null;

  function parse(text) {
    const found = new Map();
    for (const part of (text || "").split(",")) {
      const match = /^(\d+):([\d.]+)-([\d.]+)$/.exec(part);
      if (match) { found.set(Number(match[1]), [Number(match[2]), Number(match[3])]); }
    }
    return found;
  }

  function write(ranges) {
    const short = (value) => Number(Math.min(1, Math.max(0, value)).toFixed(3)).toString();
    return [...ranges].sort((a, b) => a[0] - b[0]).map(([axis, [low, high]]) => axis + ":" + short(low) + "-" + short(high)).join(",");
  }

  function plot(name) {
    const box = document.getElementById(name);
    return box && box.querySelector(".js-plotly-plot");
  }

  // One path through all lines that are kept, a gap after each.
  function lines(ways, from, to, kept) {
    const axes = ways.place.length;
    const x = [];
    const y = [];
    for (let row = from; row < to; row += 1) {
      if (!kept[row]) { continue; }
      for (let axis = 0; axis < axes; axis += 1) {
        const value = ways.place[axis][row];
        x.push(axis);
        y.push(value < 0 ? null : value);
      }
      x.push(null);
      y.push(null);
    }
    return [x, y];
  }

  function mark(name, numbers) {
    const figure = plot(name);
    if (figure) { api.dots.mark(figure, numbers); }
  }

  // Plotly has an element for every line; one path for all of a trace is drawn many times faster. Plotly's own data of such a trace
  // is a place out of sight, which keeps the trace; ``whole`` is what is drawn (charts.js saves it).
  function stroke(figure, found) {
    const groups = api.dots.groups(figure);
    const { xaxis, yaxis } = figure._fullLayout;
    const boxes = found.map((_, at) => groups.get(at) && groups.get(at).querySelector(".lines"));
    if (!xaxis || !yaxis || boxes.some((box) => !box)) { return false; }
    figure.whole = { ...figure.whole };
    figure.strokes = [...(figure.strokes || [])];
    boxes.forEach(function (box, at) {
      if (!found[at]) { return; }
      const [x, y] = found[at];
      let text = "";
      let pen = "M";
      for (let i = 0; i < x.length; i += 1) {
        if (x[i] === null || y[i] === null) { pen = "M"; continue; }
        text += pen + xaxis.c2p(x[i]).toFixed(1) + "," + yaxis.c2p(y[i]).toFixed(1);
        pen = "L";
      }
      const [path, ...others] = box.querySelectorAll("path.js-line");
      const line = path || box.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
      const look = groups.get(at).__data__[0].trace.line;
      line.setAttribute("class", "js-line");
      Object.assign(line.style, { fill: "none", stroke: look.color, strokeWidth: look.width + "px" });
      line.setAttribute("d", text || "M0,0");
      others.forEach((path) => path.remove());
      figure.whole[at] = { x: x, y: y };
      figure.strokes[at] = [line, text || "M0,0"];
    });
    return true;
  }

  // Whether the lines are still there: Plotly draws a figure anew in another size or theme.
  function stroked(figure) {
    return Boolean(figure.strokes) && figure.strokes.every(([line, text]) => line.isConnected && line.getAttribute("d") === text);
  }

  function outline(figure, ranges, axes) {
    const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim() || "#0072b2";
    const fixed = [];
    for (let axis = 0; axis < axes; axis += 1) {
      fixed.push((figure.layout.shapes || [])[axis]);
    }
    const boxes = [...ranges].map(([axis, [low, high]]) => ({
      type: "rect", x0: axis - 0.06, x1: axis + 0.06, y0: low, y1: high, line: { color: accent, width: 2 }, fillcolor: accent, opacity: 0.25,
    }));
    return fixed.concat(boxes);
  }

  function paint(text) {
    const figure = plot(FIGURE);
    const ways = shown && shown.ways;
    if (!figure || !ways || !figure._fullLayout) { return false; }
    const token = text + "|" + ways.trial.length + "|" + (figure._fullLayout._uid || "");
    const there = figure.of === ways && stroked(figure);
    if (there && painted === token && figure.dataset.brushed === token) { return true; }
    const ranges = parse(text);
    const n = ways.trial.length;
    const kept = new Uint8Array(n).fill(1);
    for (const [axis, [low, high]] of ranges) {
      const place = ways.place[axis];
      if (!place) { continue; }
      for (let row = 0; row < n; row += 1) {
        if (place[row] < low - 1e-6 || place[row] > high + 1e-6) { kept[row] = 0; }
      }
    }
    const best = lines(ways, 0, ways.best, kept);
    const rest = lines(ways, ways.best, n, kept);
    const all = there ? null : lines(ways, 0, n, new Uint8Array(n).fill(1));
    if (!stroke(figure, [all, rest, best])) { return false; }
    figure.of = ways;
    if (ranges.size || figure.dataset.brushed) {
      const boxes = { shapes: outline(figure, ranges, ways.place.length), selections: [] };
      window.Plotly.update(figure, {}, boxes);  // relayout would tell Dash, which would draw all of it anew
    }
    painted = token;
    figure.dataset.brushed = token;
    if (ranges.size || chosen) { window.setTimeout(function () { follow(ways, kept, ranges.size > 0); }, 0); }
    return true;
  }

  // The other figures and the grid come after the lines.
  function follow(ways, kept, brushed) {
    const numbers = new Set();
    for (let row = 0; row < ways.trial.length; row += 1) { if (kept[row]) { numbers.add(ways.trial[row]); } }
    chosen = brushed ? numbers : null;
    mark("tn-history", brushed ? numbers : null);
    mark("tn-front", brushed ? numbers : null);
    list(listed(shown.rows));
    const count = numbers.size.toLocaleString("en") + " of " + ways.trial.length.toLocaleString("en") + " trials are marked";
    api.set_props("tn-chosen", { children: brushed ? count : "" });
  }

  // The grid itself is told: Dash would look through all rows first.
  function list(rows) {
    try {
      window.dash_ag_grid.getApi("tn-grid").setGridOption("rowData", rows);
    } catch (missing) {
      api.set_props("tn-grid", { rowData: rows });
    }
  }

  function listed(rows) {
    return chosen ? rows.filter((row) => chosen.has(row.trial)) : rows;
  }

  function go(query) {
    const text = query.toString().replace(/%3A/g, ":").replace(/%2C/g, ",");
    const next = text ? "?" + text : "";
    if (next !== location.search) { api.set_props("url", { search: next }); }
  }

  function brush(ranges) {
    const query = new URLSearchParams(location.search);
    const text = write(ranges);
    if (text) { query.set("br", text); } else { query.delete("br"); }
    paint(text);
    go(query);
  }

  function boxed(box) {
    const ranges = parse(new URLSearchParams(location.search).get("br"));
    const x = [...box.range.x].sort((a, b) => a - b);
    const y = [...box.range.y].sort((a, b) => a - b);
    const axes = shown.ways.place.length;
    const inside = [];
    for (let axis = 0; axis < axes; axis += 1) { if (axis >= x[0] && axis <= x[1]) { inside.push(axis); } }
    if (!inside.length) { inside.push(Math.min(axes - 1, Math.max(0, Math.round((x[0] + x[1]) / 2)))); }
    for (const axis of inside) { ranges.set(axis, [Math.max(0, y[0]), Math.min(1, y[1])]); }
    brush(ranges);
  }

  function listen() {
    const figure = plot(FIGURE);
    if (!figure || !figure.on || figure.dataset.heard) { return; }
    figure.dataset.heard = "yes";
    figure.on("plotly_selected", function (box) { if (box && box.range && shown && shown.ways) { boxed(box); } });
    figure.on("plotly_deselect", function () { brush(new Map()); });
    figure.on("plotly_doubleclick", function () { brush(new Map()); });
    figure.on("plotly_afterplot", function () { window.clearTimeout(waiting); waiting = window.setTimeout(settle, 0); });
  }

  // A figure that React has just put there is drawn a moment later, on a busy machine a long one.
  let waiting = 0;
  function settle() {
    window.clearTimeout(waiting);
    if (!document.getElementById("tn-body")) { return; }
    listen();
    const figure = plot(FIGURE);
    const text = new URLSearchParams(location.search).get("br") || "";
    const dots = ["tn-history", "tn-front"].map(api.dots.keep).every(Boolean);
    if (shown && !shown.ways && dots) { return; }
    if (!(dots && figure && figure.dataset.heard && figure._fullLayout && paint(text))) { waiting = window.setTimeout(settle, 30); }
  }

  api.ways = {
    // Which experiment: the latest one needs no key.
    pick: function (value, search, options) {
      const query = new URLSearchParams(search || "");
      const first = options && options.length ? options[0].value : null;
      if (value !== null && value !== undefined && (query.get("exp") || String(first)) !== String(value)) {
        query.set("exp", value);
        go(query);
      }
      return api.no_update;
    },
    rows: function (data) {
      if (!new URLSearchParams(location.search).get("br")) { chosen = null; }
      return data && data.rows ? listed(data.rows) : [];
    },
    paint: function (search, data) {
      if (data) {
        shown = data;
        const axes = data.ways ? data.ways.axes : [];
        api.set_props("tn-axis", { options: axes.map((axis, at) => ({ value: at, label: axis.name })) });
      }
      settle();
      return api.no_update;
    },
    choose: function (study, rows, axis, from, to, clear, search, drawn) {
      const query = new URLSearchParams(search || "");
      for (const each of api.callback_context.triggered) {
        if (each.prop_id === "tn-study.value" && study && drawn && study !== drawn[0]) {
          query.set("study", study);
          query.delete("trial");
          query.delete("br");
          go(query);
        }
        if (each.prop_id === "tn-grid.selectedRows" && rows && rows.length) {
          query.set("trial", rows[0].trial);
          go(query);
        }
        if (each.prop_id === "tn-clear.n_clicks" && clear) { brush(new Map()); }
        if (each.prop_id === "tn-axis.value") {
          const found = shown && shown.ways && axis !== null && axis !== undefined ? shown.ways.axes[axis] : null;
          const levels = found ? found.ticks.map((tick, at) => ({ value: found.at[at], label: tick })) : [];
          api.set_props("tn-from", { options: levels, value: null });
          api.set_props("tn-to", { options: levels, value: null });
        }
        const number = (value) => value !== null && value !== undefined;
        if ((each.prop_id === "tn-from.value" || each.prop_id === "tn-to.value") && number(axis) && (number(from) || number(to))) {
          const ranges = parse(query.get("br"));
          const low = number(from) ? from : 0;
          const high = number(to) ? to : 1;
          ranges.set(axis, [Math.min(low, high), Math.max(low, high)]);
          brush(ranges);
        }
      }
      return api.no_update;
    },
  };
})();
