// First of all scripts: what the page will ask for in any case is asked for while the large scripts are still being read, and Plotly
// is read while the server works on the first answers, not after them.
(function () {
  "use strict";
  const here = document.currentScript.dataset;
  const plain = window.fetch;
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  const asked = new Map();
  for (const path of here.ask.split(" ")) {
    asked.set(path, plain(path, { method: "GET", credentials: "same-origin", headers: headers }));
  }

  const draws = !here.plain.split(" ").includes(location.pathname.replace(/(.)\/$/, "$1"));
  for (const path of draws ? here.scripts.split(" ") : []) {
    const link = document.createElement("link");
    Object.assign(link, { rel: "preload", as: "script", href: path });
    document.head.appendChild(link);
  }

  // Whoever draws waits for a promise that stands where Plotly will.
  function read() {
    if (window.Plotly) { return; }
    const script = document.createElement("script");
    script.src = here.scripts.split(" ")[0];
    window.Plotly = new Promise(function (there, failed) {
      script.onload = function () { there(window.Plotly); };
      script.onerror = function () { delete window.Plotly; failed(new Error("plotly.js could not be loaded")); };
    });
    window.Plotly.catch(function () {});
    document.body.appendChild(script);
  }

  // Who starts a replay will look at it.
  document.addEventListener("click", function (event) {
    if (event.target.closest && event.target.closest("#rp-start")) { setTimeout(read, 0); }
  });

  // Dash's scripts end two of their steps as Babel wrote them, and ask for this of its polyfill; nothing else of it is used.
  window.regeneratorRuntime = window.regeneratorRuntime || {
    mark: (body) => body,
    wrap: function (body) {
      const at = { prev: 0, next: 0, done: false, stop: function () { at.done = true; } };
      return { next: () => ({ value: body(at), done: at.done }), throw: function (error) { throw error; } };
    },
  };

  // Plotly is read once the page has asked for what it draws: before, it would keep the page from asking.
  const ASKS = /"output":"[^"]*(-body\.children|\.figure)/;
  const LONGEST_MS = 1500;
  let begun = !draws;
  function begin() {
    if (!begun) {
      begun = true;
      read();
    }
  }

  window.fetch = function (what, how) {
    const found = how && how.method === "GET" && asked.get(what);
    if (found) {
      asked.delete(what);
      return found;
    }
    const answer = plain.apply(window, arguments);
    if (!begun && how && how.method === "POST") {
      setTimeout(begin, ASKS.test(how.body) ? 0 : LONGEST_MS);
    }
    return answer;
  };
})();
