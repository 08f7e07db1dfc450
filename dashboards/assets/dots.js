// Points of a chart as one path a trace, or two where some are faded: Plotly has an element for each, which takes seconds where
// there are thousands. Plotly keeps one of them (`maxdisplayed`), knows all, and says which one the mouse is at.
(function () {
  "use strict";
  const api = (window.dash_clientside = window.dash_clientside || {});
  const SVG = "http://www.w3.org/2000/svg";
  const SHAPES = {
    circle: (x, y, r) => "M" + (x - r).toFixed(1) + "," + y.toFixed(1) + "a" + r + "," + r + " 0 1,0 " + 2 * r + ",0a" + r + "," + r + " 0 1,0 "
      + -2 * r + ",0",
    x: (x, y, r) => "M" + (x - r).toFixed(1) + "," + (y - r).toFixed(1) + "l" + 2 * r + "," + 2 * r + "m0," + -2 * r + "l" + -2 * r + "," + 2 * r,
    diamond: (x, y, r) => "M" + (x - r).toFixed(1) + "," + y.toFixed(1) + "l" + r + "," + -r + "l" + r + "," + r + "l" + -r + "," + r + "z",
  };

  // What is drawn of each trace of lines or points.
  function groups(figure) {
    const found = new Map();
    for (const group of figure.querySelectorAll(".scatterlayer > .trace")) {
      const trace = group.__data__ && group.__data__[0] && group.__data__[0].trace;
      if (trace) { found.set(trace.index, group); }
    }
    return found;
  }

  function ours(trace) { return Boolean(trace.marker && trace.marker.maxdisplayed && trace.customdata); }

  function path(group, look, faded, d) {
    const line = document.createElementNS(SVG, "path");
    const open = /-open$/.test(look.symbol) || look.symbol === "x";
    line.setAttribute("class", faded ? "dots faded" : "dots");
    line.setAttribute("d", d);
    Object.assign(line.style, {
      fill: open ? "none" : look.color, stroke: open ? look.color : "none", strokeWidth: look.symbol === "x" ? "1.5px" : "1px",
      opacity: faded ? 0.12 : look.opacity,
    });
    group.append(line);
  }

  // Draw the points of a figure anew; false while there is nothing to draw on.
  function draw(figure) {
    const { xaxis, yaxis } = figure._fullLayout || {};
    if (!xaxis || !yaxis || !figure.calcdata) { return false; }
    const found = groups(figure);
    for (const points of figure.calcdata) {
      const trace = points[0] && points[0].trace;
      if (!trace || !ours(trace)) { continue; }
      const group = found.get(trace.index) && found.get(trace.index).querySelector(".points");
      if (!group) { return false; }
      const look = trace.marker;
      const shape = SHAPES[look.symbol.replace("-open", "")] || SHAPES.circle;
      const r = look.symbol === "diamond" ? 0.65 * look.size : look.symbol === "x" ? 0.45 * look.size : look.size / 2;
      const texts = ["", ""];
      for (const point of points) {
        const faded = figure.kept && !figure.kept.has(trace.customdata[point.i]);
        texts[faded ? 1 : 0] += shape(xaxis.c2p(point.x), yaxis.c2p(point.y), r);
      }
      group.replaceChildren();
      texts.forEach((text, at) => { if (text) { path(group, look, at === 1, text); } });
    }
    return true;
  }

  // Those of these numbers stay as they are, the others fade; null: all stay.
  function mark(figure, numbers) {
    figure.kept = numbers;
    (figure.data || []).forEach(function (trace, at) {
      const full = figure._fullData && figure._fullData[at];
      if (!full || !ours(full)) { return; }
      const found = [];
      if (numbers) { full.customdata.forEach((id, i) => { if (numbers.has(id)) { found.push(i); } }); }
      trace.selectedpoints = numbers ? found : null;
    });
    draw(figure);
  }

  // Keep the points of a figure drawn, whenever Plotly draws it; false while it is not there yet.
  function keep(name) {
    const box = document.getElementById(name);
    const figure = box && box.querySelector(".js-plotly-plot");
    if (!box || (figure && figure.dataset.dots)) { return true; }
    if (!figure || !figure.on || !draw(figure)) { return false; }
    figure.dataset.dots = "yes";
    figure.on("plotly_afterplot", function () { draw(figure); });
    return true;
  }

  api.dots = { groups: groups, keep: keep, mark: mark };
})();
