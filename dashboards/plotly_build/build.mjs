// Makes plotly-charts.min.js: Plotly's published sources with the kinds of traces that pages draw, and without what only describes
// attributes. `npm install --ignore-scripts && node build.mjs` in a copy of this folder; nobody needs it to run tracekit.
import { parse } from "acorn";
import { simple } from "acorn-walk";
import { build } from "esbuild";
import { environmentPlugin } from "esbuild-plugin-environment";
import css from "esbuild-plugin-inline-css";
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";

const TRACES = ["bar", "heatmap"]; // lines and points come with the core
const { version } = JSON.parse(readFileSync("node_modules/plotly.js/package.json", "utf8"));

const TEXT = new Set(["Literal", "TemplateLiteral", "BinaryExpression", "CallExpression"]);
// Attributes carry their documentation, which nothing reads at run time.
const undescribed = {
  name: "undescribed",
  setup(made) {
    made.onLoad({ filter: /plotly\.js\/src\/.*\.js$/ }, function ({ path }) {
      const text = readFileSync(path, "utf8");
      const cuts = [];
      simple(parse(text, { ecmaVersion: "latest" }), {
        ObjectExpression(node) {
          for (const each of node.properties) {
            const told = each.type === "Property" && each.key.name === "description" && TEXT.has(each.value.type);
            if (told && !cuts.some(([start, end]) => start <= each.start && each.end <= end)) {
              cuts.push([each.value.start, each.value.end]);
            }
          }
        },
      });
      let kept = text;
      for (const [start, end] of cuts.sort((a, b) => b[0] - a[0])) { kept = kept.slice(0, start) + '""' + kept.slice(end); }
      return { contents: kept, loader: "js" };
    });
    // styles of maps, which are not drawn
    made.onLoad({ filter: /maplibre-gl\.css$/ }, () => ({ contents: "", loader: "js" }));
  },
};

const result = await build({
  stdin: {
    contents: `const Plotly = require("plotly.js/src/core");
      Plotly.register([${TRACES.map((each) => `require("plotly.js/lib/${each}")`)}]);
      module.exports = Plotly;`,
    resolveDir: ".",
  },
  outfile: "plotly-charts.min.js",
  format: "iife",
  globalName: "Plotly",
  bundle: true,
  minify: true,
  charset: "utf8",
  legalComments: "eof",
  target: "es2022",
  banner: { js: `/**\n* plotly.js (scatter, ${TRACES.join(", ")} - minified) v${version}\n* Copyright 2012-2026, Plotly, Inc. and others: LICENSE beside this file\n*/` },
  define: { global: "window", "define.amd": "false" },
  alias: { stream: "stream-browserify" },
  plugins: [undescribed, (css.default || css)(), environmentPlugin({ NODE_DEBUG: false })],
  metafile: true,
});
// What is in it is others' work: their licences beside it.
const made = Object.values(result.metafile.outputs)[0];
const packages = new Set();
for (const [name, { bytesInOutput }] of Object.entries(made.inputs)) {
  const found = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(name);
  if (found && bytesInOutput) { packages.add(found[1]); }
}
const said = [...packages].sort().map(function (folder) {
  const about = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const text = existsSync(folder) && readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  const told = text ? readFileSync(`${folder}/${text}`, "utf8").trim() : "(no text in the package)";
  return `${about.name} ${about.version}: ${about.license || "see below"}\n\n${told}\n`;
});
writeFileSync("LICENSE", said.join(`\n${"-".repeat(100)}\n\n`));
console.log(`${made.bytes} bytes, ${packages.size} packages`);
