"""The page of a run in a real browser: what is seen, what keys and clicks do, and that nobody is asked for anything.

Needs the extra `page` and a Chromium: the one that MINISPEC_CHROMIUM names, one on the path, or Playwright's own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from traced import HOSTILE, PROMPT, WRITTEN, traced

from minispec.trace_page import data_of, page

sync_api = pytest.importorskip("playwright.sync_api", reason="pages are looked at with the extra page: -e .[page]")

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge")
WIDTHS = (360, 800, 1600)
RUNS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 3, "max_new_tokens": 60},
    "gumbel": {"temperature": 1.0, "coupling": "gumbel"},
    "block": {"temperature": 1.0, "verification": "block", "num_draft_tokens": 6},
    "tree": {"temperature": 1.0, "tree": (3, 2, 1), "num_draft_tokens": 3},
    "far": {"num_draft_tokens": 63, "max_new_tokens": 100, "temperature": 1.0},
    "unguessed": {"num_draft_tokens": 0},
    "plain": {"draft": "none"},
    "nothing": {"max_new_tokens": 0},
    "one": {"max_new_tokens": 1},
    "long": {"temperature": 1.2, "max_new_tokens": 500, "num_draft_tokens": 3},
    "hostile": {"prompt": HOSTILE, "temperature": 1.5, "max_new_tokens": 60},
}
SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍"}


@cache
def html_of(name: str) -> str:
    return page(traced(**RUNS[name]))


@cache
def of(name: str) -> dict[str, Any]:
    return data_of(html_of(name))


def executable() -> str | None:
    """A browser that is here, or None for Playwright's own."""
    named = os.environ.get("MINISPEC_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # for whom Chromium has no sandbox
    with sync_api.sync_playwright() as playwright:
        path = executable()
        if path is None and not Path(playwright.chromium.executable_path).is_file():
            pytest.skip(f"no browser: install one of {', '.join(NAMES)}, or name it in MINISPEC_CHROMIUM")
        options: dict[str, Any] = {"executable_path": path, "args": ["--no-sandbox"] if root else []}
        started = playwright.chromium.launch(**options)
        yield started
        started.close()


@dataclass
class Opened:
    """A page in the browser; what its console said, and what it asked for."""

    tab: Any
    url: str
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def all(self, selector: str, what: str = "e => e.textContent") -> list[Any]:
        """A property of all elements."""
        found: list[Any] = self.tab.eval_on_selector_all(selector, f"all => all.map({what})")
        return found

    def panel(self) -> str:
        return str(self.tab.inner_text("#panel")) if self.tab.is_visible("#panel") else ""

    def chosen(self) -> list[Any]:
        """The tokens that are marked: kind and text."""
        return self.all(".text .on", "e => [e.classList[1], e.textContent]")

    def focused(self) -> str:
        return str(self.tab.evaluate("document.activeElement.className || document.activeElement.tagName"))

    def enter_text(self) -> None:
        """As Tab does."""
        self.tab.locator("#text [tabindex='0']").focus()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens pages; at the end none has had an error, a warning, or a wish."""
    pages: list[Opened] = []

    def call(html: str, width: int = 800, scheme: str = "light", height: int = 900) -> Opened:
        file = tmp_path / f"{len(pages)}.html"
        file.write_text(html, encoding="utf-8", newline="\n")
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        one = Opened(context.new_page(), file.as_uri())
        one.tab.on("console", lambda message: one.said.append(message.text))
        one.tab.on("pageerror", lambda error: one.said.append(str(error)))
        one.tab.on("dialog", lambda dialog: one.said.append(dialog.message) or dialog.dismiss())  # type: ignore[func-returns-value]
        one.tab.on("request", lambda request: one.asked.append(request.url))
        one.tab.set_default_timeout(15_000)
        one.tab.goto(one.url)
        pages.append(one)
        return one

    yield call
    for one in pages:
        one.tab.context.close()
    assert [one.said for one in pages if one.said] == []
    assert {url for one in pages for url in one.asked if not url.startswith(("data:", "blob:"))} <= {
        one.url for one in pages
    }


# --- what is seen ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_page_shows_its_text_at_every_width(opened: Any, name: str) -> None:
    data = of(name)
    for width in WIDTHS if name in ("sampled", "hostile", "tree") else (360,):
        one = opened(html_of(name), width)
        assert one.tab.evaluate("document.documentElement.scrollWidth") <= width
        kinds = [kind for step in data["rounds"] for _, kind in step["shown"]]
        assert one.all("#text .t", "e => e.classList[1]") == kinds
        written = [text for text, kind in zip(one.all("#text .t"), kinds, strict=True) if kind in WRITTEN]
        for text, token in zip(written, data["ids"], strict=True):
            whole = data["tokens"][str(token)]
            if isinstance(whole, str) and whole.isprintable():
                assert text == whole
            elif isinstance(whole, str) and set(whole) <= set(SIGNS):
                assert text == "".join(SIGNS[letter] for letter in whole)
            elif isinstance(whole, dict):
                assert whole["bytes"] in text
        assert len(one.all("#text .round")) == data["passes"]
        assert len(one.all("#text .seam")) == (data["passes"] if data["drafts"] else 0)
        for figure, meaning in data["words"]["figures"]:
            assert figure + meaning in one.all("#figures li")
        assert "[object" not in one.tab.inner_text("body")
        assert "undefined" not in one.tab.inner_text("body")
        assert "NaN" not in one.tab.inner_text("body")


def test_what_has_nothing_to_show_is_not_there(opened: Any) -> None:
    seen = {
        name: [part for part in ("time", "kept", "plain", "panel") if one.tab.is_visible(f"#{part}")]
        for name in ("sampled", "unguessed", "plain", "nothing")
        for one in [opened(html_of(name), 1600)]
    }
    assert seen == {
        "sampled": ["time", "kept", "plain", "panel"],
        "unguessed": ["time", "plain", "panel"],
        "plain": ["time", "panel"],
        "nothing": ["plain"],
    }


def test_settings_seed_versions_and_machine_are_told(opened: Any) -> None:
    one, data = opened(html_of("sampled")), of("sampled")
    told = dict(zip(one.all("#facts dt"), one.all("#facts dd"), strict=True))
    assert told["seed"] == "3"
    assert told["temperature"] == "0.9"
    assert told["num draft tokens"] == "4"
    assert told["cpu"] == data["machine"]["cpu"]
    assert told["minispec"] == data["versions"]["minispec"]
    assert told["text"] == PROMPT
    changed = json.loads(json.dumps(data))
    changed["settings"] |= {"stop": [" a,b", "c"], "tree": [3, 2]}
    changed["machine"] |= {"backend": "numpy"}  # what it came to, where Numba is missing
    other = opened(page(changed))
    assert other.all("#facts dt").count("backend") == 2
    assert other.all("#facts dt").count("python") == other.all("#facts dt").count("numpy") == 1
    told = dict(zip(other.all("#facts dt"), other.all("#facts dd"), strict=True))
    assert (told["stop"], told["tree"]) == ("“ a,b”, “c”", "3, 2")


def test_hostile_text_is_shown_and_not_run(opened: Any) -> None:
    one = opened(html_of("hostile"), 360)
    text = one.tab.text_content("#text")
    assert (
        "</script><img src=x onerror='window.hit=1'><!--<script>window.hit=2</script> &lt;b&gt; @DATA@ ${hit} `↵"
        in text
    )
    for sign in ("\\u2028", "\\u2029", "␍", "⇥", "\\u202e", "\\u200b", "␀", "␛"):
        assert sign in text, sign
    assert "\u202e" not in text
    assert one.all("img, iframe, main script, main style") == []
    assert one.tab.evaluate("window.hit") is None
    assert one.tab.title() == "minispec trace"


def test_what_gets_in_would_not_be_run(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "run.html").write_text(html_of("one"), encoding="utf-8", newline="\n")
    context = browser.new_context()
    tab = context.new_page()
    tab.goto((tmp_path / "run.html").as_uri())
    tab.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.hit = 1";
        document.body.append(script);
        const image = document.createElement("div");
        image.innerHTML = "<img src='https://example.org/x.png' onerror='window.hit = 2'>";
        document.body.append(image);
    }""")
    refused = tab.evaluate("fetch('https://example.org').then(() => 'sent', (error) => error.name)")
    assert refused == "TypeError"
    assert tab.evaluate("window.hit") is None
    context.close()


