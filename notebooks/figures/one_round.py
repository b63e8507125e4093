"""One real round as a picture, from a traced run: the figure at the top of the README.

    minispec trace "Once upon a time" -n 60 -k 4 --temperature 1 --seed 16 --json |
        python notebooks/figures/one_round.py > FILE

Of the run it takes the first round that kept two guesses, refused the third and never judged the fourth. The same run
makes the same picture.
"""

from __future__ import annotations

import json
import sys
from html import escape
from typing import Any

LEFT, COLUMN, WIDE = 150, 122, 800
STYLE = """text{font:15px system-ui,sans-serif;fill:#1c1f24}.s{font-size:12.5px;fill:#626a75}.b{font-weight:650}
.kept{fill:#14713d}.refused{fill:#b3261e}.own{fill:#a35200}.lost{fill:#8a909a}rect{fill:none;stroke-width:2}
rect.kept{stroke:#14713d;fill:#e3f4e8}rect.refused{stroke:#b3261e;fill:#fbe7e5}rect.own{stroke:#a35200;fill:#fdeed9}
rect.lost{fill:none;stroke:#b9bdc4;stroke-dasharray:4 3}line{stroke:#b3261e;stroke-width:2}.back{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#e8e6e1}.s{fill:#a0a6b0}.kept{fill:#7fd69c}.refused{fill:#ff9a91}
.own{fill:#ffbe73}.lost{fill:#7d838d}rect.kept{stroke:#7fd69c;fill:#17331f}rect.refused{stroke:#ff9a91;fill:#3f1d1b}
rect.own{stroke:#ffbe73;fill:#3d2a12}rect.lost{fill:none;stroke:#4a505a}line{stroke:#ff9a91}.back{fill:#0d1117}}"""
VERDICTS = {"kept": "kept", "refused": "refused", "lost": "never judged"}


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}" xml:space="preserve">{escape(words)}</text>'


def box(i: int, y: int, token: str, kind: str) -> list[str]:
    """A token in the column of the guess i; a refused one is struck through."""
    x = LEFT + i * COLUMN
    drawn = [
        f'<rect x="{x}" y="{y}" width="{COLUMN - 14}" height="34" rx="6" class="{kind}"/>',
        text(x + COLUMN / 2 - 7, y + 22, token.strip().replace("\n", "↵")[:12] or "␣", f"b {kind}", "middle"),
    ]
    if kind == "refused":
        drawn.append(f'<line x1="{x + 12}" x2="{x + COLUMN - 26}" y1="{y + 18}" y2="{y + 18}"/>')
    return drawn


def picture(data: dict[str, Any], number: int) -> str:
    """The SVG of a round, counted from 0."""
    one, tokens = data["rounds"][number], data["tokens"]
    before = data["prompt"] + "".join(tokens[str(t)] for r in data["rounds"][:number] for t in r["committed"])
    guesses, own = one["guesses"], one["own"]
    lines = [text(LEFT, 30, f"… {before[-70:]}" if len(before) > 70 else before), text(12, 30, "the text", "s")]
    lines += [text(12, y, words, "s") for y, words in (
        (70, f"{len(guesses)} passes of the"), (86, "small model: guesses"), (121, "q: its probability"),
        (145, "1 pass of the big"), (161, "model: p, for all"), (185, "chance min(1, p/q)"), (209, "a coin, 0 to 1"),
        (234, "so it is"), (280, "the text now"),
    )]  # fmt: skip
    for i, guess in enumerate(guesses):
        kind, middle = guess["fate"], LEFT + i * COLUMN + COLUMN / 2 - 7
        lines += box(i, 58, tokens[str(guess["token"])], kind)
        told = [(121, guess["draft_prob"]), (153, guess.get("target_prob")), (185, guess.get("chance"))]
        told.append((209, guess.get("coin")))
        lines += [
            text(middle, y, f"{value:.2f}" if value >= 0.1 else f"{value:.3f}", anchor="middle")
            for y, value in told
            if value is not None
        ]
        lines.append(text(middle, 234, VERDICTS[kind], f"b {kind}", "middle"))
    kept = [tokens[str(guesses[i]["token"])] for i in one["path"]]
    for i, token in enumerate(kept):
        lines += box(i, 258, token, "kept")
    lines += box(len(kept), 258, tokens[str(own["token"])], "own")
    beside = LEFT + (len(kept) + 1) * COLUMN
    lines.append(text(beside, 272, "◂ the big model's own, drawn", "s"))
    lines.append(text(beside, 289, "from max(0, p − q) rescaled", "s"))  # noqa: RUF001
    n_written = len(one["committed"])
    lines.append(
        text(LEFT, 318, f"One pass of the big model, {n_written} tokens, each with exactly its probability.", "s")
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} 332" width="{WIDE}" role="img" '
        f'aria-label="A round: of {len(guesses)} guesses {len(kept)} kept, one refused and replaced">'
    )
    back = f'<rect class="back" width="{WIDE}" height="332" rx="8"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", back, *lines, "</svg>\n"])


def telling(data: dict[str, Any]) -> int:
    """The first chain of which two guesses were kept, one refused and one never seen, with chances that can be worked
    out from what is shown. Raises ValueError without one."""
    for number, one in enumerate(data["rounds"]):
        fates = [guess["fate"] for guess in one["guesses"]]
        if fates == ["kept", "kept", "refused", "lost"] and not one["tree"]:
            judged = one["guesses"][:3]
            if all(min(guess["draft_prob"], guess["target_prob"]) >= 0.01 for guess in judged):
                return number
    raise ValueError("no round of this run kept two of four guesses, none of p or q below 0.01: take another seed")


if __name__ == "__main__":
    run = json.load(sys.stdin)
    sys.stdout.write(picture(run, telling(run)))
