"""A sweep's parts: prompts, counts that add up, keys, the file to go on from, workers that die. Nothing is timed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import table

from minispec import sweep as module
from minispec import sweep_workers
from minispec.drafters import SmallModelDrafter
from minispec.hub import find_model
from minispec.plain import generate
from minispec.prompts import Prompt, built_in_prompts, first_of_each_kind, read_prompts
from minispec.protocols import Step
from minispec.sampling import Sampling
from minispec.settings import Settings
from minispec.speculative import Dice, speculate
from minispec.sweep import Job, Result, check_here, group_jobs, job_key, make_jobs
from minispec.sweep_counts import (
    Counts,
    Seconds,
    accept_by_place,
    count_run,
    expected_tokens,
    measured_speedup,
    predicted_speedup,
    time_run,
)
from minispec.sweep_file import open_results
from minispec.sweep_report import make_rows
from minispec.sweep_workers import MOST_DEATHS, Group, InProcess, Workers, do_groups, in_process, processes
from minispec.trace import Run, run_all

KINDS = ("story", "list", "code", "quotation", "repetition", "question")

# --- prompts -----------------------------------------------------------------------------------------


def test_the_built_in_prompts_are_ten_of_each_kind_and_all_different() -> None:
    prompts = built_in_prompts()
    assert [prompt.kind for prompt in prompts] == [kind for kind in KINDS for _ in range(10)]
    assert len({prompt.text for prompt in prompts}) == len({prompt.id for prompt in prompts}) == 60
    # Words begin with their space, and lines of code with all spaces but the last.
    assert {prompt.kind for prompt in prompts if prompt.text.endswith(" ")} <= {"code"}
    assert [prompt.kind for prompt in first_of_each_kind(prompts, 1)] == list(KINDS)


def test_prompts_of_both_forms(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_bytes("\ufeffOne day\r\n\n  Zwölf Boxkämpfer\nOne day\n".encode())
    read = [("One day", 1), ("  Zwölf Boxkämpfer", 3), ("One day", 4)]
    assert read_prompts(lines) == [Prompt(text, id=f"line {number}") for text, number in read]
    objects = '\n{"prompt": "a\\nb", "kind": "list", "id": 7, "more": []}\n{"prompt": "c"}'
    for name in ("prompts.jsonl", "prompts.data"):
        (tmp_path / name).write_text(objects)
        assert read_prompts(tmp_path / name) == [Prompt("a\nb", "list", "7"), Prompt("c", id="line 3")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"prompt": "x"', "line 3: not JSON"),
        (b"plain text", "line 3: not JSON"),
        (b"[1]", "line 3: a JSON list where an object must be"),
        (b'{"text": "x"}', 'line 3: the object has no "prompt"'),
        (b'{"prompt": ""}', 'line 3: "prompt" is ""'),
        (b'{"prompt": 3}', 'line 3: "prompt" is 3'),
        (b'{"prompt": "x", "kind": null}', 'line 3: "kind" is null'),
        (b'{"prompt": "x", "id": true}', 'line 3: "id" is true'),
        (b'{"prompt": "\\ud800"}', "line 3: half a character"),
        (b'{"prompt": "\xff"}', "line 3: not UTF-8"),
        (b"[" * 100_000, "line 3: not JSON"),
    ],
)
def test_the_line_of_a_bad_prompt_is_named(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "good"}\n\n' + line + b'\n{"prompt": "good"}\n')
    with pytest.raises(ValueError, match=r"prompts\.jsonl, ") as error:
        read_prompts(path)
    assert complaint in str(error.value)


def test_a_file_without_prompts(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    for path, complaint in ((tmp_path / "empty.txt", "holds no prompt"), (tmp_path / "none", "No such file")):
        with pytest.raises(ValueError, match=complaint):
            read_prompts(path)


# --- counts ------------------------------------------------------------------------------------------


def test_counts_of_a_text_worked_by_hand() -> None:
    """Guesses after a refused one, and after a stop, are not judged; a kept one is judged."""
    steps = [
        Step((5, 6, 7), 3, (5, 6, 7, 8), None, 1.0, 10.0),  # all kept, and a bonus
        Step((5, 6, 7), 1, (5, 9), None, 2.0, 20.0),  # the second refused, the third unknown
        Step((5,), 0, (4,), None, 4.0, 40.0),
        Step((5, 6, 7), 2, (5, 6), "stop", 8.0, 80.0),  # the text ends with the second
    ]
    run, plain = Run([1], steps, 300.0), Run([1], [Step((), 0, (t,), None, 0.0, 7.0) for t in range(9)], 600.0)
    counts, seconds = count_run(run, plain, determined=True), time_run(run, plain)
    assert counts == Counts(
        texts=1, tokens=9, plain_tokens=9, passes=4, rounds=4, drafted=10, different=1,
        judged=(4, 3, 1), kept=(3, 2, 1), later=(0, 1, 0, 2), later_plain=8,
    )  # fmt: skip
    assert count_run(run, run, determined=True).different == count_run(run, plain, determined=False).different == 0
    assert seconds == Seconds(
        plain=600.0, speculative=300.0, draft=15.0, target=150.0,
        later_draft=(0, 4.0, 0, 10.0), later_target=(0, 40.0, 0, 100.0), later_plain=56.0,
    )  # fmt: skip
    assert accept_by_place(counts) == [3 / 4, 2 / 3, 1.0]
    assert expected_tokens(accept_by_place(counts)) == 1 + 3 / 4 + 1 / 2 + 1 / 2
    assert measured_speedup(counts, seconds) == 2
    # A pass of one row takes 7, a guess 14 over the 7 guesses, a pass over four rows 50.
    assert predicted_speedup(counts, seconds, 3) == pytest.approx(2.75 / (3 * 2 / 7 + 50 / 7))
    assert predicted_speedup(counts, seconds, 2) is predicted_speedup(counts, seconds, 4) is None
    assert expected_tokens([0.5, None, 0.5]) == 1.5
    assert measured_speedup(Counts(), Seconds()) is None


class Watched(Dice):
    """Dice that remember what became of every guess that was judged."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.judged: list[bool] = []

    def accept(self, target_prob: Any, draft_prob: Any) -> bool:
        self.judged.append(super().accept(target_prob, draft_prob))
        return self.judged[-1]


