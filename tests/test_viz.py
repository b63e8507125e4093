"""Runs as data and as text for a terminal."""

from __future__ import annotations

import re

from minispec.protocols import Step
from minispec.trace import Run, run_all, token_kinds
from minispec.viz import closing_line, comparison, number, rate, style, why_slower
from minispec.viz_rounds import columns, rounds

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
    assert closing_line(empty, 7) == "no tokens: cut at -n"
    one = Run([1], [Step((), 0, (7,), "stop")], 0.5)
    assert closing_line(one, 7) == "1 token in 1 pass: 1 a pass, 2 tokens/s, ended by itself"
    assert closing_line(one, 8) == "1 token in 1 pass: 1 a pass, 2 tokens/s, stopped before --stop"


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


class Bytes:
    """A tokenizer of single bytes, but for a long token and a word of wide letters."""

    def token_bytes(self, token: int) -> bytes:
        return {300: b"-" * 64, 301: "日本語".encode(), 302: b"\xf0\x9f"}.get(token) or bytes([token])


def lines(*steps: Step, color: bool = False) -> list[str]:
    return list(rounds(Run([1], list(steps)), Bytes(), color))  # type: ignore[arg-type]


def test_a_round_is_a_line_of_80_columns_at_most() -> None:
    few = Step((97, 98, 99), 1, (97, 120), None)
    assert lines(few) == ["   1 1 of 3: kept ['a'] refused ['b'] not judged ['c'] replaced 'x'"]
    assert lines(Step((), 0, (97,), None)) == ["   1 0 of 0: no guesses plain 'a'"]
    assert lines(Step((97,), 1, (97,), "stop")) == ["   1 1 of 1: kept ['a']"]
    assert lines(Step((97, 98), 1, (97,), "stop")) == ["   1 1 of 2: kept ['a'] not judged ['b']"]
    many = Step((*range(97, 122),) * 2, 50, (*range(97, 122), *range(97, 122), 300), None)
    wide = Step((301,) * 30, 3, (301, 301, 301, 302), None)
    deep = Step((301,) * 30, 0, (302,), None, parents=tuple(range(-1, 29)))
    for step, end in ((many, f"… bonus '{'-' * 21}…'"), (wide, r"… replaced b'\xf0\x9f'"), (deep, r" b'\xf0\x9f'")):
        (line,) = lines(step)
        assert 75 <= columns(line) <= 80, line
        assert line.endswith(end), line
        (colored,) = lines(step, color=True)
        assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == line


def test_of_a_block_all_guesses_are_judged_unless_the_text_ends() -> None:
    for step, told in (
        (Step((97, 98, 99), 1, (97, 120), None), "kept ['a'] refused ['b'|'c'] replaced 'x'"),
        (Step((97, 98, 99), 3, (97, 98, 99, 120), None), "kept ['a'|'b'|'c'] bonus 'x'"),
        (Step((97, 98, 99), 2, (97, 98), "stop"), "kept ['a'|'b'] not judged ['c']"),
    ):
        (line,) = rounds(Run([1], [step]), Bytes(), block=True)  # type: ignore[arg-type]
        assert line.endswith(told)


def test_where_a_round_is_cut_its_end_is_there() -> None:
    """The refused guess and what stands in its place; of those not judged, and then of those kept, as much as fits."""
    for n_kept, expected in (
        (3, "   1 3 of 12: kept ['a'|'a'|'a'] refused ['b'] not judged ['a'|'a'… replaced 'x'"),
        (5, "   1 5 of 12: kept ['a'|'a'|'a'|'a'|'a'] refused ['b'] … replaced 'x'"),
        (11, "   1 11 of 12: kept ['a'|'a'|'a'|'a'|'a'|'a'|'a'|'a'… refused ['b'] replaced 'x'"),
    ):
        drafted = (*(97,) * n_kept, 98, *(97,) * (11 - n_kept))
        assert lines(Step(drafted, n_kept, (*(97,) * n_kept, 120), None)) == [expected]
    (line,) = lines(Step((97, *(300,) * 4), 1, (97, 300), None))
    assert columns(line) <= 80
    assert line.startswith("   1 1 of 5: … refused ['-----")
    assert line.endswith(f"… … replaced '{'-' * 21}…'")


def test_colours_tell_kept_from_refused_from_the_targets_own() -> None:
    (line,) = lines(Step((97, 98), 1, (97, 120), None), color=True)
    for text, kind in (("'a'", "accepted"), ("'b'", "refused"), ("'x'", "replaced")):
        assert style(text, kind) in line
    assert len({style("x", kind) for kind in ("accepted", "refused", "replaced", "bonus", "plain")}) == 5
