// What the page is made of. Every string of the data goes through a text node: it is shown, and never read as HTML.
"use strict";
const at = (id) => document.getElementById(id);
const run = JSON.parse(at("data").textContent), { words } = run;
const lanes = { main: run, plain: run.plain };

function make(name, about, ...inside) {
  const svg = ["svg", "rect", "line", "polyline"].includes(name) && "http://www.w3.org/2000/svg";
  const element = svg ? document.createElementNS(svg, name) : document.createElement(name);
  for (const [key, value] of Object.entries(about ?? {})) element.setAttribute(key, value);
  element.append(...inside.flat(Infinity).filter((one) => one !== null));
  return element;
}
function chance(x) { // 0 and 1 are said of nothing else
  if (x === 0 || x === 1) return String(x);
  if (x < 0.001) return x.toExponential(1);
  return x < 0.9995 ? x.toFixed(3) : x < 0.99995 ? x.toFixed(4) : "> 0.9999";
}
const percent = (x) => `${Math.round(100 * x)}\u00a0%`;
const seconds = (x) => (x < 1 ? `${+(1000 * x).toPrecision(3)} ms` : `${+x.toPrecision(3)} s`);

// A row with a bar in it, and a table of such rows.
function bar(name, share, told, about = {}, mark = null) {
  const rect = make("rect", { width: `${Math.max(100 * share, 0.4)}%`, height: "100%", rx: 2 });
  const cells = [make("svg", { "aria-hidden": "true" }, rect, mark), told].map((cell) => make("td", {}, cell));
  return make("tr", about, make("th", { scope: "row" }, name), cells);
}
const bars = (names, caption, rows) => make("table", { class: names }, make("caption", {}, caption), make("tbody", {}, rows));
