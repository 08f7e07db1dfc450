// In place of the grid's script, which is a third of all scripts and drawn on two pages: it is read when a grid is first drawn.
(function () {
  "use strict";
  const from = document.currentScript.src + "?whole";
  let reading = null;
  function read() {
    reading = reading || new Promise(function (there, failed) {
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
    return reading;
  }
  const Grid = React.lazy(read);
  function AgGrid(props) {
    return React.createElement(React.Suspense, { fallback: null }, React.createElement(Grid, props));
  }
  AgGrid.dashRenderType = true;
  window.dash_ag_grid = { AgGrid: AgGrid };
})();
