// What the dashboard does without asking the server: themes, and controls that write the address.
(function () {
  "use strict";
  const api = (window.dash_clientside = window.dash_clientside || {});
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 800px)");
  const THEMES = { system: "as the system", light: "light", dark: "dark" };
  const KEPT = "tracekit.theme";
  let choice = kept();

  // What somebody chose on this machine; a browser may keep nothing for us.
  function kept() {
    try {
      const found = localStorage.getItem(KEPT);
      return found in THEMES ? found : "system";
    } catch (refused) { return "system"; }
  }

  function effective() {
    return choice === "system" ? (dark.matches ? "dark" : "light") : choice;
  }

  function paint() {
    document.documentElement.dataset.theme = effective();
    return effective();
  }

  function repaint() { api.set_props("theme", { data: paint() }); }

  function choose(name) {
    choice = name;
    try { localStorage.setItem(KEPT, name); } catch (refused) { /* it holds as long as the page */ }
    repaint();
  }

  // The themes as radio buttons, once there is a place for them: Dash has no plain ones.
  function offer(box) {
    for (const [name, text] of Object.entries(THEMES)) {
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name: "theme", value: name, checked: name === choice });
      input.addEventListener("change", function () { choose(name); });
      const label = document.createElement("label");
      label.append(input, text);
      box.append(label);
    }
  }

  dark.addEventListener("change", function () { if (choice === "system") { repaint(); } });
  paint();
  document.documentElement.lang = "en";
  // What components leave behind that a keyboard or a screen reader trips over: hidden fields in the order of tabs, fields without a name.
  let mending = false;
  function mend() {
    mending = false;
    const themes = document.getElementById("themes");
    if (themes && !themes.firstChild) { offer(themes); }
    for (const each of document.querySelectorAll('.dash-dropdown-focus-target[tabindex="0"]')) { each.tabIndex = -1; }
    for (const each of document.querySelectorAll("input[type=file]:not([aria-label])")) { each.setAttribute("aria-label", "Choose a file"); }
  }
  new MutationObserver(function () {
    if (!mending) {
      mending = true;
      requestAnimationFrame(mend);
    }
  }).observe(document.documentElement, { childList: true, subtree: true });
  narrow.addEventListener("change", function () {
    api.set_props("narrow", { data: narrow.matches });
  });

  function number(value) {
    return Number(Number(value).toFixed(9)).toString();
  }

  // Where a zoom or a double-click on any strip leads: [begin, end], null for the whole run, undefined for neither.
  function zoomed(layout) {
    if (!layout) {
      return undefined;
    }
    if (layout["xaxis.autorange"]) {
      return null;
    }
    if ("xaxis.range[0]" in layout) {
      return [layout["xaxis.range[0]"], layout["xaxis.range[1]"]];
    }
    return Array.isArray(layout["xaxis.range"]) ? layout["xaxis.range"] : undefined;
  }

  function setWindow(query, range) {
    query.delete("t");
    query.delete("last");
    if (range) {
      const begin = Math.max(0, Number(range[0]));
      const end = Number(range[1]);
      if (end > begin) {
        query.set("t", number(begin) + "-" + number(end));
      }
    }
  }

  function changed(what, values, drawn, query) {
    if (what === "run.value") {
      if (!values.run || values.run === drawn.run) {
        return false;
      }
      query.set("run", values.run);
      query.delete("replica");
      setWindow(query, null);
    } else if (what === "replica.value") {
      if (values.replica === null || values.replica === drawn.replica) {
        return false;
      }
      query.set("replica", values.replica);
    } else if (what === "window.value") {
      if (!values.window || values.window === drawn.window) {
        return false;
      }
      if (values.window === "range") {
        setWindow(query, [drawn.begin, drawn.end]);
      } else {
        setWindow(query, null);
        if (values.window !== "all") {
          query.set("last", values.window);
        }
      }
    } else if (what === "unit.value") {
      if (!values.unit || values.unit === (drawn.unit || "tokens")) {
        return false;
      }
      if (values.unit === "tokens") { query.delete("y"); } else { query.set("y", values.unit); }
    } else if (what === "begin.value" || what === "end.value") {
      const begin = Number(values.begin || NaN);
      const end = Number(values.end || NaN);
      const same = values.begin === drawn.begin && values.end === drawn.end;
      if (same || !isFinite(begin) || !(end > begin)) {
        return false;
      }
      setWindow(query, [values.begin, values.end]);
    } else if (what === "whole.n_clicks") {
      setWindow(query, null);
    } else if (what === "timeline.relayoutData") {
      const range = zoomed(values.relayout);
      if (range === undefined) {
        return false;
      }
      setWindow(query, range);
    }
    return true;
  }

  api.tracekit = {
    theme: function () { return [effective(), narrow.matches]; },
    share: function () {
      const copied = navigator.clipboard ? navigator.clipboard.writeText(location.href) : Promise.reject();
      return copied.then(
        function () { return "the address of this view is copied"; },
        function () { return "copy the address above: it is this view"; }
      );
    },
    // Class, tenant, latency and the row picked in the grid go into the address.
    choose: function (cls, tenant, metric, rows, search) {
      const query = new URLSearchParams(search || "");
      const put = function (key, value) {
        if (value === null || value === undefined || value === "") {
          query.delete(key);
        } else {
          query.set(key, value);
        }
      };
      for (const each of api.callback_context.triggered) {
        if (each.prop_id === "rq-class.value") { put("cls", cls); }
        if (each.prop_id === "rq-tenant.value") { put("tenant", tenant); }
        if (each.prop_id === "rq-metric.value") { put("m", metric === "ttft" ? null : metric); }
        if (each.prop_id === "requests-grid.selectedRows" && rows && rows.length) { put("req", rows[0].request); }
      }
      const text = query.toString().replace(/%2C/g, ",");
      const next = text ? "?" + text : "";
      if (next !== (search || "")) {
        api.set_props("url", { search: next });
      }
      return api.no_update;
    },
    // A box on the map of the tail selects by arrival and by latency, whatever window is looked at; its latency axis is in powers of ten.
    brush: function (box, metric, cls, from, to, search) {
      const query = new URLSearchParams(search || "");
      const put = function (key, value) {
        if (value === null || value === undefined || value === "") { query.delete(key); } else { query.set(key, value); }
      };
      for (const each of api.callback_context.triggered) {
        if (each.prop_id === "tl-map.selectedData" && box && box.range && box.range.x) {
          const x = [...box.range.x].map(Number).sort(function (a, b) { return a - b; });
          if (x[1] > 0) { put("arr", number(Math.max(0, x[0])) + "-" + number(x[1])); }
          const y = [...box.range.y].sort(function (a, b) { return a - b; });
          put("lat", number(Math.pow(10, y[0])) + "-" + number(Math.pow(10, y[1])));
        }
        if (each.prop_id === "tl-metric.value" && metric) {
          if ((query.get("m") || "ttft") !== metric) { put("lat", null); }
          put("m", metric === "ttft" ? null : metric);
        }
        if (each.prop_id === "tl-class.value") { put("cls", cls); }
        if (each.prop_id === "tl-from.value" || each.prop_id === "tl-to.value") {
          const low = Number(from || 0);
          const high = Number(to || 1e8);
          if (isFinite(low) && high > low) { put("lat", from || to ? number(low) + "-" + number(high) : null); }
        }
      }
      const text = query.toString();
      const next = text ? "?" + text : "";
      if (next !== (search || "")) { api.set_props("url", { search: next }); }
      return api.no_update;
    },
    // The two runs that are compared; the first is the run of all other pages too.
    pair: function (run, other, metric, cls, tenant, more, search, options) {
      const query = new URLSearchParams(search || "");
      const put = function (key, value) { if (value) { query.set(key, value); } else { query.delete(key); } };
      for (const each of api.callback_context.triggered) {
        const known = (options || []).map(function (option) { return option.value; });
        if (each.prop_id === "cp-run.value" && run && query.get("run") !== run) {
          // the latest run may be called last: choosing it by its number changes nothing
          if (query.get("run") || run !== known[0]) { put("run", run); }
        }
        if (each.prop_id === "cp-other.value") { put("cmp", other); }
        if (each.prop_id === "cp-class.value") { put("cls", cls); }
        if (each.prop_id === "cp-tenant.value") { put("tenant", tenant); }
        if (each.prop_id === "cp-more.value") { put("also", (more || []).slice(0, 10).join(",")); }
        if (each.prop_id === "cp-metric.value" && metric) { put("m", metric === "ttft" ? null : metric); }
      }
      const text = query.toString().replace(/%2C/g, ",");
      const next = text ? "?" + text : "";
      if (next !== (search || "")) { api.set_props("url", { search: next }); }
      return api.no_update;
    },
    // While paused, what is under way is not asked for again; what is shown stays.
    pause: function (clicks) {
      const paused = Boolean((clicks || 0) % 2);
      return [paused, paused ? "Show news again" : "Pause this page", String(paused)];
    },
    same: function (value) {
      return value;
    },
    navigate: function (run, replica, span, begin, end, unit, whole, relayout, search, drawn) {
      const query = new URLSearchParams(search || "");
      const values = { run: run, replica: replica, window: span, begin: begin, end: end, unit: unit, relayout: relayout };
      let moved = false;
      for (const each of api.callback_context.triggered) {
        moved = changed(each.prop_id, values, drawn || {}, query) || moved;
      }
      const text = query.toString();
      const next = text ? "?" + text : "";
      if (moved && next !== (search || "")) {
        api.set_props("url", { search: next });
      }
      return api.no_update;
    },
  };
})();
