"""Is the text exact, on this machine, with this pair? The checks behind `minispec verify`.

A check is a row of trials, each with a generator of its own made of seed, name and number, so that every failure can
be seen again. Trials on random cases are in verify_texts and verify_laws; the fixed ones, and what runs all, are here.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np
from tqdm import tqdm

from minispec.drafters import SmallModelDrafter
from minispec.hub import find_model, short_name
from minispec.model import GPT2
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.session import Pair, Settings
from minispec.speculative import speculate
from minispec.tokenizer import Tokenizer, load_tokenizer
from minispec.trace import run_all
from minispec.verify_laws import FALSE_ALARM, fair_dice, same_law
from minispec.verify_texts import Mismatch, Rng, compare_runs, same_bits, same_text
from minispec.weights import load_model


@dataclass(frozen=True)
class Check:
    """The result of one check; seed is that of the trial that failed, for running it again."""

    name: str
    passed: bool
    detail: str
    seconds: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Plan:
    """A check to be run: n_trials times `trial`, which returns how much it compared.

    report says what passed, with {compared} and {odds} to be filled in. case: what a trial is, "" where one is all.
    """

    name: str
    trial: Callable[[Pair, Rng], int]
    n_trials: int
    report: str
    case: str = ""


# --- running ---------------------------------------------------------------------------------------


def run_checks(
    plans: Sequence[Plan], pair: Pair, seed: int, seconds: float | None = None, quiet: bool = False
) -> Iterator[Check]:
    """One check after another; with `seconds`, those that repeat share that time."""
    share = None if seconds is None else seconds / max(sum(1 for plan in plans if plan.case), 1)
    for plan in plans:
        yield run_check(plan, pair, seed, share if plan.case else None, quiet)


def run_check(plan: Plan, pair: Pair, seed: int, seconds: float | None = None, quiet: bool = False) -> Check:
    """The trials of `seed`; with `seconds`, as many as that time allows, going on to those of seed + 1 and further."""
    began, compared, trials = time.perf_counter(), 0, 0
    total = plan.n_trials if seconds is None else None
    with tqdm(total=total, desc=plan.name, leave=False, disable=True if quiet else None) as bar:
        for trials in count(1) if seconds is not None else range(1, plan.n_trials + 1):
            own_seed, number = seed + (trials - 1) // plan.n_trials, (trials - 1) % plan.n_trials
            try:
                compared += plan.trial(pair, np.random.default_rng([own_seed, *plan.name.encode(), number]))
            except (Mismatch, ValueError) as error:
                where = f"trial {number + 1} of seed {own_seed}: " if plan.case else ""
                return Check(plan.name, False, f"{where}{error}", time.perf_counter() - began, own_seed)
            bar.update()
            if seconds is not None and time.perf_counter() - began >= seconds:
                break
    cases = f"{trials} {plan.case}{'' if trials == 1 else 's'}, " if plan.case else ""
    detail = cases + plan.report.format(compared=compared, odds=trials * FALSE_ALARM)
    return Check(plan.name, True, detail, time.perf_counter() - began)


# --- logits that are known -------------------------------------------------------------------------

GOLDEN = {  # logits_hash of the pair in the box
    "story-target": "2c161a59bbe6e9897116861ebbab3b7e0d7a75cb9f0230b5ac32dd7784ac85a0",
    "story-draft": "65526019c6776e806df3ccefbfc90e6c187c129a8bf4d59af5e23a6cbda59656",
}


def logits_hash(model: GPT2) -> str:
    """The sha256 of one pass's logits, as little-endian float32, over up to 200 fixed ids."""
    ids = [(5 + 7919 * i) % model.n_vocab for i in range(min(200, model.n_ctx))]
    return sha256(model.forward(ids, model.new_cache()).astype("<f4").tobytes()).hexdigest()


def logits_hashes(pair: Pair, settings: Settings) -> dict[str, str]:
    """The hash of each model of the pair, by its name."""
    models = {settings.target: pair.target}
    if settings.draft_name is not None and isinstance(pair.drafter, SmallModelDrafter):
        models[settings.draft_name] = pair.drafter.model  # type: ignore[assignment]
    return {name: logits_hash(model) for name, model in models.items() if isinstance(model, GPT2)}


def fused() -> bool:
    """Whether the kernels are compiled, with fused multiply-add: only then are their bits the same everywhere."""
    import numba
    from llvmlite.binding import get_host_cpu_features

    config: Any = numba.config
    if config.DISABLE_JIT or platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686", "x86"):
        return not config.DISABLE_JIT
    chosen = config.CPU_FEATURES  # NUMBA_CPU_FEATURES
    return bool(get_host_cpu_features().get("fma", False)) if chosen is None else "+fma" in chosen.split(",")


def golden(_: Pair, __: Rng, hashes: Mapping[str, str]) -> int:
    """The hashes of models in the box are those of GOLDEN; returns how many were compared."""
    for name, digest in hashes.items():
        if digest != GOLDEN[name]:
            raise Mismatch(f"the logits of {name} have sha256 {digest}, which should be {GOLDEN[name]}")
    return len(hashes)


def why_not_golden(pair: Pair, settings: Settings) -> str | None:
    """Why the logits cannot be compared with constants, or None if they can."""
    if not {settings.target, settings.draft_name} & GOLDEN.keys():
        return f"constants are known for {' and '.join(GOLDEN)} alone"
    if pair.target.backend != "numba":
        return "the sums of NumPy's BLAS differ from one machine to another"
    if settings.weights != "f32" or settings.draft_weights != "f32":
        return "constants are known for f32 weights alone"
    return None if fused() else "without fused multiply-add the kernels round otherwise"