@given(st.integers(0, 5), st.integers(1, 30), st.integers(0, 2**32), st.integers(0, 3))
def test_a_guess_is_judged_where_the_loop_threw_a_coin(n_draft: int, n_new: int, seed: int, stop: int) -> None:
    """Whatever ends a round: a refusal, a stop or the limit."""
    target, draft, dice = table(4, seed), table(4, seed + 1), Watched(seed)
    steps = speculate(
        target, SmallModelDrafter(draft), [1], max_new_tokens=n_new, sampling=Sampling(1.0), n_draft=n_draft,
        stop=lambda new: new[-1] == stop, choices=dice,
    )  # fmt: skip
    run = run_all([1], steps)
    counts = count_run(run, run, determined=True)
    assert (sum(counts.judged), sum(counts.kept)) == (len(dice.judged), sum(dice.judged))
    assert counts.judged[:1] == ((counts.rounds,) if counts.rounds else ())
    assert list(counts.judged[1:]) <= list(counts.kept[:-1])  # only after a kept one is another judged
    assert sum(counts.later) == counts.passes - 1
    replaced = sum(len(step.committed) > step.n_accepted for step in run.steps)  # or added
    assert counts.tokens == sum(counts.kept) + replaced == len(run.ids)


numbers = st.integers(0, 10**20)
tuples = st.lists(numbers, max_size=6).map(tuple)
all_counts = st.builds(
    Counts, **{field.name: tuples if isinstance(field.default, tuple) else numbers for field in fields(Counts)}
)


@given(all_counts, all_counts, all_counts)
def test_counts_add_in_any_order_and_grouping(one: Counts, two: Counts, three: Counts) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert one + Counts() == one == Counts() + one
    for field in fields(Counts):
        a, b, both = (getattr(counts, field.name) for counts in (one, two, one + two))
        assert (sum(a) + sum(b) == sum(both)) if isinstance(a, tuple) else a + b == both


def test_seconds_add_like_counts() -> None:
    one, other = Seconds(1.0, 2.0, later_draft=(1.0,)), Seconds(0.5, 0.25, later_draft=(1.0, 4.0), later_plain=8.0)
    assert one + other == other + one == Seconds(1.5, 2.25, later_draft=(2.0, 4.0), later_plain=8.0)
    assert one + Seconds() == one


PROMPTS = [Prompt(f"prompt {i}", KINDS[i % 2], str(i)) for i in range(4)]
CELLS = [Settings(draft="story-draft", num_draft_tokens=k, temperature=t) for k in (1, 3) for t in (0.0, 1.0)]
JOBS = [Job(f"{prompt.id}/{i}", prompt, settings) for prompt in PROMPTS for i, settings in enumerate(CELLS)]


