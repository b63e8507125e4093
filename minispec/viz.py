"""Data as text for a terminal: pieces in colour, the closing line, a comparison and why it came out so, checks."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from minispec.session import Settings
from minispec.trace import Run, token_kinds

if TYPE_CHECKING:
    from minispec.session import Pair
    from minispec.speculative import Step
    from minispec.tokenizer import Tokenizer
    from minispec.verify import Check

STYLES: dict[str, dict[str, Any]] = {
    "accepted": {"fg": "green"},
    "replaced": {"fg": "red", "bold": True},
    "bonus": {"fg": "cyan", "underline": True},
    "refused": {"fg": "red", "strikethrough": True},
    "plain": {},
}
WIDTH = 80  # columns of a round's line
LONG_TOKEN = 24  # columns of a token in it
ENDS = {
    "length": "cut at -n",
    "stop": "ended by itself or by --stop",
    "context": "the context window is full",
    None: "unfinished",
}
LEGEND = {"accepted": "guessed and kept", "replaced": "corrected", "bonus": "bonus"}


def style(text: str, kind: str) -> str:
    """Text in the colour of its kind; line ends stay bare, so that no style runs on to the margin."""
    return "\n".join(click.style(line, **STYLES[kind]) if line else "" for line in text.split("\n"))


def legend() -> str:
    """What the colours mean."""
    return "  ".join(style(meaning, kind) for kind, meaning in LEGEND.items())


def rate(value: float | None) -> str:
    """A share as per cent, or n/a."""
    return "n/a" if value is None else f"{100 * value:.0f} %"


def number(value: float | None) -> str:
    """A figure with about three digits, or n/a."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def counted(n: int, thing: str) -> str:
    """A number of things: 1 pass, 2 passes."""
    return f"{n} {thing}{'' if n == 1 else 'es' if thing.endswith('s') else 's'}"


def closing_line(run: Run, sampled_seed: int | None = None) -> str:
    """How many passes, tokens a pass, accept rate, tokens a second, the seed of dice, and why the text ended."""
    if not run.ids:
        return f"no tokens: {ENDS[run.finish]}"
    parts = [f"{counted(len(run.ids), 'token')} in {counted(run.passes, 'pass')}: {number(run.tokens_per_pass)} a pass"]
    if run.drafted:
        parts.append(f"{rate(run.accept_rate)} of {run.drafted} guesses kept")
    parts.append(f"{number(run.tokens_per_second)} tokens/s")
    if sampled_seed is not None:
        parts.append(f"seed {sampled_seed}")
    parts.append(ENDS[run.finish])
    return ", ".join(parts)


def batch_line(runs: Sequence[Run], seconds: float) -> str:
    """Tokens of all texts, and tokens a second of them together. (Texts share passes, so these are counted in none.)"""
    n_tokens, drafted = sum(len(run.ids) for run in runs), sum(run.drafted for run in runs)
    kept = f", {rate(sum(run.accepted for run in runs) / drafted)} of {drafted} guesses kept" if drafted else ""
    return f"{counted(len(runs), 'text')}, {n_tokens} tokens{kept}, {number(n_tokens / seconds)} tokens/s in all"


# --- rounds ----------------------------------------------------------------------------------------


def rounds(run: Run, tokenizer: Tokenizer, color: bool = False, width: int = WIDTH) -> Iterator[str]:
    """A line for every round: what was guessed, how much was kept, and the target's own token.

    At most `width` columns: the guesses are cut, the target's own token is not.
    """
    for i, step in enumerate(run.steps, 1):
        head = f"{i:4} {step.n_accepted} of {len(step.drafted)}: "
        own = [(f" {kind} ", "") for _, kind in token_kinds(step) if kind != "accepted"]
        own += [(shown(token, tokenizer), kind) for token, kind in token_kinds(step) if kind != "accepted"]
        room = width - len(head) - sum(columns(text) for text, _ in own)
        pieces = [(head, ""), *cut(list(guesses(step, tokenizer)), room), *own]
        yield "".join(style(text, kind) if color and kind else text for text, kind in pieces).rstrip()


