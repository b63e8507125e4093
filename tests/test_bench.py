"""The benchmark's arithmetic, formats and errors, with made-up figures; and a run on small models. Nothing is timed."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minispec import (
    bench_batch,
    bench_batch_speed,
    bench_costs,
    bench_drafters,
    bench_llama,
    bench_machine,
    bench_memory,
    bench_models,
    bench_passes,
    bench_prediction,
    bench_report,
    bench_short,
    bench_texts,
    bench_transformers,
    load_model,
    made_up,
)
from minispec.bench import MEASURES, Report
from minispec.bench_machine import Machine, Probe, Timed
from minispec.bench_models import Model
from minispec.bench_passes import PassTime
from minispec.bench_plan import Plan, models_to_time
from minispec.bench_texts import Program, Written
from minispec.bench_worker import Worker
from minispec.drafters import SmallModelDrafter
from minispec.model import GPT2
from minispec.options import PARTS
from minispec.parameters import GPT2Config
from minispec.settings import Settings
from minispec.user_cache import cache_folder

SMALL = GPT2Config(n_layer=2, n_head=2, n_embd=64, n_ctx=128, n_vocab=700, n_inner=256)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The folders of a small scripted pair."""
    folder = tmp_path_factory.mktemp("pair")
    made_up.write_scripted_pair((folder / "target", folder / "draft"), (SMALL, SMALL), 0.7)
    return str(folder / "target"), str(folder / "draft")


# --- bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_bytes_of_weights_and_cache(pair: tuple[str, str], backend: str) -> None:
    """Every number of the file but the position embeddings; the vocabulary may be padded to whole panels."""
    model = load_model(pair[0], backend=backend)
    file = bench_models.n_bytes(SMALL)
    assert file == sum(tensor.nbytes for tensor in made_up.random_tensors(SMALL).values())
    padding = 4 * 64 * (-700 % 32) if backend == "numba" else 0
    head_bias = 4 * 700
    scales = 4 * (700 + SMALL.n_layer * (1 + 5 * 64 + SMALL.n_inner))  # of outputs, and of attention
    assert model.weight_bytes == file - 4 * 128 * 64 + head_bias + scales + padding
    assert model.cache_bytes(10) == 10 * 2 * 2 * 64 * 4


def test_flops_of_a_prompt() -> None:
    assert bench_passes.block_flops(SMALL, 3) == 2 * 3 * 2 * (64 * 192 + 64 * 64 + 2 * 64 * 256)


# --- timing in turn ----------------------------------------------------------------------------------


def test_a_share_is_bytes_over_seconds_over_bandwidth() -> None:
    assert Timed(seconds=0.5, bandwidth=4e9).share(1_000_000_000) == 0.5


def test_works_are_timed_in_turn_with_a_read_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    speeds = iter([10.0, 20.0, 40.0])

    class Fake:
        def read(self) -> float:
            done.append("read")
            return next(speeds)

    def seconds(work: Callable[[], object]) -> float:
        work()
        return float(len(done))

    monkeypatch.setattr(bench_machine, "mean_seconds", seconds)
    works = [lambda: done.append("one"), lambda: done.append("two")]
    timings = bench_machine.time_in_turn(works, Fake())  # type: ignore[arg-type]
    assert done == ["read", "one", "read", "two", "read"]
    assert timings == [Timed(2.0, 15.0), Timed(4.0, 30.0)]


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_a_probe_reads_all_of_its_array(backend: str) -> None:
    probe = Probe(backend, n_bytes=1 << 22)
    assert probe.chunks.nbytes == 1 << 22
    assert probe.read() > 0
    probe.speeds = [3e9, 1e9, 2e9]
    assert (probe.gb_s, probe.range_gb_s) == (2.0, (1.0, 3.0))
    read, how = bench_machine.reader(backend)
    assert "all threads" in how or "NumPy on one thread" in how
    read(probe.chunks)


def test_the_kernel_sums_what_it_reads() -> None:
    from minispec.bench_read import read_all

    chunks = np.arange(12, dtype=np.float32).reshape(3, 4)
    sums = np.empty(3, np.float32)
    read_all(chunks, sums)
    assert sums.tolist() == [6, 22, 38]


