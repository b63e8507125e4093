// The token that is chosen, by key or click, and the reasons for it.

let chosen = null; // its place; element: the first of its round where the text does not show it
const inSight = (place) => place.element.getClientRects().length > 0;
const each = (selector, action) => document.querySelectorAll(selector).forEach(action);
const inPanel = () => at("panel").contains(document.activeElement);

function choose({ lane, round, guess }, { focus = false, stay = false } = {}) {
  const ofRound = listed[lane].filter((place) => place.round === round), fromPanel = inPanel();
  const itself = ofRound.find((place) => place.guess === guess && inSight(place)), { element } = itself ?? ofRound[0];
  chosen = { lane, round, guess, element };
  if (lane === "plain") at("plain-text").parentNode.open = true; // what is not seen cannot be stepped through
  mark(Boolean(itself));
  tell(tokenAt(chosen));
  const current = at("panel").querySelector("[aria-current]");
  if (focus || fromPanel) ((!focus && current) || element).focus({ preventScroll: true });
  if (stay) return;
  current?.scrollIntoView({ block: "nearest" }); // among many guesses
  element.scrollIntoView({ block: "nearest" }); // which may be below the panel
}

function mark(itself) {
  each(".on, .now", (old) => old.classList.remove("on", "now"));
  each(".text [tabindex='0']", (old) => { old.tabIndex = -1; });
  const { lane, round, element } = chosen;
  element.tabIndex = 0;
  element.classList.toggle("on", itself);
  element.parentNode.classList.add("now");
  each(`rect[data-lane='${lane}'][data-round='${round}']`, (rect) => rect.classList.add("now"));
}

function close() {
  if (inPanel()) chosen.element.focus();
  at("panel").hidden = true;
}

const clamp = (i, list) => Math.min(Math.max(i, 0), list.length - 1);
function turnToken(by) {
  const chips = [...at("panel").querySelectorAll(".chip")].map((one) => one.place); // among them, while they have the focus
  const list = inPanel() && chips.length ? chips : listed[chosen?.lane ?? "main"].filter(inSight);
  const now = list === chips ? chips.findIndex((place) => place.guess === chosen.guess) : list.findIndex((place) => place.element === chosen?.element);
  const next = list[clamp(now + by, list)];
  if (next) choose(next, { focus: list !== chips });
}
function turnRound(by) {
  const lane = chosen?.lane ?? "main", r = clamp((chosen?.round ?? -1) + by, lanes[lane].rounds);
  const first = listed[lane].find((place) => place.round === r && inSight(place));
  if (first) choose(first, { focus: !inPanel() });
}

const LAWS = { target: "p: the target", draft: "q: the drafter", residual: "residual: max(0, p − q), rescaled", law: "what it was drawn from" };
const isTold = (name, thing) => thing[name] && !(name === "residual" && thing.target_model); // of two picks there is none

function tell(thing) {
  const { lane, round: r } = chosen, round = lanes[lane].rounds[r], kind = words.kinds[kindOf(thing)];
  const title = lane === "plain" ? `Plain pass ${r + 1}` : `Round ${r + 1} of ${run.rounds.length}`;
  const laws = Object.keys(LAWS).filter((name) => isTold(name, thing)).map((name) => lawTable(name, thing));
  at("panel").replaceChildren(
    make("nav", {}, make("h2", {}, title), turner("previous round", "◀", -1), turner("next round", "▶", 1), button("close", "×", close)),
    ...(round.guesses.length ? ofGuesses(round) : []),
    make("h3", {}, alone(thing.token), ` — ${kind}`), make("p", { class: "verdict" }, thing.why), ...laws,
  );
  at("panel").hidden = false;
  at("say").textContent = `${title}, ${said(thing.token)}: ${kind}. ${thing.why}`;
}

function button(label, face, action) {
  const element = make("button", { type: "button", "aria-label": label }, face);
  element.addEventListener("click", action);
  return element;
}
const turner = (label, face, by) => button(label, face, () => { turnRound(by); at("panel").querySelector(`[aria-label='${label}']`).focus(); });

function ofGuesses({ guesses, own, path, tree, draft_seconds, target_seconds }) {
  const told = `${path.length} of ${guesses.length} kept; drafted in ${seconds(draft_seconds)}, checked in ${seconds(target_seconds)}`;
  const chips = [tree ? [] : guesses.map((_, i) => chip(i)), own && chip(-1)];
  return [
    make("p", { class: "said" }, told),
    tree ? make("div", { class: "tree" }, branch(guesses, -1)) : "",
    make("ol", { class: "chips", "aria-label": "this round's tokens" }, chips),
  ];
}

function chip(guess) { // a token of the round, to be chosen
  const place = { ...chosen, guess }, element = makeToken(place, alone(tokenAt(place).token));
  element.classList.add("chip");
  if (chosen.guess === guess) element.setAttribute("aria-current", "true");
  if (chosen.guess === guess) element.tabIndex = 0; // one stop for them all: arrows lead to the others
  return make("li", {}, element);
}

function branch(guesses, parent) { // the guesses of a tree as lists in lists
  const items = guesses.flatMap((guess, i) => {
    if (guess.parent !== parent) return [];
    const item = chip(i);
    item.append(branch(guesses, i));
    return item;
  });
  return items.length ? make("ul", {}, items) : "";
}

function lawTable(name, thing) {
  const model = thing[`${name}_model`], law = [...(model ?? thing[name])];
  const picked = run.settings.temperature === 0 ? "greedy takes" : "the seed's noise picks";
  const caption = model ? `${LAWS[name === "law" ? "target" : name]}; ${picked} ${said(thing[name][0][0])}` : LAWS[name];
  const own = { target: thing.target_prob, draft: thing.draft_prob, law: thing.prob }[name];
  if (!model && own !== undefined && law.every(([id]) => id !== thing.token)) law.push([thing.token, own]);
  if (!law.length) return make("p", { class: "empty" }, `${LAWS[name]}: nothing, p is nowhere above q`);
  return bars(`bars law-${name}`, caption, law.map(([id, p]) => bar(alone(id), p, chance(p), { class: id === thing.token ? "this" : "" })));
}

const WITHIN = { // the text and the panel: elsewhere keys do what they do on any page
  j: () => turnRound(1), k: () => turnRound(-1),
  ArrowRight: () => turnToken(1), ArrowLeft: () => turnToken(-1), ArrowDown: () => turnRound(1), ArrowUp: () => turnRound(-1),
  Home: () => turnToken(-Infinity), End: () => turnToken(Infinity),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const press = event.target.matches(".t") && (event.key === "Enter" || event.key === " ");
  const action = press ? () => choose(event.target.place) : event.key === "Escape" ? close : event.target.closest(".text, #panel") && WITHIN[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
document.addEventListener("click", (event) => {
  const spot = event.target.closest(".t"), rect = event.target.closest("rect[data-round]");
  if (spot?.place) choose(spot.place);
  if (rect) choose(listed[rect.dataset.lane].find((place) => place.round === Number(rect.dataset.round)), { focus: true, stay: true });
});