def guesses(step: Step, tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """The guesses of a round in pieces, each with its kind: those kept, then those refused, or the tree."""
    if step.parents:
        yield "tree ", ""
        yield from tree(step, tokenizer)
        return
    if not step.drafted:
        yield "no guesses", ""
        return
    for words, kind, tokens in (
        ("kept [", "accepted", step.drafted[: step.n_accepted]),
        (" refused [", "refused", step.drafted[step.n_accepted :]),
    ):
        yield words, ""
        for i, token in enumerate(tokens):
            yield "|" * (i > 0), ""
            yield shown(token, tokenizer), kind
        yield "]", ""


def tree(step: Step, tokenizer: Tokenizer, guess: int = -1) -> Iterator[tuple[str, str]]:
    """The guesses after one, or after the text: siblings with a bar between them, kept ones with a star before."""
    children = [child for child, parent in enumerate(step.parents or ()) if parent == guess]
    for i, child in enumerate(children):
        kept = child in step.path
        yield "|" if i else "[", ""
        yield "*" * kept + shown(step.drafted[child], tokenizer), "accepted" if kept else "refused"
        yield from tree(step, tokenizer, child)
    if children:
        yield "]", ""


def shown(token: int, tokenizer: Tokenizer) -> str:
    """A token in quotes, what is not printed as its escape; the bytes of one that is no whole text; long ones cut."""
    data = tokenizer.token_bytes(token)
    try:
        text = repr(data.decode("utf-8"))
    except UnicodeDecodeError:
        text = repr(data)
    return text if columns(text) <= LONG_TOKEN else fitting(text, LONG_TOKEN - 2) + "…" + text[-1]


def columns(text: str) -> int:
    """The columns that a terminal gives a text: two for wide letters, none for accents that stand on another."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def fitting(text: str, room: int) -> str:
    """As much of a text as fits."""
    while columns(text) > room:
        text = text[:-1]
    return text


def cut(pieces: Sequence[tuple[str, str]], room: int) -> Iterator[tuple[str, str]]:
    """Pieces with their kinds, as they are where they fit, else cut with an ellipsis."""
    if sum(columns(text) for text, _ in pieces) <= room:
        yield from pieces
        return
    room -= 1
    for text, kind in pieces:
        yield fitting(text, room), kind
        room -= columns(text)
        if room <= 0:
            break
    yield "…", ""


def comparison(
    plain: Run,
    speculative: Run,
    same: bool | None,
    speedup: float,
    pairs: Sequence[float] = (),
    sampled_seed: int | None = None,
) -> str:
    """Both ways of writing side by side, and the verdict; `pairs` are the speed-ups of single repetitions, sorted."""
    rows = [f"{'':12} {'tokens':>7} {'passes':>7} {'a pass':>7} {'kept':>6} {'seconds':>8} {'tokens/s':>9}"]
    for name, run in (("plain", plain), ("speculative", speculative)):
        rows.append(
            f"{name:12} {len(run.ids):7} {run.passes:7} {number(run.tokens_per_pass):>7} {rate(run.accept_rate):>6} "
            f"{run.seconds:8.3f} {number(run.tokens_per_second):>9}"
        )
    verdicts = {True: "same text, token for token", False: "THE TEXTS DIFFER", None: "sampled: two draws of one law"}
    seeded = "" if sampled_seed is None else f"; seed {sampled_seed}"
    spread = f" ({pairs[0]:.2f} to {pairs[-1]:.2f} over {len(pairs)})" if pairs else ""
    rows.append(f"{verdicts[same]}; speed-up {speedup:.2f}{spread}{seeded}")
    return "\n".join(rows)


def why_slower(plain: Run, speculative: Run) -> str:
    """Where the time went when speculation lost, and what to try: accept rate, cost ratio, cost of a check."""
    if not speculative.drafted:
        return "why: no guesses were made\ntry: -k 1 or more, and a draft model whose context window has room"
    one_row = median(step.target_seconds for step in plain.steps)
    check = median(step.target_seconds for step in speculative.steps)
    guess = sum(step.draft_seconds for step in speculative.steps) / max(speculative.drafted, 1)
    cost, gain = guess / one_row, speculative.tokens_per_pass or 0.0
    reason = (
        f"why: {rate(speculative.accept_rate)} of the guesses were kept, so a round wrote {number(gain)} tokens; "
        f"a guess cost {cost:.2f} of a plain pass and a check {check / one_row:.2f}"
    )
    hints = ["a cheaper draft model"] if cost > 0.5 else []
    hints += ["a draft model that is closer to the target"] if (speculative.accept_rate or 0) < 0.5 else []
    hints += ["a smaller -k"] if max(len(step.drafted) for step in speculative.steps) > 1 else []
    return f"{reason}\ntry: {', '.join([*hints, '-d none (plain decoding)'])}"


# --- verify ----------------------------------------------------------------------------------------


def check_line(check: Check, command: str) -> str:
    """One check as a line: passed with what it compared, or FAILED with the difference and the command to see it."""
    head = f"{check.name:14} {'passed' if check.passed else 'FAILED'}   "
    again = "" if check.passed else f"\n{'':{len(head)}}to see it again: {command}"
    return f"{head}{check.detail} ({check.seconds:.1f} s){again}"


def verify_command(settings: Settings, check: Check, threads: int | None, quick: bool) -> str:
    """The command that makes this check again, with the seed of the trial that failed."""
    default, chosen = Settings(), [("--only", check.name), ("--target", settings.target)]
    chosen += [("--draft", settings.draft)] if settings.draft is not None else []
    chosen += [("--seed", str(settings.seed if check.seed is None else check.seed))]
    for name in ("weights", "draft_weights", "backend"):
        value = getattr(settings, name)
        chosen += [(f"--{name.replace('_', '-')}", value)] if value != getattr(default, name) else []
    chosen += [("--tree", ",".join(map(str, settings.tree)))] if settings.tree else []
    chosen += [("--threads", str(threads))] if threads is not None else []
    words = [word for option in chosen for word in option] + ["--quick"] * quick + ["--offline"] * settings.offline
    return shlex.join(["minispec", "verify", *words])


def hash_line(name: str, digest: str, everywhere: bool) -> str:
    """The first digits of the hash of a model's logits, and on which machines it is the same."""
    where = "the same on every machine with fused multiply-add" if everywhere else "other machines may have another"
    return f"{'logits':14} {digest[:16]}   sha256 for {name}; {where}"


def verdict(checks: Sequence[Check], where: str) -> str:
    """The closing line: how many checks passed, or which failed."""
    failed = [check.name for check in checks if not check.passed]
    if failed:
        return f"NOT EXACT: {len(failed)} of {counted(len(checks), 'check')} failed: {', '.join(failed)}"
    passed = f"all {counted(len(checks), 'check')}" if len(checks) > 1 else checks[0].name
    return f"exact: {passed} passed on {where}"


def runs_on(settings: Settings, pair: Pair) -> str:
    """Threads or backend, and the models by name."""
    draft = "a stand-in for a draft" if settings.draft_name is None else settings.draft_name
    if pair.target.backend == "numpy":
        return f"the NumPy backend, {settings.target} with {draft}"
    import numba

    return f"{counted(numba.get_num_threads(), 'thread')}, {settings.target} with {draft}"
