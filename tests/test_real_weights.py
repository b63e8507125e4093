"""Known outputs of the real GPT-2. Runs where its weights are in the Hugging Face cache; never downloads."""

from __future__ import annotations

from typing import Any

import pytest

from minispec import Sampling, generate, load_model, load_tokenizer, speculate
from minispec.drafters import SmallModelDrafter


def cached(name: str) -> Any:
    try:
        return load_model(name, offline=True), load_tokenizer(name, offline=True)
    except ValueError as error:
        pytest.skip(f"the real weights of {name} are not in the cache ({error})")


def text_ids(steps: Any) -> list[int]:
    return [token for step in steps for token in step.committed]


def test_gpt2_continues_the_dog() -> None:
    model, _ = cached("gpt2")
    new = text_ids(generate(model, [464, 3290], max_new_tokens=18, sampling=Sampling()))
    assert new == [373, 1043, 287, 257, 2214, 1474, 262, 16246, 286, 2688, 290, 2688, 27262, 13, 198, 198, 464, 3290]


def test_gpt2_continues_alan_turing() -> None:
    model, tokenizer = cached("gpt2")
    ids = tokenizer.encode("Alan Turing theorized that computers would one day become")
    text = tokenizer.decode(text_ids(generate(model, ids, max_new_tokens=8, sampling=Sampling())))
    assert text == " the most powerful machines on the planet."


@pytest.mark.parametrize(
    ("prompt", "passes"),
    [("The cat sat on the", 7), ("one, two, three, four, five,", 7), ("The capital of France is", 9)],
)
def test_gpt2_drafts_for_gpt2_medium(prompt: str, passes: int) -> None:
    (target, tokenizer), (draft, _) = cached("gpt2-medium"), cached("gpt2")
    ids = tokenizer.encode(prompt)
    plain = text_ids(generate(target, ids, max_new_tokens=30, sampling=Sampling()))
    steps = list(speculate(target, SmallModelDrafter(draft), ids, max_new_tokens=30, n_draft=4, sampling=Sampling()))
    assert text_ids(steps) == plain
    assert len(steps) == passes
