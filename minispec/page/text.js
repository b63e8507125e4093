// The text, token by token and round by round.

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

const listed = { main: [], plain: [] }; // the places of a text's tokens in order: { lane, round, guess, element }
function tokenAt({ lane, round, guess }) { // guess: its number, or -1 for the target's own
  const { guesses, own } = lanes[lane].rounds[round];
  return guess < 0 ? own : guesses[guess];
}
const kindOf = (thing) => thing.kind ?? thing.fate;

function makeToken(place, face) {
  const thing = tokenAt(place), kind = kindOf(thing);
  const label = `${words.kinds[kind]}: ${said(thing.token)}, round ${place.round + 1}`;
  const element = make("span", { class: `t ${kind}`, role: "button", tabindex: -1, "aria-label": label }, face);
  element.place = { ...place, element };
  return element;
}

function writeText(lane, box) {
  const { rounds, joined } = lanes[lane];
  const ends = (text) => (String(text).includes("\n") ? make("br") : "");
  box.append(...run.prompt.split(/(?<=\n)/).flatMap((line) => [make("span", { class: "prompt" }, pieces(line)), ends(line)]));
  let i = 0; // of the tokens that are written
  rounds.forEach((round, r) => {
    const element = make("span", { class: "round" });
    if (run.drafts && lane === "main") element.append(make("span", { class: "seam", "aria-hidden": "true" }, String(r + 1)));
    for (const [guess, kind] of round.shown) {
      const place = { lane, round: r, guess }, id = tokenAt(place).token, written = kind !== "refused" && kind !== "lost";
      const token = makeToken(place, shown(id, written ? joined[i] : ""));
      if (run.identical === false && lane === "plain" && id !== run.ids[i]) {
        token.classList.add("different");
        token.setAttribute("aria-label", `${token.getAttribute("aria-label")}, different`);
      }
      i += written;
      listed[lane].push(token.place);
      element.append(token, written ? ends(run.tokens[id]) : "");
    }
    box.append(element);
  });
}