def test_passes_are_medians_over_turns_and_ratios_within_a_pair() -> None:
    """Memory is twice as fast in the second turn and nothing else changes: seconds do, shares and v do not."""
    turns = [[(Timed(1.0, 8.0), Timed(1.5, 8.0))], [(Timed(0.5, 16.0), Timed(0.75, 16.0))]]
    one, other = bench_passes.summarize_passes("m", "f32", [(1, 64), (5, 64)], [4, 6], turns)
    assert one == PassTime("m", "f32", 1, 64, 0.75, 0.5, 1.0)
    assert other == PassTime("m", "f32", 5, 64, 1.125, 0.5, 1.5)


def test_the_cost_of_a_context() -> None:
    cost = bench_passes.context_cost("m", "f32", (64, 1000), 80, [(Timed(1.0, 10.0), Timed(6.0, 30.0))])
    assert (cost.added_seconds, cost.added_bytes, cost.bandwidth_share) == (5.0, 80, 0.8)
    noise = bench_passes.context_cost("m", "f32", (64, 1000), 80, [(Timed(2.0, 20.0), Timed(1.0, 20.0))])
    assert noise.bandwidth_share is None


def test_copies_in_8_bits_are_timed_too() -> None:
    models = (Model("a", "f32", "a"), Model("./b", "int8", "b"))
    plan = Plan(Settings(), models, PARTS, [4], ["x"], 1)
    assert models_to_time(plan) == [*models, Model("a", "int8", "a")]


def test_every_part_is_measured_by_something() -> None:
    assert sorted(part for parts in MEASURES for part in parts) == sorted(set(PARTS) - {"bandwidth"})


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_asked_for_where_there_is_what_it_measures(part: str) -> None:
    target, draft = Model("a", "f32", "a"), Model("b", "f32", "b")
    alone = Plan(Settings(), (target,), PARTS, [4], ["x"], 1, batches=[2])
    assert alone.asks_for(part) == (part not in ("costs", "prediction", "drafters", "short", "batch"))
    pair = replace(alone, models=(target, draft), batches=())
    assert pair.asks_for(part) == (part not in ("prediction", "drafters", "batch"))
    assert replace(pair, accepts=[0.5], drafts=["b"], batches=[2]).asks_for(part)
    assert not replace(pair, parts=[]).asks_for(part)


def test_other_programs_do_not_get_what_our_kernels_ask_of_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    from minispec.bench_worker import of_others
    from minispec.kernels import compilation

    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    monkeypatch.setattr(compilation, "SPIN_IS_OURS", True)
    assert "GOMP_SPINCOUNT" not in of_others()
    monkeypatch.setattr(compilation, "SPIN_IS_OURS", False)
    assert of_others()["GOMP_SPINCOUNT"] == "1000"


# --- texts -------------------------------------------------------------------------------------------


def test_what_is_outside_the_passes_is_a_part_of_the_time(pair: tuple[str, str]) -> None:
    target, draft = map(load_model, pair)
    prompts = [[1, 2], [3]]
    plain = bench_texts.write_texts(target, None, prompts, 20, 0)
    speculative = bench_texts.write_texts(target, SmallModelDrafter(draft), prompts, 20, 3)
    assert plain.ids == speculative.ids
    assert (plain.n_tokens, plain.passes, plain.drafted) == (40, 40, 0)
    assert speculative.passes is not None
    assert speculative.passes < 40
    for written in (plain, speculative):
        assert written.outside_share is not None
        assert 0 < written.outside_share < 1


def program(name: str, seconds: dict[int, float], text: tuple[int, ...] = (1, 2)) -> Program:
    """A program that writes 2 tokens in so many seconds, by draft length."""

    def arm(n_draft: int) -> bench_texts.Arm:
        return lambda: Written(2, seconds[n_draft], (text,), drafted=10 if n_draft else 0, accepted=8 if n_draft else 0)

    return Program(name, arm(0), {n_draft: arm(n_draft) for n_draft in seconds if n_draft})


