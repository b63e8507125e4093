"""`minispec simulate`: the accept-or-replace rule, millions of times, against the target's law."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from minispec.commands.shared import announced, given, load, note
from minispec.cores import count_cores
from minispec.option_types import Number
from minispec.options import (
    FILTER_OPTIONS,
    OUTPUT_OPTIONS,
    PAIR_OPTIONS,
    PROMPT_OPTIONS,
    RULES,
    RUN_OPTIONS,
    TRIALS,
    settings_from,
    with_options,
)
from minispec.prompt_source import read_prompt

if TYPE_CHECKING:
    from minispec.settings import Settings
    from minispec.trials import Floats

EXAMPLE = "0.15,0.35,0.10,0.40", "0.50,0.20,0.20,0.10"  # what is simulated if nothing is given

TARGET, _ = PAIR_OPTIONS

# fmt: off
PROBS_OPTIONS = [
    click.option("--target-probs", metavar="P,...|@FILE", help="The target's probabilities, one a token, or a file "
                 f"of them: .json, .npy or text.  [default: {EXAMPLE[0]}]"),
    click.option("--draft-probs", metavar="Q,...|@FILE", help=f"The draft's.  [default: {EXAMPLE[1]}]"),
    click.option("--trials", type=Number(int, 1), default=TRIALS, show_default=True, metavar="N",
                 help="Tokens to write with each rule."),
    click.option("--rule", "rules", type=click.Choice([*RULES, "all"]), multiple=True, default=["right"],
                 show_default=True, metavar="RULE", help="The rule to try; may be given again; all: every one."),
]
DRAFT = click.option("-d", "--draft", "--draft-model", metavar="NAME",
                     help="The model whose law guesses are drawn from.  [default: as in generate]")
SAMPLING_OPTIONS = [
    click.option("-t", "--temperature", "--temp", type=Number(float), default=1.0, show_default=True, metavar="X",
                 help="Of the two models' laws: 1 is their own, 0 is greedy."),
    *FILTER_OPTIONS,
]
# fmt: on
FOR_MODELS = {
    "prompt": "PROMPT",
    "prompt_option": "-p",
    "prompt_file": "-f",
    "target": "-m",
    "draft": "-d",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "weights": "--weights",
    "draft_weights": "--draft-weights",
    "offline": "--offline",
}  # fmt: skip


@dataclass(frozen=True)
class Laws:
    """Two laws [n], the names of their tokens, and where they come from."""

    target_probs: Floats
    draft_probs: Floats
    names: list[str]
    about: str | None = None
    origin: dict[str, Any] = field(default_factory=dict)


@click.command(short_help="Does the rule give the target's law back? and what do others give?")
@with_options(PROMPT_OPTIONS, PROBS_OPTIONS, [TARGET, DRAFT], SAMPLING_OPTIONS, RUN_OPTIONS, OUTPUT_OPTIONS)
@click.pass_context
def simulate(context: click.Context, /, **options: Any) -> None:
    """Write one token, millions of times: draw a guess from the draft's probabilities q, keep it or replace it by a
    rule, and compare what was written with the target's probabilities p. Probabilities are given as numbers, or are
    those of two models after a prompt. The same seed gives the same counts on every machine.

    \b
    right              keep with chance min(1, p/q), else draw from max(0, p - q)
    equal              keep if the target's own draw is the same: exact, keeps less
    no-residual        replace by a draw from the target itself
    absolute-residual  replace by a draw from |p - q|
    swapped            keep with chance min(1, q/p)
    reuse-uniform      the number that drew the guess is the coin as well
    argmax-draft       guess the draft's favourite, judge it as if drawn
    argmax-target      keep only the target's favourite
    discard            throw guesses away of which the draft is unsure
    keep-all           no guess is judged

    \b
    minispec simulate --rule all
    minispec simulate --target-probs 0.7,0.2,0.1 --draft-probs 0.2,0.2,0.6
    minispec simulate --target-probs @p.json --draft-probs @q.json --rule equal
    minispec simulate "Once upon a time there was a" --top-k 50
    """
    of_models = check_options(context, options)
    settings, quiet = settings_from(options), options["quiet"]
    prompt = read_prompt(*(options[name] for name in ("prompt", "prompt_option", "prompt_file"))) if of_models else ""
    from minispec.simulation import simulate as make_trials
    from minispec.simulation_text import one_rule, several_rules

    laws = laws_of_models(settings, prompt, quiet) if of_models else laws_given(options)
    shared: dict[str, Any] = {
        "seed": settings.seed,
        "backend": settings.backend,
        "threads": options["threads"] or count_cores(),
    }
    with announced("preparing the kernels (a first start compiles them, about 5 s; later ones do not) ...", quiet):
        make_trials([1.0], [1.0], trials=1, **shared)
    outcomes = [
        make_trials(
            laws.target_probs, laws.draft_probs, rule=rule, trials=options["trials"], quiet=quiet, **shared
        )
        for rule in chosen_rules(options["rules"])
    ]  # fmt: skip
    if options["as_json"]:
        results = [outcome.as_json() for outcome in outcomes]
        head = {"trials": options["trials"], "seed": settings.seed, "backend": outcomes[0].backend} | laws.origin
        head |= {"target_probs": laws.target_probs.tolist(), "draft_probs": laws.draft_probs.tolist()}
        rules = {"rules": results} if given(context, "rules") else {}
        click.echo(json.dumps(results[0] | head | rules, allow_nan=False))
        return
    if laws.about and not quiet:
        note(laws.about)
    click.echo(one_rule(outcomes[0], laws.names) if len(outcomes) == 1 else several_rules(outcomes))


def check_options(context: click.Context, options: dict[str, Any]) -> bool:
    """Whether the laws are two models'. Raises UsageError for options that contradict each other."""
    numbers = [name for name in ("target_probs", "draft_probs") if options[name] is not None]
    models = [name for option, name in FOR_MODELS.items() if given(context, option)]
    if len(numbers) == 1:
        missing = ({"target_probs", "draft_probs"} - set(numbers)).pop()
        raise click.UsageError(
            f"--{numbers[0].replace('_', '-')} is given alone: add --{missing.replace('_', '-')}, one number a token"
        )
    if numbers and models:
        raise click.UsageError(
            f"--target-probs and {models[0]} are both given: take probabilities or two models at a prompt, not both"
        )
    return bool(models)


