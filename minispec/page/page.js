// The page of a traced run. Every string of the data goes through a text node: it is shown, and never read as HTML.
"use strict";
const at = (id) => document.getElementById(id);
const run = JSON.parse(at("data").textContent), { words } = run;
const lanes = { main: run, plain: run.plain };

// --- elements, figures, tokens --------------------------------------------------------------------

function make(name, about, ...inside) {
  const svg = ["svg", "rect", "line", "polyline"].includes(name) && "http://www.w3.org/2000/svg";
  const element = svg ? document.createElementNS(svg, name) : document.createElement(name);
  for (const [key, value] of Object.entries(about ?? {})) element.setAttribute(key, value);
  element.append(...inside.flat(Infinity).filter((one) => one !== null));
  return element;
}
const chance = (x) => (x === 0 || x === 1 ? String(x) : x < 0.001 ? x.toExponential(1) : x.toFixed(3));
const percent = (x) => `${Math.round(100 * x)}\u00a0%`;
const seconds = (x) => (x < 1 ? `${+(1000 * x).toPrecision(3)} ms` : `${+x.toPrecision(3)} s`);
const bar = (share, ...more) => make("svg", { "aria-hidden": "true" }, make("rect", { width: `${Math.max(100 * share, 0.4)}%`, height: "100%", rx: 2 }), more);

// Characters that are not seen, or that move others, get a sign: line ends, controls, marks of direction, fillers.
const HIDDEN = /[\p{Cc}\p{Default_Ignorable_Code_Point}\u2028\u2029\u2800\ufff9-\ufffb]/u;
function sign(character) {
  const code = character.codePointAt(0), known = { 9: "⇥", 10: "↵", 13: "␍", 127: "␡" }[code];
  return known ?? (code < 32 ? String.fromCharCode(0x2400 + code) : `\\u${code.toString(16).padStart(4, "0")}`);
}
const signed = (text) => [...text].map((one) => (HIDDEN.test(one) ? sign(one) : one)).join("");
const pieces = (text) => text.split(/([^])/u).map((one) => (HIDDEN.test(one) ? make("span", { class: "sign" }, sign(one)) : one));
function shown(id, joined = "") { // half a character as its bytes, then what it completes
  const text = run.tokens[id];
  return typeof text === "string" ? pieces(text) : [make("span", { class: "bytes" }, `‹${text.bytes}›`), pieces(joined)];
}
function alone(id) { // where no text is around it
  const text = run.tokens[id];
  return text[0] === " " ? pieces(`␣${text.slice(1)}`) : shown(id);
}
function said(id) {
  const text = run.tokens[id];
  if (typeof text !== "string") return `the bytes ${text.bytes}`;
  return text.trim() ? `“${signed(text)}”` : text === "\n" ? "a line end" : "white space";
}

// --- the text -------------------------------------------------------------------------------------

const listed = { main: [], plain: [] }; // every token of a text in order: { lane, round, guess, element }

function token(lane, round, guess, id, kind, inside) { // guess: its number, or -1 for the target's own
  const label = `${words.kinds[kind]}: ${said(id)}, round ${round + 1}`;
  const element = make("span", { class: `t ${kind}`, role: "button", tabindex: -1, "aria-label": label }, inside);
  element.place = { lane, round, guess, element };
  return element;
}
const idOf = (round, guess) => (guess < 0 ? round.own : round.guesses[guess]).token;

function writeText(lane, box) {
  const { rounds, joined } = lanes[lane];
  const ends = (text) => (String(text).includes("\n") ? make("br") : "");
  box.append(...run.prompt.split(/(?<=\n)/).flatMap((line) => [make("span", { class: "prompt" }, pieces(line)), ends(line)]));
  let place = 0;
  rounds.forEach((round, r) => {
    const element = make("span", { class: "round" });
    if (run.drafts && lane === "main") element.append(make("span", { class: "seam", "aria-hidden": "true" }, String(r + 1)));
    for (const [guess, kind] of round.shown) {
      const id = idOf(round, guess), written = kind !== "refused" && kind !== "lost";
      const one = token(lane, r, guess, id, kind, shown(id, written ? joined[place] : ""));
      if (run.identical === false && lane === "plain" && id !== run.ids[place]) {
        one.classList.add("different");
        one.setAttribute("aria-label", `${one.getAttribute("aria-label")}, different`);
      }
      place += written;
      listed[lane].push(one.place);
      element.append(one, written ? ends(run.tokens[id]) : "");
    }
    box.append(element);
  });
}