def test_programs_are_compared_at_their_best_draft_lengths() -> None:
    ours = program("minispec", {0: 4.0, 2: 2.0, 4: 1.0, 6: 1.5})
    other = program("other", {0: 8.0, 2: 4.0, 4: 5.0}, text=(1, 3))
    lengths, speeds = bench_texts.compare_programs([ours, other], repetitions=3, quiet=True)
    assert [(row.program, row.num_draft_tokens, row.speedup) for row in lengths] == [
        ("minispec", 2, 2.0), ("minispec", 4, 4.0), ("minispec", 6, 4 / 1.5), ("other", 2, 2.0), ("other", 4, 1.6),
    ]  # fmt: skip
    assert [(s.program, s.mode, s.num_draft_tokens, s.speedup, s.minispec_over_it, s.same_text) for s in speeds] == [
        ("minispec", "plain", 0, 1.0, 1.0, True),
        ("minispec", "speculative", 4, 4.0, 1.0, True),
        ("other", "plain", 0, 1.0, 2.0, False),
        ("other", "speculative", 2, 2.0, 4.0, False),
    ]
    assert [s.accept_rate for s in speeds] == [None, 0.8, None, 0.8]
    assert bench_texts.count_arms([ours, other], 3) == 2 * (4 + 3) + 3 * 4


def test_speed_ups_are_medians_of_ratios_within_a_turn() -> None:
    turns = [
        {("minispec", 0): Written(10, plain, ((1,),)), ("minispec", 4): Written(10, speculative, ((1,),))}
        for plain, speculative in ((1.0, 0.5), (4.0, 2.0), (2.0, 0.5))
    ]
    plain, speculative = bench_texts.compare_speeds(turns)
    assert speculative.speedup == 2.0
    assert (plain.seconds, speculative.seconds) == (2.0, 0.5)


# --- made-up checkpoints -------------------------------------------------------------------------------


@pytest.fixture
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_up, "shape_of", lambda name: {"small": SMALL}[name])


@pytest.mark.usefixtures("small_shapes")
def test_made_up_checkpoints_are_kept(tmp_path: Path) -> None:
    said: list[str] = []
    base = tmp_path / "new" / "place"
    folders = bench_models.scripted_folders(0.8, ("small", "small"), base, said.append)
    times = [(folder / "model.safetensors").stat().st_mtime_ns for folder in folders]
    assert len(said) == 1
    assert str(base) in said[0]
    assert "GB" in said[0]
    assert bench_models.scripted_folders(0.8, ("small", "small"), base, said.append) == folders
    assert [(folder / "model.safetensors").stat().st_mtime_ns for folder in folders] == times
    other = bench_models.random_folder("small", base, said.append)
    assert len(said) == 2
    assert {load_model(str(folder)).config for folder in (*folders, other)} == {SMALL}


