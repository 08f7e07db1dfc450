// In place of the grid's script, which is a third of all scripts and drawn on two pages: it is read when a grid is first drawn.
(function () {
  "use strict";
  const from = GRID_SCRIPT;
  const LONGEST_MS = 5000;
  let reading = null;

  // Grids stand below the charts of their page, which are looked at first: until those are drawn, or take long.
  function calm() {
    const began = performance.now();
    return new Promise(function (there) {
      function look() {
        const said = document.querySelector("main .verdict");
        const coming = (said && said.textContent === "Loading …")
          || [...document.querySelectorAll("main .dash-graph")].some((each) => !each.querySelector(".main-svg"));
        if (coming && performance.now() - began < LONGEST_MS) { setTimeout(look, 50); } else { there(); }
      }
      setTimeout(look, 50);  // the page around the grid is not in the document yet
    });
  }

  function fetched() {
    return new Promise(function (there, failed) {
      const script = document.createElement("script");
      script.src = from;
      script.onload = function () {
        const whole = window.dash_ag_grid;
        window.dash_ag_grid = { ...whole, AgGrid: AgGrid };
        there({ default: whole.AgGrid });
      };
      script.onerror = function () { reading = null; failed(new Error("the grid could not be loaded")); };
      document.body.appendChild(script);
    });
  }

  function read() {
    reading = reading || calm().then(fetched);
    return reading;
  }
  const Grid = React.lazy(read);
  function AgGrid(props) {
    return React.createElement(React.Suspense, { fallback: null }, React.createElement(Grid, props));
  }
  AgGrid.dashRenderType = true;
  window.dash_ag_grid = { AgGrid: AgGrid };
})();