def fake(group: Group) -> list[Result]:
    """Results that no other job has."""
    ids = [JOBS.index(job) for job in group]
    return [
        Result(job.key, Counts(1, 2**i, judged=(i, 1), kept=(1,) * 2), Seconds(i / 7))
        for i, job in zip(ids, group, strict=True)
    ]


RESULTS = {result.key: result for result in fake(tuple(JOBS))}


@given(st.sets(st.sampled_from(PROMPTS)), st.randoms(use_true_random=False), st.booleans())
def test_two_halves_of_a_sweep_add_up_to_the_whole(half: set[Prompt], random: Any, by_kind: bool) -> None:
    """In whatever order the jobs come."""

    def counts_of(jobs: Sequence[Job]) -> dict[Any, Counts]:
        rows = make_rows(jobs, RESULTS, by_kind)
        return {(row.temperature, row.num_draft_tokens, row.kind): row.counts for row in rows}

    shuffled = random.sample(JOBS, len(JOBS))
    whole = counts_of(shuffled)
    one, other = (counts_of([job for job in JOBS if (job.prompt in half) == inside]) for inside in (True, False))
    assert whole == counts_of(JOBS)
    assert whole == {cell: one.get(cell, Counts()) + other.get(cell, Counts()) for cell in one | other}
    of_all = sum((counts for (_, _, kind), counts in whole.items() if kind == "all"), Counts())
    assert of_all == sum((result.counts for result in RESULTS.values()), Counts())
    kinds = sum((counts for (_, _, kind), counts in whole.items() if kind != "all"), Counts())
    assert kinds == (of_all if by_kind else Counts())


# --- jobs --------------------------------------------------------------------------------------------


def test_jobs_are_a_product_and_plain_decoding_has_no_draft_length() -> None:
    prompts = [Prompt("a"), Prompt("b"), Prompt("a", "story")]
    jobs = make_jobs(Settings(draft_weights="int8"), prompts, [None, "none"], [2, 4], [0.0, 1.0])
    assert len(jobs) == 2 * (2 + 1) * 2  # the same text twice is the same job
    cells = {(job.settings.draft, job.settings.num_draft_tokens, job.settings.temperature) for job in jobs}
    assert cells == {("story-draft", k, t) for k in (2, 4) for t in (0.0, 1.0)} | {("none", 0, t) for t in (0.0, 1.0)}
    groups = group_jobs(jobs, {jobs[0].key})
    assert sorted(map(len, groups)) == [1, 1, 1, 1, 1, 2, 2, 2]
    assert [job for job in jobs if job not in sum(groups, ())] == jobs[:1]


def test_a_key_holds_all_that_counts_depend_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prompt, settings = Prompt("a", "story", "1"), Settings(draft="story-draft", temperature=1.0)
    key = job_key(prompt, settings)
    others = {
        "target": "story-draft", "draft": "story-target", "num_draft_tokens": 5, "max_new_tokens": 5,
        "temperature": 2.0, "top_k": 5, "top_p": 0.5, "seed": 5, "coupling": "gumbel", "stop": ("x",),
        "weights": "int8", "draft_weights": "int8", "backend": "numpy", "tree": (2, 1),
        "verification": "block", "schedule": "overlapped",
    }  # fmt: skip
    assert others.keys() == asdict(settings).keys() - {"offline"}
    keys = [job_key(prompt, replace(settings, **{name: value})) for name, value in others.items()]  # type: ignore[arg-type]
    keys += [job_key(Prompt("b", "story", "1"), settings), job_key(prompt, replace(settings, draft="none")), key]
    assert len(set(keys)) == len(keys)
    assert job_key(Prompt("a", "list", "2"), replace(settings, offline=True)) == key
    monkeypatch.setattr(module, "__version__", "another")
    assert job_key(prompt, settings) not in keys