@pytest.mark.usefixtures("small_shapes")
def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path, config: GPT2Config) -> None:
        made_up.write_checkpoint(folder, config, {})
        raise KeyboardInterrupt

    monkeypatch.setattr(made_up, "write_random", broken)
    with pytest.raises(KeyboardInterrupt):
        bench_models.random_folder("small", tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_shapes")
def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 5_000}))
    with pytest.raises(ValueError, match=r"takes 0\.0 GB and .* has 0\.0 GB free: make room, or .*--folder"):
        bench_models.random_folder("small", tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_shapes")
def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written to .*: name another place with --folder"):
        bench_models.random_folder("small", tmp_path / "file", lambda _: None)


def test_the_cache_folder_honours_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("made-up") == tmp_path / "minispec" / "made-up"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder("made-up") == tmp_path / "local" / "minispec" / "made-up"


# --- other processes -----------------------------------------------------------------------------------


def test_a_worker_answers_and_ends() -> None:
    with Worker("blas", {"shapes": [[8, 8]], "n_layer": 3, "rows": 2}, 1) as worker:
        assert worker.ask()["seconds"] > 0
        assert worker.ask()["seconds"] > 0
    assert worker.process.returncode is not None


def test_a_worker_that_is_gone_is_told() -> None:
    with Worker("blas", {"shapes": [[8, 8]], "n_layer": 1, "rows": 2}) as worker:
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(ValueError, match=r"for blas ended with status -?[0-9]+: is there enough memory"):
            worker.ask()


def test_what_a_worker_cannot_do_is_told_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^memory: ValueError: no model is called 'gpt9'.*$"):
        Worker("memory", {"models": [["gpt9", "f32"]], "backend": "numpy", "offline": True})


def test_memory_of_a_process_of_its_own(pair: tuple[str, str]) -> None:
    models = [Model(name, "f32", label) for name, label in zip(pair, ("big", "small"), strict=True)]
    memory = bench_memory.measure_memory(models, Settings(backend="numpy"), 1)
    target, draft = map(load_model, pair)
    assert memory.models == "big f32 + small f32"
    assert memory.needed_bytes < target.weight_bytes + draft.weight_bytes + 2 * target.cache_bytes(128)
    if memory.peak_bytes is not None and memory.base_bytes is not None:
        assert memory.base_bytes <= memory.peak_bytes
        assert memory.peak_over_needed == memory.peak_bytes / memory.needed_bytes


def test_a_start_that_fails_is_told() -> None:
    command = [sys.executable, "-c", "import sys; print('no luck', file=sys.stderr); sys.exit(3)"]
    with pytest.raises(ValueError, match="the start of minispec failed with status 3: no luck"):
        bench_memory.seconds_to_first_text(command)


def test_transformers_writes_the_same_texts(pair: tuple[str, str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    target, draft = map(load_model, pair)
    prompts = [[1, 2], [3]]
    ours = bench_texts.minispec_program(target, SmallModelDrafter(draft), prompts, 12, [3])
    with bench_transformers.transformers_program(*pair, prompts, 12, [3], threads=1) as theirs:
        texts = [arm().ids for arm in (ours.plain, ours.speculative[3], theirs.plain, theirs.speculative[3])]
    assert len(set(texts)) == 1


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_transformers, "find_spec", lambda name: None if name == "transformers" else name)
    with pytest.raises(ValueError, match=r"needs transformers, which .*: pip install 'minispec\[bench\]'"):
        bench_transformers.check_installed()


# --- llama.cpp -----------------------------------------------------------------------------------------

LLAMA_BENCH = """some log line
[
  {
    "build_commit": "abc",
    "n_gen": 128,
    "avg_ts": 20.5,
    "stddev_ts": 0.1,
    "samples_ns": [ 6243902439 ],
    "samples_ts": [ 20.5 ]
  }
]
"""
LLAMA_SPECULATIVE = """
 Once upon a time

encoded    4 tokens in    0.250 seconds, speed:   16.000 t/s
decoded  130 tokens in    5.200 seconds, speed:   25.000 t/s

n_draft   = 4
n_predict = 130
n_drafted = 128
n_accept  = 96
accept    = 75.000%
"""


def test_what_llama_cpp_prints_is_understood() -> None:
    assert bench_llama.plain_speed(LLAMA_BENCH) == 20.5
    written = bench_llama.speculative_run(LLAMA_SPECULATIVE)
    assert (written.n_tokens, written.seconds, written.drafted, written.accepted) == (130, 5.2, 128, 96)
    assert written.tokens_per_second == 25.0
    both = bench_llama.added([written, written])
    assert (both.n_tokens, both.seconds, both.drafted, both.accepted) == (260, 10.4, 256, 192)


@pytest.mark.parametrize("output", ["", "[]", '[{"avg_ts": null}]', "usage: ..."])
def test_what_is_not_understood_is_shown(output: str) -> None:
    with pytest.raises(ValueError, match="llama-bench printed no avg_ts"):
        bench_llama.plain_speed(output)
    with pytest.raises(ValueError, match="llama-speculative-simple printed no speed"):
        bench_llama.speculative_run(output)


def test_llama_cpp_is_called_with_the_files_and_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def output_of(command: list[str]) -> str:
        commands.append(command)
        return LLAMA_BENCH if "llama-bench" in command[0] else LLAMA_SPECULATIVE

    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(bench_llama, "output_of", output_of)
    target, draft = str(tmp_path / "target.gguf"), str(tmp_path / "draft.gguf")
    for file in (target, draft):
        Path(file).write_bytes(b"")
    llama = bench_llama.llama_program(target, draft, ["a", "b"], 128, [4, 6], threads=2)
    assert llama.plain() == Written(256, 2 * 128 / 20.5)
    assert llama.speculative[6]().n_tokens == 260
    plain, _, speculative, _ = map(" ".join, commands)
    assert plain == f"/bin/llama-bench -m {target} -t 2 -p 0 -n 128 -r 1 -o json"
    assert f"-m {target} -md {draft} -t 2 -n 128 --temp 0" in speculative
    assert "--spec-draft-n-max 6 --spec-draft-p-min 0 -p a" in speculative
    assert not bench_llama.llama_program(target, None, ["a"], 128, [4], 2).speculative


def test_a_program_that_fails_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"failed with status 3: no luck$"):
        bench_llama.output_of([sys.executable, "-c", "import sys; print('no luck'); sys.exit(3)"])
    monkeypatch.setattr(bench_llama, "LIMIT", 0.1)
    with pytest.raises(ValueError, match=r"has not ended after 0\.1 s"):
        bench_llama.output_of([sys.executable, "-c", "import time; time.sleep(20)"])


def test_what_llama_cpp_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="needs GGUF files: give --gguf FILE"):
        bench_llama.llama_program(None, None, ["a"], 8, [2], 1)
    with pytest.raises(ValueError, match=r"--gguf-draft .*none: there is no such file"):
        bench_llama.llama_program(str(Path(__file__)), str(tmp_path / "none"), ["a"], 8, [2], 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs llama-bench, which is not on the PATH"):
        bench_llama.llama_program(str(Path(__file__)), None, ["a"], 8, [2], 1)


# --- batches and short replies -------------------------------------------------------------------------


def test_prompts_of_a_batch_grow_each_time_round_and_the_texts_go_on(pair: tuple[str, str]) -> None:
    target = load_model(pair[0])
    texts = bench_batch.make_texts(target, [[1, 2], [3]], 8, 5)
    assert [len(text.prompt) for text in texts] == [2, 1, 5, 4, 8]
    assert [len(text.ids) for text in texts] == [8] * 5
    assert texts[2].prompt == [1, 2, *texts[0].ids[:3]]
    assert texts[4].ids[:2] == texts[0].ids[6:]
    full = bench_batch.make_texts(target, [[1] * 118], 8, 3)
    assert [len(text.prompt) for text in full] == [118, 120, 120]


def test_batches_are_compared_within_a_turn_and_the_prediction_is_from_costs() -> None:
    """By hand: 2 texts of 6 tokens; k = 2, 4 steps in 3 passes; plain passes take 1 s and checks 1.5, drafts 0.5."""
    texts = [bench_batch_speed.Text([1], (1,) * 6)] * 2
    ids = ((1,) * 6,) * 2
    plain = [(bench_batch_speed.Written(ids, seconds, 6, 12), 1.0, 0.0) for seconds in (6.0, 12.0, 9.0)]
    other = [(bench_batch_speed.Written(ids, seconds, 3, 4), 1.5, 0.5) for seconds in (4.0, 4.0, 6.0)]
    row = bench_batch_speed.compare(texts, 2, plain, other)
    assert (row.texts, row.num_draft_tokens, row.rows, row.plain_passes, row.passes) == (2, 2, 6, 6, 3)
    assert (row.tokens_per_pass, row.check_cost, row.draft_cost) == (3.0, 1.5, 0.5)
    assert (row.speedup, row.predicted_speedup) == (1.5, 1.5)
    assert (row.plain_tokens_per_second, row.tokens_per_second) == (12 / 9, 3.0)
    assert row.same_text
    wrong = [*other[:2], (bench_batch_speed.Written((*ids[:1], (1,) * 5), 6.0, 3, 4), 1.5, 0.5)]
    assert not bench_batch_speed.compare(texts, 2, plain, wrong).same_text


def test_the_cross_over_is_said_in_words() -> None:
    def rows(*speedups: float) -> list[bench_batch_speed.BatchSpeed]:
        return [
            bench_batch_speed.BatchSpeed(2**i, k, 0, 0, 0, 0, 0, 0, 0, 0, speedup - k / 100, 0, True)
            for i, speedup in enumerate(speedups)
            for k in (2, 4)
        ]

    assert "pays for batches of 1, 2 and 4 and not for 8:" in bench_batch_speed.explain(rows(2, 1.5, 1.03, 1))
    assert "pays for every batch, 1.98 times for 1 and 1.48 for 2:" in bench_batch_speed.explain(rows(2, 1.5))
    assert "pays for every batch, 1.98 times for 1:" in bench_batch_speed.explain(rows(2))
    assert "pays for no batch here:" in bench_batch_speed.explain(rows(1, 0.9))


def test_a_batch_is_written_and_counted(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_batch, "mean_seconds", lambda work: work() or 1.0)
    target, draft = (load_model(folder) for folder in pair)
    rows = bench_batch.time_batches(target, SmallModelDrafter(draft), [[5], [6, 7]], 9, [1, 3], [1, 3], 1, quiet=True)
    assert [(row.texts, row.num_draft_tokens, row.rows) for row in rows] == [
        (1, 1, 2),
        (1, 3, 4),
        (3, 1, 6),
        (3, 3, 12),
    ]
    assert all(row.same_text and row.plain_passes == 9 and row.passes < 9 for row in rows)
    short = bench_short.time_short(target, SmallModelDrafter(draft), [5], 3, 1, quiet=True)
    assert [row.tokens for row in short] == [1, 2, 4, 8]


# --- the report ----------------------------------------------------------------------------------------

MACHINE = Machine("A processor", 4, 2, "AVX2", "numba", "0.61", "omp", "2.0", "3.11", "Linux x86_64")
ONE_PASS = PassTime("m, n", "f32", 1, 64, 0.05, 0.9, 1.0)
REPORT = Report(MACHINE, 30.0, (20.0, 40.0), "all threads", {"passes": [ONE_PASS]}, ["int8 was not there"])


def test_json_is_one_object_with_the_keys_of_the_contract() -> None:
    result = json.loads(bench_report.as_json(REPORT, {"target": "m, n"}))
    assert list(result)[:2] == ["read_bandwidth_gb_s", "passes"]
    assert result["read_bandwidth_gb_s"] == 30.0
    (one,) = result["passes"]
    assert {"model", "weights", "rows", "context", "seconds", "bandwidth_share"} <= set(one)
    assert result["machine"]["instructions"] == "AVX2"
    assert result["notes"] == ["int8 was not there"]
    assert json.loads(bench_report.as_json(Report(MACHINE, 1.0, (1.0, 1.0), "", {}), {}))["passes"] == []


def test_csv_has_one_figure_a_line() -> None:
    rows = list(csv.DictReader(io.StringIO(bench_report.as_csv(REPORT, {"target": "m, n"}))))
    found = {(row["part"], row["row"], row["name"]): row["value"] for row in rows}
    assert found["passes", "1", "model"] == "m, n"
    assert float(found["passes", "1", "seconds"]) == 0.05
    assert found["read_bandwidth_gb_s", "1", "read_bandwidth_gb_s"] == "30.0"
    assert len(found) == len(rows)


def test_markdown_tables_are_well_formed() -> None:
    text = bench_report.as_markdown(REPORT, {})
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert len({len(line) for line in lines}) == 1
    assert "| 50.00 | 1.00 |" in text
    assert "90 %" in text
    assert "Read bandwidth 30.0 GB/s (20.0 to 40.0 in this run; all threads)." in text
    assert "A processor, 2 of 4 cores, AVX2" in text
    assert "Note: int8 was not there." in text


def test_every_column_is_a_field_of_its_rows() -> None:
    rows: dict[str, Any] = {
        "passes": PassTime, "context": bench_passes.ContextCost, "prefill": bench_passes.Prefill,
        "memory": bench_memory.Memory, "start": bench_memory.Start, "draft_lengths": bench_texts.DraftLength,
        "end_to_end": bench_texts.Speed, "costs": bench_costs.Price, "prediction": bench_prediction.Predicted,
        "short": bench_short.Short, "batch": bench_batch_speed.BatchSpeed, "drafters": bench_drafters.DrafterRow,
    }  # fmt: skip
    assert set(rows) == set(bench_report.TABLES)
    for name, (_, columns) in bench_report.TABLES.items():
        assert {column.field for column in columns} <= set(rows[name].__dataclass_fields__), name


def test_the_machine_is_described() -> None:
    for backend in ("numba", "numpy"):
        machine = bench_machine.describe_machine(backend)
        assert machine.cpu
        assert machine.threads >= 1
        assert machine.instructions
        assert (machine.numba is None) == (backend == "numpy")


def test_a_timed_model_counts_what_its_passes_take() -> None:
    model = GPT2(SMALL, made_up.random_tensors(SMALL))
    timed = bench_texts.TimedModel(model)
    cache = timed.new_cache()
    assert np.array_equal(timed.forward([1, 2], cache), model.forward([1, 2], model.new_cache()))
    assert timed.seconds > 0
    assert (timed.n_ctx, timed.n_vocab) == (128, 700)