def chosen_rules(names: tuple[str, ...]) -> list[str]:
    """The rules to try, each once, in the order given."""
    return list(RULES) if "all" in names else list(dict.fromkeys(names))


def laws_given(options: dict[str, Any]) -> Laws:
    """The laws of --target-probs and --draft-probs, or the example. Raises ValueError, naming the option."""
    from minispec.probs_file import read_probs
    from minispec.simulation import check_pair

    texts = EXAMPLE
    if options["target_probs"] is not None:
        texts = options["target_probs"], options["draft_probs"]
    names = "--target-probs", "--draft-probs"
    target, draft = check_pair(read_probs(names[0], texts[0]), read_probs(names[1], texts[1]), names)
    return Laws(target, draft, [str(token) for token in range(len(target))])


def laws_of_models(settings: Settings, prompt: str, quiet: bool) -> Laws:
    """The two models' laws of the token after the prompt, over the tokens that either may write."""
    import numpy as np

    from minispec.sampling import Sampling
    from minispec.simulation_text import about_models

    if settings.draft_name is None:
        raise click.UsageError("simulate needs two laws: give -d a draft model")
    pair = load(settings, quiet)
    drafter: Any = pair.drafter
    model = getattr(drafter, "model", None)
    if model is None or model.n_vocab != drafter.n_vocab:  # mask tokens are no tokens
        raise click.UsageError(
            f"simulate needs two laws, and -d {settings.draft_name} is not one model's: give -d a draft model"
        )
    ids, models = pair.tokenizer.encode(prompt), (pair.target, model)
    for name, model in zip((settings.target, settings.draft_name), models, strict=True):
        if len(ids) > model.n_ctx:
            raise click.UsageError(
                f"the prompt has {len(ids)} tokens and {name} a context window of {model.n_ctx}: shorten it"
            )
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    target, draft = (sampling.probs(model.forward(ids, model.new_cache(), n_logits=1)[-1]) for model in models)
    tokens = np.flatnonzero((target > 0) | (draft > 0))
    names = [json.dumps(pair.tokenizer.decode([token]), ensure_ascii=False) for token in tokens.tolist()]
    about = about_models(target[tokens], draft[tokens], settings.target, settings.draft_name, len(target))
    origin = {"target": settings.target, "draft": settings.draft_name, "prompt_ids": ids, "tokens": tokens.tolist()}
    return Laws(target[tokens], draft[tokens], names, about, origin)
