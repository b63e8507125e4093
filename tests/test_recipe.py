"""The recipe of the pair, on a toy corpus. Needs the extra `train` (torch and tokenizers)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits

from minispec import load_model, load_tokenizer

REASON = "needs torch and tokenizers: pip install -e .[train]"
pytest.importorskip("torch", reason=REASON)
pytest.importorskip("tokenizers", reason=REASON)

STORIES = [f"Once upon a time, {who} had a {what}. The {what} was {how}. {who} was happy!" for who in
           ("Tom", "Lily", "Ben", "Mia", "Sam", "Zoe", "Max", "Anna") for what in
           ("dog", "cat", "ball", "boat", "tree", "kite", "hat", "cake") for how in ("big", "red", "old")]  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe with small models, as a function of the folder it works in: it returns the output folder."""
    path = Path(__file__).resolve().parents[1] / "weights" / "train.py"
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec
    assert spec.loader
    train = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "train", train)
    spec.loader.exec_module(train)
    monkeypatch.setattr(train, "N_VOCAB", 300)
    monkeypatch.setattr(train, "N_CTX", 32)
    monkeypatch.setattr(train, "SAVE_EVERY", 128)
    small = {"batch": 2, "warmup": 2}
    monkeypatch.setattr(train, "TARGET", train.Recipe("story-target", 2, 2, 16, 6 * 64, 1e-2, dropout=0.1, **small))
    monkeypatch.setattr(train, "DRAFT", train.Recipe("story-draft", 1, 1, 8, 6 * 64, 1e-2, **small))
    monkeypatch.setattr(train, "TUNED", train.Recipe("story-draft-tuned", 1, 1, 8, 6 * 64, 1e-2, **small))
    monkeypatch.setattr(train, "DRAWN", 400)
    monkeypatch.setattr(train, "ASKED", 3)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "stories.txt").write_text("\n<|endoftext|>\n".join(STORIES), encoding="utf-8")

    def run(name: str, *options: str) -> Path:
        out = tmp_path / name
        train.main([str(tmp_path / "corpus"), "--out", str(out), "--work", str(tmp_path / f"{name}-work"), *options])
        return out

    run.module = train  # type: ignore[attr-defined]
    return run


