"""Runs as data and as text for a terminal."""

from __future__ import annotations

from minispec.speculative import Step
from minispec.trace import Run, run_all, token_kinds
from minispec.viz import closing_line, comparison, number, rate, why_slower

PLAIN = Run([1], [Step((), 0, (t,), None, 0.0, 0.010) for t in range(10)], 0.100)


def speculative(draft_seconds: float, drafted: int = 4, accepted: int = 1, rounds: int = 5) -> Run:
    step = Step(tuple(range(drafted)), accepted, (*range(accepted), 9), None, draft_seconds, 0.012)
    return Run([1], [step] * rounds, rounds * (draft_seconds + 0.012))


def test_how_each_token_came() -> None:
    assert token_kinds(Step((5, 6), 1, (5, 7), None)) == [(5, "accepted"), (7, "replaced")]
    assert token_kinds(Step((5, 6), 2, (5, 6, 7), None)) == [(5, "accepted"), (6, "accepted"), (7, "bonus")]
    assert token_kinds(Step((5, 6), 1, (5,), "stop")) == [(5, "accepted")]
    assert token_kinds(Step((), 0, (7,), None)) == [(7, "plain")]


def test_counts_of_a_run() -> None:
    run = speculative(0.004)
    assert (run.passes, run.drafted, run.accepted, len(run.ids)) == (5, 20, 5, 10)
    assert (run.accept_rate, run.tokens_per_pass) == (0.25, 2.0)
    empty = run_all([1], [Step((), 0, (), "length")])
    assert (empty.passes, empty.accept_rate, empty.tokens_per_pass, empty.tokens_per_second) == (0, None, None, None)
    assert empty.finish == "length"
    assert closing_line(empty) == "no tokens: cut at -n"
    one = closing_line(Run([1], [Step((), 0, (7,), "stop")], 0.5))
    assert one == "1 token in 1 pass: 1 a pass, 2 tokens/s, ended by itself or by --stop"


def test_why_speculation_was_slower() -> None:
    text = why_slower(PLAIN, speculative(0.080))
    for part in ("25 % of the guesses were kept", "wrote 2 tokens", "a guess cost 2.00", "a check 1.20"):
        assert part in text
    assert "cheaper draft model" in text
    assert "smaller -k" in text
    assert "cheaper" not in why_slower(PLAIN, speculative(0.004))
    assert "smaller -k" not in why_slower(PLAIN, speculative(0.004, drafted=1))
    assert "no guesses were made" in why_slower(PLAIN, speculative(0.0, drafted=0, accepted=0))


def test_a_comparison_and_its_figures() -> None:
    run = speculative(0.004)
    assert "same text" in comparison(PLAIN, run, True, 1.25)
    assert "speed-up 1.25" in comparison(PLAIN, run, True, 1.25)
    assert "DIFFER" in comparison(PLAIN, run, False, 1.25)
    assert "1.25 (1.10 to 1.40 over 2)" in comparison(PLAIN, run, None, 1.25, [1.1, 1.4], 3)
    assert "seed 3" in comparison(PLAIN, run, None, 1.25, [1.1, 1.4], 3)
    assert [number(x) for x in (None, 1.234, 12345.6)] == ["n/a", "1.23", "12,346"]
    assert [rate(x) for x in (None, 0.256, 1.0)] == ["n/a", "26 %", "100 %"]
