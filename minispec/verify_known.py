"""What `minispec verify` knows beforehand: hashes of logits, and texts that others found with GPT-2's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from minispec.drafters import SmallModelDrafter
from minispec.hub import find_model, short_name
from minispec.model import GPT2
from minispec.plain import generate
from minispec.sampling import Sampling
from minispec.session import Pair
from minispec.settings import Settings
from minispec.speculative import speculate
from minispec.tokenizer import Tokenizer, load_tokenizer
from minispec.trace import run_all
from minispec.verify_cases import Counts, Mismatch, Rng
from minispec.verify_texts import compare_runs
from minispec.weights import load_model

# --- logits that are known -------------------------------------------------------------------------

GOLDEN = {  # logits_hash of the pair in the box
    "story-target": "39177d518984a17a690b817296a0d79c6f02720db785db2c0389de9b1a9ef137",
    "story-draft": "f4274827983ed2be7af551cf657f8f8c2333025b0792bb72d4068ede3e920afc",
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


def the_same_everywhere(model: GPT2) -> bool:
    """Whether every machine with fused multiply-add has these bits: the kernels' do, a BLAS's do not."""
    return model.backend == "numba" and bool(model.ops.fused())


def golden(_: Pair, __: Rng, hashes: Mapping[str, str]) -> Counts:
    """The hashes of models in the box are those of GOLDEN."""
    for name, digest in hashes.items():
        if digest != GOLDEN[name]:
            raise Mismatch(f"the logits of {name} have sha256 {digest}, which should be {GOLDEN[name]}")
    return {"hashes": len(hashes)}


def why_not_golden(pair: Pair, settings: Settings) -> str | None:
    """Why the logits cannot be compared with constants, or None if they can."""
    if not {settings.target, settings.draft_name} & GOLDEN.keys():
        return f"constants are known for {' and '.join(GOLDEN)} alone"
    if pair.target.backend != "numba":
        return "the sums of NumPy's BLAS differ from one machine to another"
    if settings.weights != "f32" or settings.draft_weights != "f32":
        return "constants are known for f32 weights alone"
    return None if the_same_everywhere(pair.target) else "without fused multiply-add the kernels round otherwise"


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


def known_outputs(pair: Pair, _: Rng, settings: Settings) -> Counts:
    """Every known text whose models are on this machine."""
    loaded = {short_name(settings.target): (pair.target, pair.tokenizer)} if settings.weights == "f32" else {}

    def load(name: str) -> tuple[GPT2, Tokenizer]:
        if name not in loaded:
            loaded[name] = load_model(name, backend=settings.backend, offline=True), load_tokenizer(name, offline=True)
        return loaded[name]

    texts = [known for known in KNOWN if not absent(known)]
    for known in texts:
        check_known(known, load)
    return {"texts": len(texts)}


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
