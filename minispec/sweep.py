"""A sweep: every prompt with every drafter, temperature and draft length, as jobs that any process can do.

A job is one text: a prompt and its settings. Its key is a hash of all that its counts depend on, so a result found
under that key, in a file or on another machine, is the result. Jobs that differ in the draft length alone are done
together, by one process and next to the same plain text, which is what their speed is compared with.
"""

from __future__ import annotations

import hashlib
import json
import platform
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from minispec import __version__
from minispec.decoding import decode
from minispec.draft_option import models_in, parts_of, takes_draft_weights
from minispec.hub import find_model
from minispec.methods import METHODS
from minispec.prompts import Prompt
from minispec.session import Pair, open_pair
from minispec.settings import Settings
from minispec.sweep_counts import Counts, Seconds, count_run, time_run
from minispec.trace import run_all

if TYPE_CHECKING:
    from minispec.model import GPT2

WARM_UP = 8  # tokens that a process writes before it times any
_one_at_a_time = threading.Lock()  # a process may be asked for several groups at once: their seconds would mix


@dataclass(frozen=True)
class Job:
    """One text to write. The settings name its drafter, draft length and temperature: "none" and 0 for plain."""

    key: str
    prompt: Prompt
    settings: Settings


@dataclass(frozen=True)
class Result:
    """What became of the job with this key."""

    key: str
    counts: Counts
    seconds: Seconds


# --- what there is to do ---------------------------------------------------------------------------


def make_jobs(
    settings: Settings,
    prompts: Sequence[Prompt],
    drafts: Iterable[str | None],
    lengths: Iterable[int],
    temperatures: Iterable[float],
) -> list[Job]:
    """All jobs, each once. Raises ValueError for models that cannot be had, after fetching those that can."""
    variants = []
    for draft in drafts:
        name = replace(settings, draft=draft).draft_name
        for temperature in temperatures:
            one = replace(settings, draft="none" if name is None else name, temperature=temperature)
            if name is None:
                one = replace(one, num_draft_tokens=0)
            if not takes_draft_weights(name):
                one = replace(one, draft_weights=Settings.draft_weights)
            if name is None:
                variants.append(one)
            else:
                variants += [replace(one, num_draft_tokens=length) for length in lengths]
    jobs = [Job(job_key(prompt, one), prompt, one) for prompt in prompts for one in variants]
    return list({job.key: job for job in jobs}.values())


def job_key(prompt: Prompt, settings: Settings) -> str:
    """A hash of what a job's counts depend on: the text, the settings, the bytes of the models, minispec's version.

    The names of models are not in it, nor is the prompt's kind: results are filed under these when they are read.
    """
    digests = {"target": model_digest(settings.target, settings.offline), "draft": draft_digest(settings)}
    parts = asdict(settings) | digests | {"prompt": prompt.text, "minispec": __version__}
    del parts["offline"]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def draft_digest(settings: Settings) -> str | None:
    """What a draft's guesses depend on: a model's files, a method's name and argument, or the files that these mean."""
    told = []
    for part in [] if settings.draft_name is None else parts_of(settings.draft_name):
        if part.method is None:
            told.append(model_digest(part.name, settings.offline))
            continue
        files = part.method.files(settings, part.argument)
        depends = [file_digest(file) for file in files] if files else [part.argument or ""]
        told.append(":".join([part.name, *depends]))
    return "+".join(told) or None


def file_digest(file: Path) -> str:
    """A hash over a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@lru_cache
def model_digest(name: str, offline: bool) -> str:
    """A hash over the files of a model that its passes and its ids depend on."""
    digest = hashlib.sha256()
    for path in sorted(find_model(name, offline).iterdir()):
        if path.suffix in (".json", ".safetensors", ".txt") and path.stem not in METHODS:  # whose files lie there, too
            digest.update(path.name.encode())
            digest.update(bytes.fromhex(file_digest(path)))
    return digest.hexdigest()


def check_prompts(settings: Settings, prompts: Iterable[Prompt]) -> None:
    """Raise ValueError for a prompt that leaves no room for a token."""
    from minispec.tokenizer import load_tokenizer
    from minispec.weights import read_config

    n_ctx = read_config(find_model(settings.target, settings.offline)).n_ctx
    tokenizer = load_tokenizer(settings.target, offline=settings.offline)
    for prompt in prompts:
        n_tokens = len(tokenizer.encode(prompt.text))
        if n_tokens >= n_ctx:
            raise ValueError(
                f"prompt {prompt.id} has {n_tokens} tokens and {settings.target} a context window of {n_ctx}: "
                f"shorten it to {n_ctx - 1} or fewer"
            )


def group_jobs(jobs: Iterable[Job], done: Collection[str] = ()) -> list[tuple[Job, ...]]:
    """Jobs that are not done yet, those that share their plain text together."""
    groups: dict[tuple[Prompt, Settings], list[Job]] = {}
    for job in jobs:
        if job.key not in done:
            groups.setdefault((job.prompt, replace(job.settings, num_draft_tokens=0)), []).append(job)
    return [tuple(group) for group in groups.values()]


# --- doing it --------------------------------------------------------------------------------------


def check_here(job: Job) -> None:
    """Raise ValueError on a machine where this job would be another one: all that it depends on is in its key."""
    if job_key(job.prompt, job.settings) != job.key:
        names = " or ".join([job.settings.target, *models_in(job.settings.draft_name)])
        raise ValueError(
            f"the worker on {platform.node()} has another version of minispec (there {__version__}), or other files "
            f"of {names}: install the same there"
        )


def do_jobs(group: tuple[Job, ...]) -> list[Result]:
    """Write the texts of a group, the plain one first."""
    settings = group[0].settings
    with _one_at_a_time:
        pair = opened_pair(model_settings(settings))
        ids = pair.tokenizer.encode(group[0].prompt.text)
        plain = run_all(ids, decode(settings, pair, ids, plain=True))
        results = []
        for job in group:
            run = plain if pair.drafter is None else run_all(ids, decode(job.settings, pair, ids))
            counts = count_run(run, plain, settings.determined)
            results.append(Result(job.key, counts, time_run(run, plain)))
    return results


def model_settings(settings: Settings) -> Settings:
    """The settings that loading depends on; the others at their defaults."""
    names = ("target", "draft", "weights", "draft_weights", "backend", "offline")
    return Settings(**{name: getattr(settings, name) for name in names})


@cache
def opened_target(settings: Settings) -> GPT2:
    """A loaded target, once a process."""
    return open_pair(settings).target


@cache
def opened_pair(settings: Settings) -> Pair:
    """A loaded pair, once a process, after a few tokens; pairs of one target share it."""
    alone = replace(settings, draft="none", draft_weights=Settings.draft_weights)
    pair = open_pair(settings, opened_target(alone))
    pair.warm_up()
    run_all([0], decode(replace(settings, max_new_tokens=WARM_UP, num_draft_tokens=1), pair, [0]))
    return pair
