"""Known outputs of the real GPT-2. Runs where its weights are in the Hugging Face cache; never downloads."""

from __future__ import annotations

from typing import Any

import pytest

from minispec import load_model, load_tokenizer
from minispec.verify_known import KNOWN, Known, check_known


def cached(name: str) -> Any:
    try:
        return load_model(name, offline=True), load_tokenizer(name, offline=True)
    except ValueError as error:
        pytest.skip(f"the real weights of {name} are not in the cache ({error})")


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.target}: {known.prompt}")
def test_known_outputs(known: Known) -> None:
    check_known(known, cached)