// --- the reasons ----------------------------------------------------------------------------------

const LAWS = { target: "p: the target", draft: "q: the drafter", residual: "residual: max(0, p − q), rescaled", law: "what it was drawn from" };

function table(name, thing) {
  const model = thing[`${name}_model`], law = [...(model ?? thing[name])];
  const picked = run.settings.temperature === 0 ? "greedy takes" : "the seed's noise picks";
  const caption = model ? `${LAWS[name]}, by itself; ${picked} ${said(thing[name][0][0])}` : LAWS[name];
  const own = { target: thing.target_prob, draft: thing.draft_prob, law: thing.prob }[name];
  if (!model && own !== undefined && law.every(([id]) => id !== thing.token)) law.push([thing.token, own]);
  if (!law.length) return make("p", { class: "empty" }, `${LAWS[name]}: nothing, p is nowhere above q`);
  const rows = law.map(([id, p]) => make("tr", id === thing.token ? { class: "this" } : {}, make("th", { scope: "row" }, alone(id)), make("td", {}, bar(p)), make("td", {}, chance(p))));
  return make("table", { class: `bars law-${name}` }, make("caption", {}, caption), make("tbody", {}, rows));
}

function chip(lane, r, guess, kind) {
  const id = idOf(lanes[lane].rounds[r], guess), element = token(lane, r, guess, id, kind, alone(id));
  element.tabIndex = 0;
  element.classList.add("chip");
  if (chosen.guess === guess) element.setAttribute("aria-current", "true");
  return make("li", {}, element);
}

function branch(lane, r, parent) { // the guesses of a tree as lists in lists
  const { guesses } = lanes[lane].rounds[r];
  const items = guesses.flatMap((guess, i) => {
    if (guess.parent !== parent) return [];
    const item = chip(lane, r, i, guess.fate);
    item.append(branch(lane, r, i));
    return item;
  });
  return items.length ? make("ul", {}, items) : "";
}

function button(label, face, action) {
  const element = make("button", { type: "button", "aria-label": label }, face);
  element.addEventListener("click", action);
  return element;
}
const inPanel = () => at("panel").contains(document.activeElement);
function close() {
  if (inPanel()) chosen.element.focus();
  at("panel").hidden = true;
}
const turner = (label, face, by) => button(label, face, () => { turnRound(by); at("panel").querySelector(`[aria-label='${label}']`).focus(); });

let chosen = null;

function choose({ lane, round: r, guess }, { focus = false, stay = false } = {}) {
  for (const old of document.querySelectorAll(".on, .now")) old.classList.remove("on", "now");
  for (const old of document.querySelectorAll(".text [tabindex='0']")) old.tabIndex = -1;
  const round = lanes[lane].rounds[r], thing = guess < 0 ? round.own : round.guesses[guess];
  const ofRound = listed[lane].filter((one) => one.round === r);
  const itself = ofRound.find((one) => one.guess === guess && inSight(one)), { element } = itself ?? ofRound[0];
  const fromPanel = inPanel();
  chosen = { lane, round: r, guess, element };
  if (lane === "plain") at("plain-text").parentNode.open = true; // what is not seen cannot be stepped through
  if (itself) element.classList.add("on");
  element.tabIndex = 0;
  element.parentNode.classList.add("now");
  for (const rect of document.querySelectorAll(`rect[data-lane='${lane}'][data-round='${r}']`)) rect.classList.add("now");

  const kind = words.kinds[thing.kind ?? thing.fate], n = round.guesses.length;
  const title = lane === "plain" ? `Plain pass ${r + 1}` : `Round ${r + 1} of ${run.rounds.length}`;
  const panel = [make("nav", {}, make("h2", {}, title), turner("previous round", "◀", -1), turner("next round", "▶", 1), button("close", "×", close))];
  if (n) {
    const own = round.own && chip(lane, r, -1, round.own.kind);
    panel.push(make("p", { class: "said" }, `${round.path.length} of ${n} kept; drafted in ${seconds(round.draft_seconds)}, checked in ${seconds(round.target_seconds)}`));
    const chips = round.tree ? own : [round.guesses.map((one, i) => chip(lane, r, i, one.fate)), own];
    if (round.tree) panel.push(make("div", { class: "tree" }, branch(lane, r, -1)));
    panel.push(make("ol", { class: "chips", "aria-label": "this round's tokens" }, chips));
  }
  panel.push(make("h3", {}, alone(thing.token), ` — ${kind}`), make("p", { class: "verdict" }, thing.why));
  at("panel").replaceChildren(...panel, ...Object.keys(LAWS).filter((name) => thing[name]).map((name) => table(name, thing)));
  at("panel").hidden = false;
  at("say").textContent = `${title}, ${said(thing.token)}: ${kind}. ${thing.why}`;
  if (focus) element.focus({ preventScroll: true });
  else if (fromPanel) at("panel").querySelector("[aria-current]")?.focus();
  if (stay) return;
  at("panel").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" }); // among many guesses
  element.scrollIntoView({ block: "nearest" }); // which may be below the panel
}

