"""transformers on the same checkpoints: plain and assisted generation, in a process with its own threads.

Assisted generation as it is comparable: a fixed draft length, no early end of a draft, greedy, and the end of the
text a token like others. Source: transformers' documentation of GenerationConfig.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from minispec.bench_texts import Arm, Program, Written
from minispec.bench_worker import Worker


def check_installed() -> None:
    """Raise ValueError, with the remedy, where transformers or torch are missing."""
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"--against transformers needs {' and '.join(missing)}, which this Python lacks: "
            "pip install 'minispec[bench]'"
        )


@contextmanager
def transformers_program(
    target: str, draft: str | None, prompts: Sequence[Sequence[int]], n: int, lengths: Sequence[int], threads: int
) -> Iterator[Program]:
    """Its ways to write n greedy tokens after each prompt; target and draft are folders."""
    with Worker("transformers", {"target": target, "draft": draft, "threads": threads}, threads) as worker:

        def arm(n_draft: int) -> Arm:
            def write() -> Written:
                answers = [worker.ask(ids=list(ids), n=n, n_draft=n_draft) for ids in prompts]
                texts = tuple(tuple(answer["ids"]) for answer in answers)
                return Written(sum(map(len, texts)), sum(answer["seconds"] for answer in answers), texts)

            return write

        yield Program("transformers", arm(0), {n_draft: arm(n_draft) for n_draft in lengths} if draft else {})


def serve_transformers(target: str, draft: str | None, threads: int) -> Callable[..., dict[str, Any]]:
    """In the worker: load both models in float32, and write what is asked for."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)

    def load(folder: str) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        return model.float().eval()  # not an argument: its name and its default differ between versions

    big: Any = load(target)
    small: Any = load(draft) if draft else None

    def write(ids: list[int], n: int, n_draft: int) -> dict[str, Any]:
        if n_draft:
            small.generation_config.num_assistant_tokens = n_draft
            small.generation_config.num_assistant_tokens_schedule = "constant"
            small.generation_config.assistant_confidence_threshold = 0.0
        assistant = {"assistant_model": small} if n_draft else {}
        prompt = torch.tensor([ids])
        began = time.perf_counter()
        with torch.inference_mode():
            out = big.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=n, min_new_tokens=n,
                **assistant,
            )  # fmt: skip
        return {"ids": out[0, len(ids) :].tolist(), "seconds": time.perf_counter() - began}

    return write
