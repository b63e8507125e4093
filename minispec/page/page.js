// The page, filled: what the other files have, in its place.

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
const machine = Object.fromEntries(Object.entries(run.machine).filter(([name, value]) => value !== run.settings[name] && value !== run.versions[name]));
at("facts").append(facts("Settings", { ...run.settings, seed: words.seed }), facts("Versions", run.versions), facts("Machine", machine), facts("Prompt", { text: run.prompt, tokens: run.prompt_ids.length }));
at("save").addEventListener("click", () => {
  const link = make("a", { href: URL.createObjectURL(new Blob([at("data").textContent], { type: "application/json" })), download: "trace.json" });
  link.click();
  URL.revokeObjectURL(link.href);
});
const first = listed.main.find((place) => place.element.matches(".refused")) ?? listed.main[0];
if (first) {
  if (matchMedia("(min-width: 60rem)").matches) choose(first, { stay: true });
  else first.element.tabIndex = 0;
}
at("unwritten").hidden = true; // all is drawn
