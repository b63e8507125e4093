"""The checks of `minispec verify` as lines: what was compared, on what, and how to see a difference again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minispec.settings import Settings
from minispec.viz import counted

if TYPE_CHECKING:
    from minispec.session import Pair
    from minispec.verify import Check


def check_line(check: Check, command: str) -> str:
    """One check as a line: passed with what it compared, or FAILED with the difference and the command to see it."""
    head = f"{check.name:14} {'passed' if check.passed else 'FAILED'}   "
    again = "" if check.passed else f"\n{'':{len(head)}}to see it again: {command}"
    return f"{head}{check.detail} ({check.seconds:.1f} s){again}"


def verify_command(settings: Settings, check: Check, threads: int | None, quick: bool) -> str:
    """The command that makes this check again, with the seed of the trial that failed."""
    default, chosen = Settings(), [("--only", check.name), ("--target", settings.target)]
    chosen += [("--draft", settings.draft)] if settings.draft is not None else []
    chosen += [("--seed", str(settings.seed if check.seed is None else check.seed))]
    for name in ("weights", "draft_weights", "backend"):
        value = getattr(settings, name)
        chosen += [(f"--{name.replace('_', '-')}", value)] if value != getattr(default, name) else []
    tree = settings.tree if isinstance(settings.tree, str) else ",".join(map(str, settings.tree))
    chosen += [("--tree", tree)] if tree else []
    chosen += [("--threads", str(threads))] if threads is not None else []
    words = [word for option in chosen for word in option] + ["--quick"] * quick + ["--offline"] * settings.offline
    return shlex.join(["minispec", "verify", *words])


def hash_line(name: str, digest: str, everywhere: bool) -> str:
    """The first digits of the hash of a model's logits, and on which machines it is the same."""
    where = "the same on every machine with fused multiply-add" if everywhere else "other machines may have another"
    return f"{'logits':14} {digest[:16]}   sha256 for {name}; {where}"


def verdict(checks: Sequence[Check], where: str) -> str:
    """The closing line: how many checks passed, or which failed."""
    failed = [check.name for check in checks if not check.passed]
    if failed:
        return f"NOT EXACT: {len(failed)} of {counted(len(checks), 'check')} failed: {', '.join(failed)}"
    passed = f"all {counted(len(checks), 'check')}" if len(checks) > 1 else checks[0].name
    return f"exact: {passed} passed on {where}"


def runs_on(settings: Settings, pair: Pair) -> str:
    """Threads or backend, and the models by name."""
    draft = "a stand-in for a draft" if settings.draft_name is None else settings.draft_name
    if pair.target.backend == "numpy":
        return f"the NumPy backend, {settings.target} with {draft}"
    import numba

    return f"{counted(numba.get_num_threads(), 'thread')}, {settings.target} with {draft}"