def test_a_key_knows_the_bytes_of_a_model_and_not_its_name(tmp_path: Path) -> None:
    box = find_model("story-draft")
    copies = [tmp_path / "copy", tmp_path / "changed"]
    for copy in copies:
        copy.mkdir()
        for file in box.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
    weights = copies[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    same, changed = (job_key(Prompt("a"), Settings(draft=str(copy))) for copy in copies)
    assert same == job_key(Prompt("a"), Settings(draft="story-draft")) != changed


def test_a_machine_with_another_minispec_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = make_jobs(Settings(), [Prompt("a")], [None], [1], [0.0])
    check_here(job)
    monkeypatch.setattr(module, "__version__", "another")
    with pytest.raises(ValueError, match=r"another version of minispec \(there another\), or other files of story-t"):
        check_here(job)


# --- the file ----------------------------------------------------------------------------------------


def sweep_into(path: Path, work: Callable[[Group], list[Result]], jobs: Sequence[Job] = JOBS) -> dict[str, Result]:
    """What the command does: read the file, do what it lacks, keep it."""
    by_key = {job.key: job for job in jobs}
    with open_results(path) as file:
        for _, results in do_groups(group_jobs(jobs, file.results), Workers(InProcess, work)):
            for result in results:
                file.append(by_key[result.key], result)
        return {key: file.results[key] for key in by_key}


def test_a_sweep_goes_on_from_a_file_cut_at_any_byte(tmp_path: Path) -> None:
    path, done = tmp_path / "results.jsonl", list[str]()

    def work(group: Group) -> list[Result]:
        done.extend(job.key for job in group)
        return fake(group)

    jobs = JOBS[:2]
    assert sweep_into(path, work, jobs) == {job.key: RESULTS[job.key] for job in jobs}
    whole = path.read_bytes()
    assert len(whole.splitlines()) == 2
    second = whole.index(b"\n")
    for cut in {*range(0, second, 11), *range(second, len(whole) + 1)}:  # of a first line, less often
        path.write_bytes(whole[:cut])
        done.clear()
        assert sweep_into(path, work, jobs) == {job.key: RESULTS[job.key] for job in jobs}
        assert len(done) == 2 - whole[:cut].count(b"\n")
        assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_lines_of_other_settings_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    sweep_into(path, fake, JOBS[:5])
    assert sweep_into(path, fake, JOBS[3:]) == {job.key: RESULTS[job.key] for job in JOBS[3:]}
    assert len(path.read_bytes().splitlines()) == len(JOBS)


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"{}\n", b'{"key": "a"}\n', b'{"keys": []'])
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"notes.txt, line 1: no result of a sweep"):
        sweep_into(path, fake)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        ("counts", "texts", -1), ("counts", "texts", 1.5), ("counts", "texts", True), ("counts", "texts", 10**400),
        ("counts", "judged", 3), ("counts", "judged", ["a"]), ("counts", "kept", [1] * 99),
        ("seconds", "plain", float("inf")), ("seconds", "plain", float("nan")), ("seconds", "plain", 10**400),
    ],
)  # fmt: skip
def test_a_changed_line_is_named(tmp_path: Path, change: tuple[str, str, Any]) -> None:
    path = tmp_path / "results.jsonl"
    sweep_into(path, fake, JOBS[:2])
    first, second = path.read_text().splitlines()
    content = json.loads(second)
    content[change[0]][change[1]] = change[2]
    path.write_text(first + "\n" + json.dumps(content) + "\n")
    with pytest.raises(ValueError, match=r"results\.jsonl, line 2: no result of a sweep"):
        sweep_into(path, fake)


def test_a_second_run_on_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with open_results(path), pytest.raises(ValueError, match="in use by another run"), open_results(path):
        pass
    with open_results(path):
        pass
    assert list(tmp_path.iterdir()) == [path]
    with (
        pytest.raises(ValueError, match=r"--output-file .*: there is no folder"),
        open_results(tmp_path / "no" / "file"),
    ):
        pass


# --- workers that die --------------------------------------------------------------------------------


class Dying(InProcess):
    """Does so many groups; then it is gone, with all that was submitted."""

    def __init__(self, n: int) -> None:
        self.left = n

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.left -= 1
        if self.left < -2:
            raise BrokenExecutor
        future: Future[Any] = super().submit(fn, *args, **kwargs)
        if self.left < 0:
            future = Future()
            future.set_exception(BrokenExecutor())
        return future


@given(st.lists(st.integers(0, 4), max_size=8), st.one_of(st.none(), st.integers(1, 5)))
def test_workers_may_die_and_nothing_is_lost_or_done_twice(lives: list[int], in_flight: int | None) -> None:
    left = iter(lives)
    workers = Workers(lambda: Dying(next(left, 99)), fake, in_flight, (BrokenExecutor,), "remedy")
    groups, came = group_jobs(JOBS), list[str]()
    until = next((i for i in range(len(lives)) if lives[i : i + MOST_DEATHS] == [0] * MOST_DEATHS), None)
    hopeless = until is not None and sum(lives[:until]) < len(groups)
    with pytest.raises(ValueError, match="the workers died 3 times") if hopeless else nullcontext():
        for group, results in do_groups(groups, workers):
            assert results == fake(group)
            came += [result.key for result in results]
    assert len(set(came)) == len(came)
    assert len(came) == (2 * sum(lives[:until]) if hopeless else len(JOBS))


