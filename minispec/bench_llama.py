"""llama.cpp on the user's GGUF files: `llama-bench` for plain decoding, `llama-speculative-simple` for the other.

Both load the model anew each time and report the speed of decoding alone. llama.cpp keeps a guess if the target
draws the same token, which in greedy decoding is our rule as well.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from minispec.bench_texts import Arm, Program, Written
from minispec.bench_worker import of_others

PLAIN_TOOL, SPECULATIVE_TOOL = "llama-bench", "llama-speculative-simple"
LIMIT: float = 1800  # seconds after which a call has hung


def llama_program(
    gguf: str | None, gguf_draft: str | None, prompts: Sequence[str], n: int, lengths: Sequence[int], threads: int
) -> Program:
    """Its ways to write n tokens after each prompt.

    Raises ValueError for programs that are not on the PATH and for files that are not given or not there.
    """
    if gguf is None:
        raise ValueError("--against llama.cpp needs GGUF files: give --gguf FILE, and --gguf-draft FILE")
    for option, file in (("--gguf", gguf), ("--gguf-draft", gguf_draft)):
        if file is not None and not Path(file).is_file():
            raise ValueError(f"{option} {file}: there is no such file: make one with llama.cpp's convert_hf_to_gguf.py")
    bench = tool(PLAIN_TOOL)

    def plain() -> Written:
        command = [bench, "-m", gguf, "-t", str(threads), "-p", "0", "-n", str(n), "-r", "1", "-o", "json"]
        seconds = sum(n / plain_speed(output_of(command)) for _ in prompts)
        return Written(n * len(prompts), seconds)

    if gguf_draft is None:
        return Program("llama.cpp", plain)
    speculate, draft = tool(SPECULATIVE_TOOL), gguf_draft

    def arm(n_draft: int) -> Arm:
        command = [speculate, "-m", gguf, "-md", draft, "-t", str(threads), "-n", str(n), "--temp", "0"]
        command += ["--spec-type", "draft-simple", "--spec-draft-n-max", str(n_draft), "--spec-draft-p-min", "0"]
        return lambda: added([speculative_run(output_of([*command, "-p", prompt])) for prompt in prompts])

    return Program("llama.cpp", plain, {n_draft: arm(n_draft) for n_draft in lengths})


def tool(name: str) -> str:
    """Where a program is. Raises ValueError if it is not on the PATH."""
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"--against llama.cpp needs {name}, which is not on the PATH: add llama.cpp's bin folder")
    return path


def output_of(command: Sequence[str]) -> str:
    """What a command prints, on both streams. Raises ValueError if it fails or hangs."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            env=of_others(),
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{name} has not ended after {LIMIT} s: try fewer tokens, as in -n 32") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        raise ValueError(f"{name} failed with status {done.returncode}: {said.strip()[-300:]}")
    return said


def plain_speed(output: str) -> float:
    """Tokens a second from what `llama-bench -o json` prints. Raises ValueError where there is no such figure."""
    start, end = output.find("["), output.rfind("]")
    try:
        return float(json.loads(output[start : end + 1])[0]["avg_ts"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{PLAIN_TOOL} printed no avg_ts: {output.strip()[-200:]!r}") from None


def speculative_run(output: str) -> Written:
    """Tokens, seconds and guesses from what `llama-speculative-simple` prints. Raises ValueError if it does not."""
    decoded = re.search(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds", output)
    counts = {name: re.search(rf"{name}\s*=\s*(\d+)", output) for name in ("n_drafted", "n_accept")}
    drafted, accepted = counts["n_drafted"], counts["n_accept"]
    if decoded is None or drafted is None or accepted is None or not float(decoded[2]):
        raise ValueError(f"{SPECULATIVE_TOOL} printed no speed: {output.strip()[-200:]!r}")
    return Written(int(decoded[1]), float(decoded[2]), drafted=int(drafted[1]), accepted=int(accepted[1]))


def added(texts: Sequence[Written]) -> Written:
    """Several texts as one."""
    return Written(
        sum(text.n_tokens for text in texts),
        sum(text.seconds for text in texts),
        drafted=sum(text.drafted or 0 for text in texts),
        accepted=sum(text.accepted or 0 for text in texts),
    )