const inSight = (one) => one.element.getClientRects().length > 0;
function turnToken(by) {
  const list = listed[chosen?.lane ?? "main"].filter(inSight), now = list.findIndex((one) => one.element === chosen?.element);
  const next = list[Math.min(Math.max(now + by, 0), list.length - 1)];
  if (next) choose(next, { focus: true });
}
function turnRound(by) {
  const lane = chosen?.lane ?? "main", r = Math.min(Math.max((chosen?.round ?? -1) + by, 0), lanes[lane].rounds.length - 1);
  const first = listed[lane].find((one) => one.round === r && inSight(one));
  if (first) choose(first, { focus: true });
}

const ANYWHERE = { j: () => turnRound(1), k: () => turnRound(-1), Escape: close };
const WITHIN = {
  ArrowRight: () => turnToken(1), ArrowLeft: () => turnToken(-1), ArrowDown: () => turnRound(1), ArrowUp: () => turnRound(-1),
  Home: () => turnToken(-Infinity), End: () => turnToken(Infinity),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const press = event.target.matches(".t") && (event.key === "Enter" || event.key === " ");
  const action = press ? () => choose(event.target.place) : ANYWHERE[event.key] ?? (event.target.closest(".text, #panel") && WITHIN[event.key]);
  if (!action) return;
  event.preventDefault();
  action();
});
document.addEventListener("click", (event) => {
  const spot = event.target.closest(".t"), rect = event.target.closest("rect[data-round]");
  if (spot?.place) choose(spot.place);
  if (rect) choose(listed[rect.dataset.lane].find((one) => one.round === Number(rect.dataset.round)), { stay: true });
});

// --- time -----------------------------------------------------------------------------------------

function drawTime() {
  const spans = { draft: [], check: [], plain: [] };
  const laid = (lane, rounds, guesses, checks) => rounds.reduce((now, round, r) => {
    const { draft_seconds: draft, target_seconds: check } = round;
    if (draft && spans[guesses]) spans[guesses].push({ lane, r, from: now, length: draft });
    spans[checks].push({ lane, r, from: now + draft, length: check });
    return now + draft + check;
  }, 0);
  const ends = [laid("main", run.rounds, "draft", run.drafts ? "check" : "plain"), laid("plain", run.plain?.rounds ?? [], null, "plain")];
  const most = Math.max(...ends);
  at("time").hidden = !most;
  if (!most) return;
  for (const [name, list] of Object.entries(spans).filter(([, spans]) => spans.length)) {
    const label = `${name}: ${seconds(list.reduce((sum, one) => sum + one.length, 0))} in ${list.length} parts`;
    const rects = list.map(({ lane, r, from, length }) => make("rect", { x: `${(100 * from) / most}%`, width: `${Math.max((100 * length) / most, 0.05)}%`, height: "100%", "data-lane": lane, "data-round": r }));
    at("lanes").append(make("div", { class: `lane lane-${name}` }, make("span", {}, name), make("svg", { role: "img", "aria-label": label }, rects)));
  }
  const power = 10 ** Math.floor(Math.log10(most / 4)), step = power * [1, 2, 5, 10].find((one) => one * power >= most / 4);
  const axis = make("div", { class: "axis", "aria-hidden": "true" });
  for (let tick = 0; tick * step < 0.95 * most; tick++) {
    const mark = make("span", {}, tick ? seconds(tick * step) : "0");
    mark.style.left = `${(100 * tick * step) / most}%`;
    axis.append(mark);
  }
  at("lanes").append(make("div", { class: "lane" }, make("span", {}), axis));
}