@pytest.mark.parametrize("way", ["no script", "a policy"])
def test_where_the_script_does_not_run_the_page_says_so(browser: Any, opened: Any, way: str) -> None:
    context = browser.new_context(java_script_enabled=way != "no script")
    tab, headers = context.new_page(), {"Content-Security-Policy": "script-src 'none'"}
    tab.route("**", lambda route: route.fulfill(body=html_of("one"), content_type="text/html", headers=headers))
    tab.goto("http://run.invalid/")
    assert tab.is_visible("#unwritten")
    assert "has not run here: allow it" in tab.inner_text("header")
    context.close()
    assert not opened(html_of("one")).tab.is_visible("#unwritten")


def test_kinds_differ_in_shape_and_not_in_colour_alone(opened: Any) -> None:
    one = opened(html_of("sampled"))
    shapes = one.all(
        "#legend .t",
        """e => { const style = getComputedStyle(e); return [e.classList[1],
        [style.textDecorationLine, style.textDecorationStyle, style.borderBottomStyle, style.borderBottomWidth,
         style.outlineStyle, getComputedStyle(e, "::before").content].join(" ")]; }""",
    )
    assert {kind for kind, _ in shapes} >= {"kept", "refused", "replaced", "bonus", "lost"}
    assert len({shape for _, shape in shapes}) == len(shapes)
    assert "line-through" in dict(shapes)["refused"]