def test_an_error_that_is_no_death_is_told() -> None:
    def work(group: Group) -> list[Result]:
        raise ValueError("what is wrong")

    with pytest.raises(ValueError, match="what is wrong"):
        list(do_groups(group_jobs(JOBS), Workers(InProcess, work, lost=(BrokenExecutor,))))


# --- the same counts wherever they are counted ---------------------------------------------------------

N = 10
Done = tuple[Group, list[Result]]


@pytest.fixture(scope="module")
def real_groups() -> list[Group]:
    """Texts by the pair in the box, small enough to wait for."""
    prompts = first_of_each_kind(built_in_prompts(), 1)
    jobs = make_jobs(Settings(max_new_tokens=N), prompts, [None], [1, 3], [0.0, 1.0])
    return group_jobs(jobs)


@pytest.fixture(scope="module")
def serial(real_groups: list[Group]) -> dict[str, Counts]:
    return counts_by_key(do_groups(real_groups, in_process()))


def counts_by_key(done: Iterator[Done], after: Callable[[int], object] = str) -> dict[str, Counts]:
    counts: dict[str, Counts] = {}
    for n, (_, results) in enumerate(done):
        for result in results:
            assert result.key not in counts
            assert result.seconds.plain > 0
            counts[result.key] = result.counts
        after(n)
    return counts


def test_counts_are_those_of_the_loop_itself(real_groups: list[Group], serial: dict[str, Counts]) -> None:
    """Of one text that is written here anew; and greedy texts are those of plain decoding."""
    pair = module.opened_pair(module.model_settings(real_groups[0][0].settings))
    for job in real_groups[0]:
        ids = pair.tokenizer.encode(job.prompt.text)
        asked: dict[str, Any] = {"max_new_tokens": N, "sampling": Sampling(job.settings.temperature)}
        run = run_all(ids, speculate(pair.target, pair.drafter, ids, n_draft=job.settings.num_draft_tokens, **asked))  # type: ignore[arg-type]
        plain = run_all(ids, generate(pair.target, ids, **asked))
        assert serial[job.key] == count_run(run, plain, determined=True)
        assert (serial[job.key].tokens, serial[job.key].different) == (N, 0)
        assert len(serial[job.key].judged) == job.settings.num_draft_tokens


def test_two_processes_count_the_same_and_one_may_be_killed(
    real_groups: list[Group], serial: dict[str, Counts]
) -> None:
    others = set(multiprocessing.active_children())
    killed = []

    def kill_one(n: int) -> None:
        if n == 2:
            victim = next(iter(set(multiprocessing.active_children()) - others))
            victim.kill()
            killed.append(victim)

    workers = processes(2, 1, "numba")
    assert counts_by_key(do_groups(real_groups, workers), kill_one) == serial
    assert len(killed) == 1
    assert set(multiprocessing.active_children()) <= others


@contextmanager
def local_cluster() -> Iterator[Any]:
    """Two workers of one thread each, in processes of their own."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs="CRITICAL"
    ) as cluster:  # type: ignore[no-untyped-call,unused-ignore]
        yield cluster


@pytest.mark.skipif(not find_spec("distributed"), reason="the extra `distributed` is not installed")
@pytest.mark.filterwarnings("default")  # another library's, about itself
def test_a_cluster_counts_the_same_and_a_worker_may_be_killed(
    real_groups: list[Group], serial: dict[str, Counts]
) -> None:
    killed = []
    with local_cluster() as cluster:

        def kill_one(n: int) -> None:
            if n == 2:
                killed.append(cluster.workers[0].pid)
                os.kill(killed[0], signal.SIGKILL)

        workers = sweep_workers.cluster(cluster.scheduler_address)
        assert counts_by_key(do_groups(real_groups, workers), kill_one) == serial
    assert len(killed) == 1


@pytest.mark.skipif(not find_spec("distributed"), reason="the extra `distributed` is not installed")
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense", "ftp://127.0.0.1:9"])
def test_a_scheduler_that_is_not_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_workers, "CONNECT_WITHIN", 0.5)
    with pytest.raises(ValueError, match=f"--dask {address}: no scheduler answers there"):
        list(do_groups(group_jobs(JOBS), sweep_workers.cluster(address)))


def test_without_the_library_a_cluster_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_workers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'minispec\[distributed\]'"):
        sweep_workers.cluster("tcp://127.0.0.1:9")