# --- texts that are known --------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What others found with the same weights: the greedy text, or the target's passes with 4 guesses a round."""

    target: str
    prompt: str | tuple[int, ...]
    n_new: int
    new: str | tuple[int, ...] | None = None
    draft: str | None = None
    passes: int | None = None


DOG = (373, 1043, 287, 257, 2214, 1474, 262, 16246, 286, 2688, 290, 2688, 27262, 13, 198, 198, 464, 3290)
TURING = "Alan Turing theorized that computers would one day become"
KNOWN = (
    Known("gpt2", (464, 3290), 18, DOG),
    Known("gpt2", TURING, 8, " the most powerful machines on the planet."),
    Known("gpt2-medium", "The cat sat on the", 30, draft="gpt2", passes=7),
    Known("gpt2-medium", "one, two, three, four, five,", 30, draft="gpt2", passes=7),
    Known("gpt2-medium", "The capital of France is", 30, draft="gpt2", passes=9),
)


def check_known(known: Known, load: Callable[[str], tuple[GPT2, Tokenizer]]) -> None:
    """Raise Mismatch unless the models that `load` returns by name write the known text."""
    target, tokenizer = load(known.target)
    ids = tokenizer.encode(known.prompt) if isinstance(known.prompt, str) else list(known.prompt)
    plain = run_all(ids, generate(target, ids, max_new_tokens=known.n_new, sampling=Sampling()))
    new = tokenizer.decode(plain.ids) if isinstance(known.new, str) else tuple(plain.ids)
    if known.new not in (None, new):
        raise Mismatch(f"{known.target} continues {known.prompt!r} by {new!r}, which should be {known.new!r}")
    if known.draft is not None:
        drafter = SmallModelDrafter(load(known.draft)[0])
        steps = speculate(target, drafter, ids, max_new_tokens=known.n_new, n_draft=4, sampling=Sampling())
        run, case = run_all(ids, steps), f"{known.draft} drafting for {known.target}, prompt {known.prompt!r}"
        compare_runs(plain, run, case)
        if run.passes != known.passes:
            raise Mismatch(f"{run.passes} passes, which should be {known.passes} ({case})")


def known_outputs(pair: Pair, _: Rng, settings: Settings) -> int:
    """Every known text whose models are on this machine; returns how many."""
    loaded = {short_name(settings.target): (pair.target, pair.tokenizer)} if settings.weights == "f32" else {}

    def load(name: str) -> tuple[GPT2, Tokenizer]:
        if name not in loaded:
            loaded[name] = load_model(name, backend=settings.backend, offline=True), load_tokenizer(name, offline=True)
        return loaded[name]

    texts = [known for known in KNOWN if not absent(known)]
    for known in texts:
        check_known(known, load)
    return len(texts)


def absent(known: Known) -> str | None:
    """The name of a model that a known text needs and this machine lacks, or None."""
    for name in filter(None, (known.target, known.draft)):
        try:
            find_model(name, offline=True)
        except ValueError:
            return name
    return None


def why_not_known(settings: Settings, quick: bool) -> str | None:
    """Why no known text can be compared, or None if one can."""
    if quick and short_name(settings.target) not in {known.target for known in KNOWN}:
        return "--quick does it for gpt2 and gpt2-medium alone"
    lacking = [absent(known) for known in KNOWN]
    return None if None in lacking else f"{lacking[0]} is not in the Hugging Face cache"


# --- all of them -----------------------------------------------------------------------------------


def plan_checks(
    pair: Pair, settings: Settings, hashes: Mapping[str, str], coupling: str = "both", quick: bool = False
) -> tuple[list[Plan], dict[str, str]]:
    """The checks of a pair, for coupling "optimal", "gumbel" or "both"; and by name why others cannot be made."""
    large = pair.target.n_vocab > 10_000  # a law over all of it takes seconds
    law, n_laws = partial(same_law, top_k=500 if quick and large else 0), 2 if quick else 3 if large else 12
    texts = "{compared:,} tokens: ids and finish are those of plain decoding, whoever guesses"
    bits = "{compared:,} rows: logits and cache are the bytes of one pass"
    laws = "{compared:,} probabilities: the loop's law is the target's within 1e-12"
    odds = "{compared:,} texts: every frequency as it should be (a false alarm has odds below {odds:.0e})"
    plans = [Plan("greedy", same_text, 6 if quick else 24, texts, "text")]
    if coupling != "optimal":
        plans.append(Plan("gumbel", partial(same_text, sampled=True), 6 if quick else 24, texts, "sampled text"))
    plans.append(Plan("bits", same_bits, 8 if quick else 48, bits, "cut"))
    if coupling != "gumbel":
        plans.append(Plan("law", law, n_laws, laws, "context"))
        plans.append(Plan("dice", partial(fair_dice, n_texts=8_000 if quick else 40_000), 1, odds, "sample"))
    known = {name: digest for name, digest in hashes.items() if name in GOLDEN}
    left_out = {"golden": why_not_golden(pair, settings), "known outputs": why_not_known(settings, quick)}
    fixed = [
        Plan("golden", partial(golden, hashes=known), 1, f"the sha256 of logits is as known: {', '.join(known)}"),
        Plan("known outputs", partial(known_outputs, settings=settings), 1, "{compared} texts: as known"),
    ]
    plans += [plan for plan in fixed if left_out[plan.name] is None]
    return plans, {name: reason for name, reason in left_out.items() if reason is not None}