def test_an_interrupted_run_goes_on_to_the_same_weights(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recipe("whole")
    left = [5, 9, 4, 100]

    def cut(make: Any) -> Any:
        def cut_feed(feed: Any, step: int) -> Any:
            for batch in feed(step):
                if not left[0]:
                    left.pop(0)
                    raise KeyboardInterrupt
                left[0] -= 1
                yield batch

        return lambda *arguments: partial(cut_feed, make(*arguments))

    for name in ("batches", "labelled_batches"):
        monkeypatch.setattr(recipe.module, name, cut(getattr(recipe.module, name)))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            recipe("parts")
    parts = recipe("parts")
    for name in ("story-target", "story-draft"):
        for file in ("model.safetensors", "config.json", "vocab.json", "merges.txt"):
            assert (whole / name / file).read_bytes() == (parts / name / file).read_bytes()
        model, tokenizer = load_model(whole / name), load_tokenizer(whole / name)
        assert model.n_vocab == tokenizer.n_vocab == 300
        assert tokenizer.end_of_text == 299
    card = (whole / "README.md").read_text(encoding="utf-8")
    assert "{" not in card
    assert "story-draft/model.safetensors" in card


def test_a_checkpoint_of_other_options_is_refused(recipe: Any) -> None:
    recipe("same")
    with pytest.raises(SystemExit, match=r"story-target\.pt was begun with other options .*seed 0, not 1"):
        recipe("same", "--seed", "1")


def test_a_folder_without_stories_is_refused(recipe: Any, tmp_path: Path) -> None:
    (tmp_path / "corpus" / "stories.txt").unlink()
    with pytest.raises(SystemExit, match="no stories in"):
        recipe("none")


def test_labels_are_the_targets_likeliest_tokens_and_their_chances(
    recipe: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    import torch

    train = recipe.module
    monkeypatch.setattr(train, "LABELS", 7)
    torch.manual_seed(0)
    target = train.GPT2(train.TARGET).eval()
    stories = [np.random.default_rng(i).integers(0, 300, size=20) for i in range(10)]
    kept = train.labelled("some", stories, target, tmp_path, 3)
    assert kept.likely.shape == kept.chances.shape == (200 // 32, 32, 7)
    for ids, likely, chances in zip(kept.ids, kept.likely, kept.chances, strict=True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            law = target(torch.from_numpy(ids[None, :-1].astype(np.int64)))[0].float().softmax(-1).numpy()
        np.testing.assert_allclose(chances, np.sort(law)[:, :-8:-1], rtol=1e-3)
        np.testing.assert_allclose(np.take_along_axis(law, likely.astype(int), 1), chances, rtol=1e-3)
    assert all(any(np.array_equal(ids[:20], story) for story in stories) for ids in kept.ids)  # from a beginning on
    again = train.labelled("some", [], None, tmp_path, 3)  # from the files: nothing is read a second time
    assert_same_bits(again.chances, kept.chances)


def test_each_step_has_windows_of_its_own_and_a_feed_goes_on_where_it_is_asked_to(recipe: Any) -> None:
    train = recipe.module
    ids = np.arange(50 * 33).reshape(50, 33)
    read = train.Labelled(ids, np.repeat(ids[:, 1:, None], 4, 2), np.full((50, 32, 4), 0.25, np.float16))
    for feed in (
        train.labelled_batches([read], train.DRAFT, 0),
        train.batches(list(np.arange(50 * 40).reshape(50, 40)), train.TARGET, 0),
    ):
        whole = [batch.ids.tolist() for batch, _ in zip(feed(0), range(6), strict=False)]
        assert len({str(ids) for ids in whole}) == 6
        assert [batch.ids.tolist() for batch, _ in zip(feed(4), range(2), strict=False)] == whole[4:]


def test_losses_with_all_labels_kept_are_those_of_whole_laws(recipe: Any) -> None:
    import torch

    train = recipe.module
    logits, p = torch.randn(2, 6, 11, generator=torch.Generator().manual_seed(1)) * 3
    law = p.softmax(-1)
    chances, likely = law.topk(11)
    batch = train.Batch(torch.zeros(2, 4), likely.view(2, 3, 11), chances.view(2, 3, 11))
    torch.testing.assert_close(train.soft_labels(logits, batch), torch.nn.functional.cross_entropy(logits, law))
    refused = 1 - torch.minimum(logits.softmax(-1), law).sum(-1).mean()
    torch.testing.assert_close(train.refused(logits, batch), refused)
    some = train.Batch(batch.ids, likely.view(2, 3, 11)[..., :2], chances.view(2, 3, 11)[..., :2])
    assert train.refused(logits, some) > refused


@pytest.mark.parametrize("n", [1, 5, 128, 129, 300])
def test_attention_by_blocks_is_torchs_own(recipe: Any, n: int) -> None:
    import torch

    q, k, v = torch.randn(3, 2, 3, n, 7, generator=torch.Generator().manual_seed(n))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(recipe.module.causal(q, k, v), expected, atol=1e-5, rtol=1e-5)


def test_dropout_takes_its_share_in_training_alone_by_torchs_seed(recipe: Any) -> None:
    import torch

    drop, ones = recipe.module.Dropout(0.1), torch.ones(100, 1000)
    torch.manual_seed(3)
    once = drop(ones)
    torch.manual_seed(3)
    assert torch.equal(once, drop(ones))
    assert not torch.equal(once, drop(ones))
    assert (once == 0).float().mean().item() == pytest.approx(26 / 256, abs=0.006)  # six standard deviations
    assert once.unique().tolist() == pytest.approx([0, 256 / 230])
    assert torch.equal(drop.eval()(ones), ones)


def test_a_quarter_of_drawn_texts_begin_as_others_do(recipe: Any) -> None:
    """Of 4,000 openings, within six deviations (false alarms below 1e-8); each is a passage of one of the texts."""
    stories, others = [np.arange(10, 20)], [np.arange(100, 300), np.arange(500, 503)]
    rng = np.random.default_rng(0)
    openings = [recipe.module.opening(stories, others, rng) for _ in range(4000)]
    foreign = [one for one in openings if one[0] >= 100]
    assert abs(len(foreign) - 1000) < 6 * (4000 * 0.25 * 0.75) ** 0.5
    assert all(one == list(range(one[0], one[0] + len(one))) for one in openings)
    assert {len(one) for one in foreign} == {*range(3, 49)}  # the other text has three tokens
    assert {(one[0], len(one)) for one in openings if one[0] < 100} == {(10, n) for n in range(1, 9)}
    assert all(recipe.module.opening(stories, [], rng)[0] == 10 for _ in range(50))


DRAWING = """
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, "weights")
import torch
import train

torch.set_num_threads(1)
train.N_CTX = 8
train.draw(Path("weights/story-draft"), [np.arange(5)], [], 1, 0)
print(torch.get_num_threads())
"""


def test_drawing_leaves_pytorch_as_many_threads_as_it_had() -> None:
    """Compiled passes tell the threads that both use how many they are, once: then a step waited for one too many."""
    around = os.environ | {"NUMBA_NUM_THREADS": "2"}
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", DRAWING], cwd=root, env=around, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "1"