// --- how often guesses are kept -------------------------------------------------------------------

function drawKept() {
  const { accept_by_place: places, running } = run, theory = run.theory.expected_accept_rate !== null;
  at("kept").hidden = !places.length;
  if (!places.length) return;
  const rows = places.map(({ place, judged, kept, expected }) => {
    const x = `${100 * expected}%`, mark = theory ? make("line", { x1: x, x2: x, y1: 0, y2: "100%" }) : null;
    const told = `${percent(kept / judged)} of ${judged}${theory ? ` (${percent(expected)})` : ""}`;
    return make("tr", {}, make("th", { scope: "row" }, `guess ${place}`), make("td", {}, bar(kept / judged, mark)), make("td", {}, told));
  });
  const key = () => [make("span", { class: "key-kept" }, "kept"), " ", theory ? make("span", { class: "key-expected" }, "theory") : null];
  at("places").append(make("table", { class: "bars" }, make("caption", {}, "by place in the draft: ", key()), make("tbody", {}, rows)));

  const points = running.map(([judged, kept, expected], r) => ({ x: (100 * r) / Math.max(running.length - 1, 1), r, kept: kept / judged, expected: expected / judged })).filter((one) => one.kept >= 0);
  at("running").hidden = points.length < 2; // one point is no line
  const line = (name) => make("polyline", { class: name, points: points.map((one) => `${one.x},${100 - 100 * one[name]}`).join(" ") });
  const some = points.filter((_, i) => (points.length - 1 - i) % Math.ceil(points.length / 6) === 0);
  const label = `share of judged guesses kept so far: ${some.map((one) => `after round ${one.r + 1} ${percent(one.kept)}`).join(", ")}`;
  const plot = make("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label }, line("kept"), theory ? line("expected") : null);
  const marks = (name, ...texts) => make("span", { class: name, "aria-hidden": "true" }, texts.map((one) => make("span", {}, one)));
  at("running").append(make("figcaption", {}, "so far, from round to round: ", key()), make("div", { class: "frame" }, marks("scale", "1", "0.5", "0"), plot, marks("below", "round 1", `round ${running.length}`)));
}

// --- all of it ------------------------------------------------------------------------------------

const quoted = (one) => (typeof one === "string" ? `“${one}”` : one);
function facts(title, about) {
  const told = Object.entries(about).filter(([, value]) => value !== null && value !== "" && value.length !== 0);
  return make("div", {}, make("h3", {}, title), make("dl", {}, told.map(([name, value]) => [make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, pieces(Array.isArray(value) ? value.map(quoted).join(", ") : String(value)))])));
}

for (const name of ["idea", "time", "kept", "plain"]) at(`${name}-said`).textContent = words[name];
at("models").append(...pieces(`${words.models}; ${words.end}`));
at("figures").append(...words.figures.map(([figure, meaning]) => make("li", {}, make("b", {}, figure), meaning)));
writeText("main", at("text"));
if (run.plain) writeText("plain", at("plain-text"));
at("plain").hidden = !run.plain;
at("plain-text").parentNode.open = run.identical !== true;
const kinds = new Set(run.rounds.flatMap((round) => round.shown.map(([, kind]) => kind)));
for (const [kind, meaning] of Object.entries(words.kinds)) {
  if (kinds.has(kind)) at("legend").append(make("li", {}, make("span", { class: `t ${kind}` }, "token"), ` ${meaning}`));
}
at("show-lost").parentNode.hidden = !kinds.has("lost");
at("show-lost").addEventListener("change", (event) => at("text").classList.toggle("with-lost", event.target.checked));
drawTime();
drawKept();
at("facts").append(facts("Settings", run.settings), facts("Versions", run.versions), facts("Machine", run.machine), facts("Prompt", { text: run.prompt, tokens: run.prompt_ids.length }));
at("save").addEventListener("click", () => {
  const link = make("a", { href: URL.createObjectURL(new Blob([at("data").textContent], { type: "application/json" })), download: "trace.json" });
  link.click();
  URL.revokeObjectURL(link.href);
});
const first = listed.main.find((one) => one.element.matches(".refused")) ?? listed.main[0];
if (first) {
  if (matchMedia("(min-width: 60rem)").matches) choose(first, { stay: true });
  else first.element.tabIndex = 0;
}
at("unwritten").hidden = true; // all is drawn
