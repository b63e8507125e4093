// Where the time went, and how often guesses are kept.

function drawTime() {
  const spans = { draft: [], check: [], plain: [] };
  function lay(lane, rounds, checks) { // one after the other; gives the time of all
    let now = 0;
    rounds.forEach(({ draft_seconds: draft, target_seconds: check }, r) => {
      if (draft) spans.draft.push({ lane, r, from: now, length: draft });
      spans[checks].push({ lane, r, from: now + draft, length: check });
      now += draft + check;
    });
    return now;
  }
  const most = Math.max(lay("main", run.rounds, run.drafts ? "check" : "plain"), lay("plain", run.plain?.rounds ?? [], "plain"));
  at("time").hidden = !most;
  if (!most) return;
  for (const [name, list] of Object.entries(spans)) {
    if (!list.length) continue;
    const label = `${name}: ${seconds(list.reduce((sum, one) => sum + one.length, 0))} in ${list.length} parts`;
    const rects = list.map(({ lane, r, from, length }) => make("rect", { x: `${(100 * from) / most}%`, width: `${Math.max((100 * length) / most, 0.05)}%`, height: "100%", "data-lane": lane, "data-round": r }));
    at("lanes").append(make("div", { class: `lane lane-${name}` }, make("span", {}, name), make("svg", { role: "img", "aria-label": label }, rects)));
  }
  at("lanes").append(make("div", { class: "lane" }, make("span"), axis(most)));
}

function axis(most) { // a mark at every round number of seconds, 2 to 4 in all
  const power = 10 ** Math.floor(Math.log10(most / 4)), step = power * [1, 2, 5, 10].find((one) => one * power >= most / 4);
  const marks = make("div", { class: "axis", "aria-hidden": "true" });
  for (let tick = 0; tick * step < 0.95 * most; tick++) {
    const mark = make("span", {}, tick ? seconds(tick * step) : "0");
    mark.style.left = `${(100 * tick * step) / most}%`;
    marks.append(mark);
  }
  return marks;
}

const theory = run.theory.expected_accept_rate !== null;
const key = () => [make("span", { class: "key-kept" }, "kept"), " ", theory ? make("span", { class: "key-expected" }, "theory") : null];

function drawKept() {
  const { accept_by_place: places, running } = run;
  at("kept").hidden = !places.length;
  if (!places.length) return;
  const rows = places.map(({ place, judged, kept, expected }) => {
    const x = `${100 * expected}%`, mark = theory ? make("line", { x1: x, x2: x, y1: 0, y2: "100%" }) : null;
    const told = `${percent(kept / judged)} of ${judged}${theory ? ` (${percent(expected)})` : ""}`;
    return bar(`guess ${place}`, kept / judged, told, {}, mark);
  });
  at("places").append(bars("bars", ["by place in the draft: ", key()], rows));
  at("running").hidden = running.filter(([judged]) => judged > 0).length < 2; // one point is no line
  const marks = (name, ...texts) => make("span", { class: name, "aria-hidden": "true" }, texts.map((one) => make("span", {}, one)));
  const frame = [marks("scale", "1", "0.5", "0"), curves(running), marks("below", "round 1", `round ${running.length}`)];
  at("running").append(make("figcaption", {}, "so far, from round to round: ", key()), make("div", { class: "frame" }, frame));
}

function curves(running) { // the share of judged guesses that was kept, and that should have been, after each round
  const last = Math.max(running.length - 1, 1);
  const points = running.map(([judged, kept, expected], r) => ({ x: (100 * r) / last, r, kept: kept / judged, expected: expected / judged }))
    .filter((point) => point.kept >= 0); // not before a guess was judged
  const line = (name) => make("polyline", { class: name, points: points.map((point) => `${point.x},${100 - 100 * point[name]}`).join(" ") });
  const some = points.filter((_, i) => (points.length - 1 - i) % Math.ceil(points.length / 6) === 0);
  const label = `share of judged guesses kept so far: ${some.map((point) => `after round ${point.r + 1} ${percent(point.kept)}`).join(", ")}`;
  const lines = [line("kept"), theory ? line("expected") : null];
  return make("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label }, lines);
}
