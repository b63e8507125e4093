"""Batches as they were written, plainly and with guesses: how fast, what their passes predict, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class BatchSpeed:
    """B texts written together, plainly and with drafts of k tokens.

    Attributes: rows, of a check of all texts, B (k + 1); passes, of the target; tokens_per_pass, of a text;
    check_cost, of a pass of that many rows over one of B; draft_cost, of k draft passes of B rows over the same;
    predicted_speedup, tokens_per_pass / (draft_cost + check_cost), of passes alone: prompts, draws and what threads
    say to each other are left out; same_text, whether all wrote what each writes alone.
    """

    texts: int
    num_draft_tokens: int
    rows: int
    plain_passes: int
    passes: int
    plain_tokens_per_second: float
    tokens_per_second: float
    tokens_per_pass: float
    check_cost: float
    draft_cost: float
    speedup: float
    predicted_speedup: float
    same_text: bool


@dataclass(frozen=True)
class Text:
    """A prompt, and what the target writes after it, alone."""

    prompt: list[int]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """A batch as it was written."""

    ids: tuple[tuple[int, ...], ...]
    seconds: float
    passes: int
    steps: int

    @property
    def n_tokens(self) -> int:
        """New tokens of all texts."""
        return sum(map(len, self.ids))


def compare(
    texts: Sequence[Text],
    n_draft: int,
    plain: Sequence[tuple[Written, float, float]],
    speculative: Sequence[tuple[Written, float, float]],
) -> BatchSpeed:
    """Medians over turns, of ratios within each."""
    one, other = plain[0][0], speculative[0][0]
    pairs = list(zip(plain, speculative, strict=True))
    expected = tuple(text.ids for text in texts)
    per_pass = other.n_tokens / other.steps
    check_cost = median(check / alone for (_, alone, _), (_, check, _) in pairs)
    draft_cost = median(drafts / alone for (_, alone, _), (_, _, drafts) in pairs)
    return BatchSpeed(
        texts=len(texts),
        num_draft_tokens=n_draft,
        rows=len(texts) * (1 + n_draft),
        plain_passes=one.passes,
        passes=other.passes,
        plain_tokens_per_second=median(written.n_tokens / written.seconds for written, _, _ in plain),
        tokens_per_second=median(written.n_tokens / written.seconds for written, _, _ in speculative),
        tokens_per_pass=per_pass,
        check_cost=check_cost,
        draft_cost=draft_cost,
        speedup=median(a.seconds / b.seconds for (a, _, _), (b, _, _) in pairs),
        predicted_speedup=per_pass / (draft_cost + check_cost),
        same_text=all(written.ids == expected for pair in pairs for written, _, _ in pair),
    )


def explain(rows: Sequence[BatchSpeed]) -> str:
    """Where speculation stops to pay, and why, in a sentence."""
    best = {row.texts: row for row in sorted(rows, key=lambda row: row.speedup)}  # the best draft length of each
    paying = [size for size in sorted(best) if best[size].speedup > 1]
    losing = [size for size in sorted(best) if best[size].speedup <= 1]
    if not losing:
        where = f"at its best k, speculation pays for every batch, {best[min(best)].speedup:.2f} times for {min(best)}"
        where += f" and {best[max(best)].speedup:.2f} for {max(best)}" if len(best) > 1 else ""
    elif not paying:
        where = "speculation pays for no batch here"
    else:
        where = f"at its best k, speculation pays for batches of {join(paying)} and not for {join(losing)}"
    return (
        f"{where}: a check has k + 1 times the rows of a plain pass, which cost little while reading weights takes the "
        "time; each text of a batch brings rows of its own, and once arithmetic takes it, a refused guess is a loss"
    )


def join(sizes: Sequence[int]) -> str:
    """1, 2 and 4."""
    *most, last = map(str, sizes)
    return f"{', '.join(most)} and {last}" if most else last