@pytest.mark.parametrize("name", ["sampled", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(opened: Any, scheme: str, name: str) -> None:
    one = opened(html_of(name), 1600, scheme)
    one.tab.check("#show-lost")
    pairs = one.all(
        ".t, .sign, .said, .prompt, dt, dd, h2, .bars th, .bars td, button, .seam, summary, #figures li",
        """e => {
        let opacity = 1, ground = e;
        const clear = (e) => /, 0\\)$|transparent/.test(getComputedStyle(e).backgroundColor);
        for (let above = e; above; above = above.parentElement) {
            opacity *= getComputedStyle(above).opacity;
            if (getComputedStyle(above).backgroundImage !== "none") opacity = 0; // a ground without one colour
        }
        while (ground && clear(ground)) ground = ground.parentElement;
        ground = getComputedStyle(ground ?? document.body).backgroundColor;
        return [getComputedStyle(e).color, ground, opacity, e.className];
    }""",
    )
    assert len(pairs) > 100
    assert {"seam", "t lost"} < {kind for *_, kind in pairs}
    for color, ground, opacity, kind in pairs:
        assert opacity == 1, (kind, opacity)
        bright = sorted(brightness(color) for color in (color, ground))
        assert (bright[1] + 0.05) / (bright[0] + 0.05) >= 4.5, (kind, color, ground)
    dark = brightness(one.tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (dark < 0.1) == (scheme == "dark")


def brightness(color: str) -> float:
    """Relative luminance, as WCAG has it."""
    parts = [int(part) / 255 for part in color.split("(")[1].rstrip(")").split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_hidden_characters_of_names_and_captions_are_shown(opened: Any) -> None:
    data = json.loads(json.dumps(of("greedy")))
    hidden = {"\u202e": "\\u202e", "\u034f": "\\u034f", "\u3164": "\\u3164", "\U000e0041": "\\ue0041"}
    data["words"]["models"] = data["prompt"] = text = "a" + "b".join(hidden) + "c"
    data["tokens"] = dict.fromkeys(data["tokens"], text)
    one = opened(page(data), 1600)
    shown = one.tab.inner_text("body") + "".join(one.all("[aria-label]", "e => e.getAttribute('aria-label')"))
    told = "a" + "b".join(hidden.values()) + "c"
    assert one.tab.inner_text("#models").startswith(told)
    assert f"greedy takes “{told}”" in shown
    assert f"“{told}”, round 1" in shown
    assert not set(shown) & set(hidden)


def test_nothing_is_cut_off_beside_the_bars(opened: Any) -> None:
    data = json.loads(json.dumps(of("sampled")))
    data["accept_by_place"] = [{"place": 1, "judged": 1234, "kept": 1234, "expected": 1.0}] + [
        {"place": place, "judged": 13, "kept": 13, "expected": 0.79} for place in range(2, 64)
    ]
    for width in WIDTHS:
        one = opened(page(data), width)
        assert one.tab.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#places'))") <= 0
        assert one.all("#places td:last-child", "e => e.textContent")[0] == "100\xa0% of 1234 (100\xa0%)"
        assert min(one.all("#places svg", "e => e.getBoundingClientRect().width")) > 40
    one.tab.emulate_media(media="print")
    assert one.tab.evaluate("(box => box.scrollHeight - box.clientHeight)(document.querySelector('#places'))") <= 0


def test_text_has_the_size_that_the_reader_chose(opened: Any) -> None:
    one = opened(html_of("sampled"), 320)
    assert one.tab.evaluate("document.documentElement.scrollWidth") <= 320
    one.tab.evaluate("document.documentElement.style.fontSize = '32px'")
    assert min(one.all("body, p, button, dd, #panel, .t, label", "e => parseFloat(getComputedStyle(e).fontSize)")) > 24


def test_of_two_picks_no_residual_is_shown(opened: Any) -> None:
    for name, shown in (("greedy", 0), ("sampled", 1)):
        one = opened(html_of(name), 1600)
        one.tab.locator("#text .refused").first.click()
        assert len(one.all("#panel .law-residual")) == shown
        assert ("by itself" in one.panel(), "what it was drawn from" in one.panel()) == (False, False)


def test_a_chance_near_one_is_not_called_one(opened: Any) -> None:
    data = json.loads(json.dumps(of("plain")))
    near = {1: "1", 0.9997: "0.9997", 0.9999999: "> 0.9999", 0.99949: "0.999", 0.0001: "1.0e-4", 0: "0"}
    data["rounds"][0]["own"]["target"] = [[token, prob] for token, prob in zip(range(6), near, strict=True)]
    data["tokens"] |= {str(token): f"word{token}" for token in range(6)}
    rows = opened(page(data), 1600).all("#panel .law-target tr", "e => e.cells[2].textContent")
    assert rows[:6] == list(near.values())


def test_a_long_name_is_broken(opened: Any) -> None:
    data = json.loads(json.dumps(of("one")))
    data["words"]["models"] = "n" * 200
    assert opened(page(data), 360).tab.evaluate("document.documentElement.scrollWidth") <= 360


# --- clicks ------------------------------------------------------------------------------------------


def refused_of(data: dict[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """A refused guess: its round, its number there, and what is told of it."""
    return next(
        (r, i, guess)
        for r, one in enumerate(data["rounds"])
        for i, guess in enumerate(one["guesses"])
        if guess["fate"] == "refused"
    )


@pytest.mark.parametrize("width", [360, 1600])
def test_a_click_tells_why_a_guess_was_refused(opened: Any, width: int) -> None:
    one, data = opened(html_of("sampled"), width), of("sampled")
    r, _, guess = refused_of(data)
    assert one.tab.is_visible("#panel") == (width == 1600)
    one.tab.locator("#text .round").nth(r).locator(".refused").first.click()
    told = one.panel()
    assert f"Round {r + 1} of {data['passes']}" in told
    assert guess["why"] in told
    for name in ("target", "draft", "residual"):
        rows = one.all(f"#panel .law-{name} tr", "e => [...e.cells].map(c => c.textContent)")
        law = guess[name]
        assert len(rows) in (len(law), len(law) + 1)
        for (token, prob), (text, _, figure) in zip(law, rows, strict=False):
            assert text.lstrip("␣") == data["tokens"][str(token)].lstrip(" ").replace("\n", "↵")
            assert float(figure) == pytest.approx(prob, abs=6e-4)
        widths = one.all(f"#panel .law-{name} rect", "e => parseFloat(e.getAttribute('width'))")
        assert [float(width) for width in widths[: len(law)]] == pytest.approx([max(100 * p, 0.4) for _, p in law])
    assert guess["why"] in one.tab.text_content("#say")
    assert one.tab.get_attribute("#say", "aria-live") == "polite"
    ((kind, _),) = one.chosen()
    assert kind == "refused"


@pytest.mark.parametrize("name", ["greedy", "gumbel", "block", "tree", "unguessed", "plain", "hostile"])
def test_every_token_tells_its_reasons(opened: Any, name: str) -> None:
    one, data = opened(html_of(name), 1600), of(name)
    tokens = one.tab.locator("#text .t")
    places = [(r, i) for r, step in enumerate(data["rounds"]) for i, kind in step["shown"] if kind != "lost"]
    seen = [i for i, kind in enumerate(kind for step in data["rounds"] for _, kind in step["shown"]) if kind != "lost"]
    for number, (r, i) in list(zip(seen, places, strict=True))[:: max(len(seen) // 12, 1)]:
        tokens.nth(number).click()
        step = data["rounds"][r]
        assert (step["own"] if i < 0 else step["guesses"][i])["why"] in one.panel()


def test_buttons_turn_the_rounds_and_close(opened: Any) -> None:
    one, last = opened(html_of("sampled"), 1600), of("sampled")["passes"]
    one.tab.locator("#text .round").nth(0).locator(".t").first.click()
    for label, r in (("next round", 2), ("next round", 3), ("previous round", 2), ("previous round", 1),
                     ("previous round", 1)):  # fmt: skip
        one.tab.click(f"[aria-label='{label}']")
        assert f"Round {r} of {last}" in one.panel()
        assert one.tab.evaluate("document.activeElement.getAttribute('aria-label')") == label
    assert text_width(one) < 0.8
    one.tab.click("[aria-label='close']")
    assert not one.tab.is_visible("#panel")
    assert one.focused().startswith("t ")
    assert text_width(one) == pytest.approx(1)


def text_width(one: Opened) -> float:
    """The text's share of the page's width."""
    wide, story = (one.tab.locator(part).bounding_box()["width"] for part in ("main", "#story"))
    return float(story / wide)


def test_guesses_that_were_never_judged_are_shown_on_demand(opened: Any) -> None:
    one = opened(html_of("sampled"))
    assert one.tab.locator("#text .lost").first.is_hidden()
    one.tab.check("#show-lost")
    assert one.tab.locator("#text .lost").first.is_visible()
    one.tab.locator("#text .lost").first.click()
    assert "Never judged" in one.panel()


def test_a_tree_is_a_list_in_lists(opened: Any) -> None:
    one, data = opened(html_of("tree"), 1600), of("tree")
    step = data["rounds"][1]
    one.tab.locator("#text .round").nth(1).locator(".t").first.click()
    assert len(one.all("#panel .tree li")) == len(step["guesses"])
    assert len(one.all("#panel .tree > ul > li")) == sum(guess["parent"] < 0 for guess in step["guesses"])
    assert [guess["fate"] for guess in map(step["guesses"].__getitem__, depth_first(step["guesses"]))] == one.all(
        "#panel .tree .chip", "e => e.classList[1]"
    )
    for number, i in list(enumerate(depth_first(step["guesses"])))[::4]:
        one.tab.locator("#panel .tree .chip").nth(number).click()
        assert step["guesses"][i]["why"] in one.panel()


def depth_first(guesses: list[dict[str, Any]], parent: int = -1) -> list[int]:
    """The numbers of a tree's guesses, each before those that follow it."""
    below = [[i, *depth_first(guesses, i)] for i, guess in enumerate(guesses) if guess["parent"] == parent]
    return [i for branch in below for i in branch]


def test_a_deep_tree_moves_nothing_but_itself(opened: Any) -> None:
    data = json.loads(json.dumps(of("tree")))
    step = data["rounds"][1]
    guess = next(guess for guess in step["guesses"] if guess["fate"] == "lost") | {"token": step["committed"][0]}
    step["guesses"] += [guess | {"parent": len(step["guesses"]) + i - 1, "depth": 4 + i} for i in range(50)]
    one = opened(page(data), 360)
    one.tab.locator("#text .round").nth(1).locator(".t").first.click()
    assert len(one.all("#panel .tree li")) == len(step["guesses"])
    assert one.tab.evaluate("(panel => panel.scrollWidth - panel.clientWidth)(document.querySelector('#panel'))") == 0
    assert one.tab.locator("#panel .verdict").bounding_box()["y"] < 850  # however many guesses there are
    assert one.tab.evaluate("document.querySelector('#panel').scrollTop") == 0
    one.tab.locator("#panel .tree .chip").last.focus()
    left, width = (one.tab.locator("#panel .tree .chip").last.bounding_box()[part] for part in ("x", "width"))
    assert 0 <= left < left + width <= 360


def test_a_guess_of_the_panel_keeps_the_focus(opened: Any) -> None:
    one = opened(html_of("sampled"), 1600)
    one.tab.locator("#text .round").nth(1).locator(".t").first.click()
    one.tab.locator("#panel .chip").nth(1).focus()
    one.press("Enter")
    assert "chip" in one.focused()
    assert one.all("#panel .chip", "e => e.getAttribute('aria-current')")[1] == "true"


# --- keys --------------------------------------------------------------------------------------------


def test_keys_step_through_tokens_and_rounds(opened: Any) -> None:
    one, data = opened(html_of("sampled")), of("sampled")
    rounds = f" of {data['passes']}"
    one.enter_text()
    one.press("j")
    assert f"Round 1{rounds}" in one.panel()
    first = one.chosen()
    one.press("ArrowRight")
    assert one.chosen() != first
    assert one.focused().endswith("on")
    one.press("ArrowLeft")
    assert one.chosen() == first
    for key, r in (("ArrowDown", 2), ("j", 3), ("k", 2), ("ArrowUp", 1), ("ArrowUp", 1)):
        one.press(key)
        assert f"Round {r}{rounds}" in one.panel(), key
    one.press("End")
    assert f"Round {data['passes']}{rounds}" in one.panel()
    one.press("ArrowRight", "j")
    assert f"Round {data['passes']}{rounds}" in one.panel()
    one.press("Home")
    assert one.chosen() == first
    one.press("Escape")
    assert one.panel() == ""
    one.press("Enter")
    assert f"Round 1{rounds}" in one.panel()


def test_arrows_outside_the_text_scroll_as_ever(opened: Any) -> None:
    one = opened(html_of("sampled"), 360)
    one.press("ArrowDown", "End", "ArrowRight")
    assert one.panel() == ""


def test_letters_act_in_the_text_alone(opened: Any) -> None:
    """What is dictated, or typed by chance, turns no page: WCAG 2.1.4."""
    one = opened(html_of("sampled"), 360)
    one.press("j", "k")
    one.tab.locator("#save").focus()
    one.press("j", "k")
    assert one.panel() == ""
    one.enter_text()
    one.press("Control+j")
    assert one.panel() == ""
    one.press("j")
    assert "Round 1 of" in one.panel()


@pytest.mark.parametrize("name", ["far", "tree"])
def test_guesses_in_the_panel_are_one_stop_and_arrows_lead_through_them(opened: Any, name: str) -> None:
    one, data = opened(html_of(name), 1600), of(name)
    one.tab.locator("#text .round").nth(1).locator(".t").first.click()
    chips = one.all("#panel .chip", "e => e.place.guess")
    assert len(chips) == len(data["rounds"][1]["guesses"]) + 1 > 8
    assert len(one.all("#panel [tabindex='0']")) == 1
    one.tab.locator("[aria-label='close']").focus()
    one.press("Tab")
    current = "document.activeElement.getAttribute('aria-current') && document.activeElement.place.guess"
    for key, guess in (("Home", chips[0]), ("ArrowRight", chips[1]), ("ArrowLeft", chips[0]), ("End", chips[-1]),
                       ("ArrowRight", chips[-1])):  # fmt: skip
        one.press(key)
        assert one.tab.evaluate(current) == guess, key
        assert len(one.all("#panel [tabindex='0']")) == 1
    one.press("ArrowDown")
    assert f"Round 3 of {data['passes']}" in one.panel()
    assert "chip" in one.focused()
    one.tab.locator("#panel .verdict").click()  # words in the panel: its keys go on
    one.press("ArrowDown")
    assert f"Round 4 of {data['passes']}" in one.panel()
    one.tab.locator("#panel .chip").last.click()
    one.press("Tab")
    assert "chip" not in one.focused()


def test_where_nothing_was_guessed_arrows_lead_from_the_panel_to_the_text(opened: Any) -> None:
    one = opened(html_of("plain"), 1600)
    one.tab.locator("#text .t").nth(2).click()
    one.tab.locator("[aria-label='next round']").focus()
    one.press("ArrowRight")
    assert "Round 4 of" in one.panel()
    assert one.focused().endswith("on")


def test_tab_enters_the_text_once(opened: Any) -> None:
    one = opened(html_of("sampled"))
    assert len(one.all("#text [tabindex='0']")) == 1
    one.tab.locator("#text .t").nth(5).click()
    assert len(one.all("#text [tabindex='0']")) == 1
    one.tab.evaluate("document.activeElement.blur()")
    stops = set()
    for _ in range(60):  # round and round
        one.press("Tab")
        stops.add(one.tab.evaluate("[...document.querySelectorAll('#text *')].indexOf(document.activeElement)"))
    assert len(stops - {-1}) == 1


def test_a_long_run_is_gone_through(opened: Any) -> None:
    data = json.loads(json.dumps(of("long")))
    data["rounds"] *= 1 + 300 // len(data["rounds"])  # wherever the text has ended
    data["passes"] = len(data["rounds"])
    one = opened(page(data), 800)
    one.enter_text()
    one.press("j", *["j"] * 30)
    assert f"Round 31 of {data['passes']}" in one.panel()
    one.press("End")
    assert f"Round {data['passes']} of" in one.panel()
    assert len(one.all("#text .round")) == data["passes"] > 300


def test_the_chosen_token_is_seen_in_forced_colours_and_paper_is_filled(browser: Any, opened: Any) -> None:
    one = opened(html_of("sampled"), 1600)
    one.tab.emulate_media(forced_colors="active")
    marks = one.all(".text .on, .chip[aria-current]", "e => getComputedStyle(e).outlineWidth")
    assert marks == ["3px", "3px"]
    one.tab.emulate_media(media="print", forced_colors="none")
    assert not one.tab.is_visible("#panel")
    assert text_width(one) == pytest.approx(1)


# --- pictures, for eyes and for ears -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["sampled", "tree", "plain", "long"])
def test_lanes_have_all_seconds_on_one_axis(opened: Any, name: str) -> None:
    one, data = opened(html_of(name)), of(name)
    plain = (data["plain"] or {"rounds": []})["rounds"]
    spent = {
        "draft": [step["draft_seconds"] for step in data["rounds"] if step["draft_seconds"]],
        "check": [step["target_seconds"] for step in data["rounds"]],
        "plain": [step["target_seconds"] for step in plain],
    }
    if name == "plain":
        spent = {"plain": spent["check"]}
    axis = max(sum(spent.get("draft", [])) + sum(spent.get("check", [])), sum(spent["plain"]))
    for lane, seconds in spent.items():
        widths = one.all(f".lane-{lane} rect", "e => parseFloat(e.getAttribute('width'))")
        assert widths == pytest.approx([max(100 * part / axis, 0.05) for part in seconds], rel=1e-3)
    now, starts = 0.0, []
    for step in data["rounds"]:  # a check begins where its guesses end
        starts.append(100 * (now + step["draft_seconds"]) / axis)
        now += step["draft_seconds"] + step["target_seconds"]
    checks = one.all(f".lane-{'check' if data['drafts'] else 'plain'} rect", "e => parseFloat(e.getAttribute('x'))")
    assert checks == pytest.approx(starts, abs=1e-6)
    ends = one.all(".lane rect", "e => parseFloat(e.getAttribute('x')) + parseFloat(e.getAttribute('width'))")
    assert max(ends) == pytest.approx(100, abs=0.1)
    label = one.tab.get_attribute(f".lane-{'check' if data['drafts'] else 'plain'} svg", "aria-label")
    assert f"in {data['passes']} parts" in label


def test_a_click_on_a_lane_shows_that_round(opened: Any) -> None:
    one, data = opened(html_of("sampled")), of("sampled")
    one.tab.locator(".lane-check rect").nth(6).click()
    assert f"Round 7 of {data['passes']}" in one.panel()
    assert one.all(".lane-check rect", "e => e.classList.contains('now')").index(True) == 6
    one.tab.locator(".lane-plain rect").nth(4).click()
    assert "Plain pass 5" in one.panel()


def test_a_pass_of_plain_decoding_opens_its_text(opened: Any) -> None:
    one = opened(html_of("greedy"))
    assert not one.tab.evaluate("document.querySelector('details').open")
    one.tab.locator(".lane-plain rect").nth(4).click()
    one.press("j")
    assert "Plain pass 6" in one.panel()
    assert one.focused().endswith("on")
    one.press("ArrowRight")
    assert "Plain pass 7" in one.panel()


def test_rates_by_place_and_running_stand_beside_theory(opened: Any) -> None:
    one, data = opened(html_of("sampled")), of("sampled")
    rows = one.all("#places tr", "e => e.textContent")
    assert len(rows) == len(data["accept_by_place"])
    for row, place in zip(rows, data["accept_by_place"], strict=True):
        assert row.startswith(f"guess {place['place']}")
        share = 100 * place["kept"] / place["judged"]
        assert f"{share + 1e-9:.0f}\xa0% of {place['judged']}" in row or share % 1 == 0.5  # rounded either way
    marks = one.all("#places line", "e => parseFloat(e.getAttribute('x1'))")
    assert marks == pytest.approx([100 * place["expected"] for place in data["accept_by_place"]])
    kept, expected = one.all(
        "#running polyline", "e => e.getAttribute('points').split(' ').at(-1).split(',').map(Number)"
    )
    judged, n_kept, total = data["running"][-1]
    assert kept == pytest.approx([100, 100 - 100 * n_kept / judged])
    assert expected == pytest.approx([100, 100 - 100 * total / judged])
    assert opened(html_of("block")).all("#places line, polyline.expected") == []
    assert one.tab.is_visible("#running")
    assert "kept theory" in one.tab.inner_text("#running figcaption")


def test_one_round_makes_no_line(opened: Any) -> None:
    data = json.loads(json.dumps(of("sampled")))
    del data["running"][1:]
    one = opened(page(data))
    assert one.tab.is_visible("#places")
    assert not one.tab.is_visible("#running")


def test_who_listens_gets_text(opened: Any) -> None:
    one, data = opened(html_of("sampled")), of("sampled")
    tree = one.tab.locator("body").aria_snapshot()
    for part in ("In figures", "What the marks mean", "The text in tokens", "Where the time went", "check: ", "Save"):
        assert part in tree
    labels = one.all("#text .t", "e => [e.getAttribute('role'), e.getAttribute('aria-label')]")
    assert {role for role, _ in labels} == {"button"}
    assert labels[0][1].endswith("round 1")
    assert data["words"]["kinds"][data["rounds"][0]["shown"][0][1]] in labels[0][1]
    assert all(one.all("svg[role=img]", "e => e.getAttribute('aria-label').length > 5"))
    assert one.all("svg:not([role=img])", "e => e.getAttribute('aria-hidden')") == ["true"] * len(
        one.all("svg:not([role=img])")
    )


def test_save_gives_the_data(opened: Any) -> None:
    one = opened(html_of("hostile"))
    with one.tab.expect_download() as download:
        one.tab.click("#save")
    assert download.value.suggested_filename == "trace.json"
    assert json.loads(Path(download.value.path()).read_text(encoding="utf-8")) == of("hostile")


def test_another_text_is_marked_where_it_differs(opened: Any) -> None:
    data = json.loads(json.dumps(of("greedy")))
    own = data["plain"]["rounds"][3]["own"]
    own["token"] = next(token for token in map(int, data["tokens"]) if token != own["token"])
    data["identical"] = False
    one = opened(page(data))
    assert one.all("#plain-text .t", "e => e.classList.contains('different')").index(True) == 3
    assert len(one.all(".different")) == 1
    assert one.all(".different", "e => getComputedStyle(e).textDecorationStyle") == ["wavy"]  # not by colour alone
    assert [label.endswith(", different") for label in one.all("#plain-text .t", "e => e.ariaLabel")].index(True) == 3
    assert one.tab.is_visible("#plain-text")
    assert opened(html_of("greedy")).all(".different") == []
