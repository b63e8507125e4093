"""The tokenizer against a naive twin, against other libraries where they are installed, and against damage."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minispec.tokenizer import (
    LONG_SPACE,
    TextStream,
    Tokenizer,
    check_same_vocabulary,
    load_tokenizer,
    read_tokenizer,
    stop_rule,
)
from minispec.vocabulary import byte_letters, count_tokens, well_formed

ROOT = Path(__file__).resolve().parents[1]
LETTERS = byte_letters()
FIRST_PAIRS = ("h e", "Ġ t", "l l", "Ġt he", "he ll", "hell o", "ð Ł", "ðŁ ¤")
PAIRS = (*FIRST_PAIRS, "a b", "ab c", "Ġ Ġ", "a a", "aa a", "â Ģ", "âĢ ¨", "T h")


def vocabulary(pairs: Sequence[str] = PAIRS, control: Sequence[str] = ("<|endoftext|>",)) -> dict[str, int]:
    """Ids of bytes, then of pairs, then of control tokens, as GPT-2 numbers them."""
    order = sorted(LETTERS)
    return {token: i for i, token in enumerate([*order, *(pair.replace(" ", "") for pair in pairs), *control])}


def write(folder: Path, ids: dict[str, int], pairs: Sequence[str] = PAIRS) -> Path:
    """Write vocab.json and merges.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "merges.txt").write_bytes("\n".join(["#version: 0.2", *pairs, ""]).encode())
    return folder


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json as GPT-2 has it, with `part__setting=value` changed."""
    whole: dict[str, Any] = {
        "added_tokens": [{"id": len(PAIRS) + 256, "content": "<|endoftext|>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {"type": "BPE", "dropout": None, "vocab": vocabulary(control=()), "merges": list(PAIRS)},
    }
    for name, value in changes.items():
        part, _, setting = name.partition("__")
        if setting:
            whole[part][setting] = value
        else:
            whole[part] = value
    return whole


def gpt2_folder() -> Path | None:
    """Where the genuine vocabulary lies, if it does."""
    places = [Path(os.environ.get("MINISPEC_GPT2_BPE", ROOT.parent / "shared" / "gpt2-bpe"))]
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache("openai-community/gpt2", "merges.txt")
        places += [Path(found).parent] if isinstance(found, str) else []
    except ImportError:
        pass
    for place in places:
        for name in ("vocab.json", "encoder.json"):
            if (place / name).exists():
                return place
    return None


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return read_tokenizer(write(tmp_path_factory.mktemp("small"), vocabulary()))


@pytest.fixture(scope="module")
def gpt2_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = gpt2_folder()
    if place is None:
        pytest.skip("GPT-2's vocabulary is not here: set MINISPEC_GPT2_BPE to a folder with it")
    folder = tmp_path_factory.mktemp("gpt2")
    for theirs, ours in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        source = place / theirs
        shutil.copyfile(source if source.exists() else place / ours, folder / theirs)
    return folder


@pytest.fixture(scope="module")
def gpt2(gpt2_files: Path) -> Tokenizer:
    return read_tokenizer(gpt2_files)


@pytest.fixture(scope="module", params=["small", "gpt2", "pair"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "gpt2":
        return Path(request.getfixturevalue("gpt2_files"))
    if request.param == "small":
        return write(tmp_path_factory.mktemp("same"), vocabulary())
    folder = ROOT / "weights" / "story-target"
    if not (folder / "merges.txt").exists():
        pytest.skip("weights/story-target has no vocabulary yet")
    return folder


# Characters whose category has not changed since Unicode 3.2, so that every engine's tables agree on them.
STABLE = [
    char
    for char in map(chr, range(0x10000))
    if unicodedata.category(char) == unicodedata.ucd_3_2_0.category(char) not in ("Cn", "Cs")
]
BITS = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "the",
    " the",
    "hello",
    "'ll",
    "'LL",
    "'s",
    "don't",
    "'Th",
    "3.14",
    "aaaa",
    "abc",
]
BITS += ["\u00a0", "\x85", "\u2028", "\u0967", "e\u0301", "\u65e5\u672c\u8a9e", "\U0001f917", "<|endoftext|>"]
TEXTS = st.lists(
    st.one_of(st.sampled_from(BITS), st.text(st.sampled_from("abcehlot' "), max_size=9), st.text(STABLE, max_size=3))
).map("".join)
ANY_TEXT = st.one_of(TEXTS, st.text(st.characters(exclude_categories=["Cs"])))


Ranks = dict[tuple[str, str], int]


def read_naively(folder: Path) -> tuple[dict[str, int], Ranks]:
    """Ids of tokens and ranks of pairs, with no check."""
    pairs = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    halves = [pair.partition(" ") for pair in pairs if pair]
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    return ids, {(left, right): rank for rank, (left, _, right) in enumerate(halves)}


def naive_ids(text: str, ids: dict[str, int], ranks: Ranks) -> list[int]:
    """GPT-2's own encoder, as published: listed pairs only, all places of the best pair at once."""
    regex: Any = importlib.import_module("regex")  # comes with tiktoken
    out: list[int] = []
    pattern = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    for piece in regex.findall(pattern, text):
        word = [LETTERS[byte] for byte in piece.encode()]
        while listed := [pair for pair in pairwise(word) if pair in ranks]:
            best = min(listed, key=ranks.__getitem__)
            new, i = [], 0
            while i < len(word):
                joined = tuple(word[i : i + 2]) == best
                new.append(word[i] + word[i + 1] if joined else word[i])
                i += 1 + joined
            word = new
        out += [ids[token] for token in word]
    return out


# Same ids as GPT-2


def test_equals_naive_twin(files: Path) -> None:
    ids, ranks = read_naively(files)
    tokenizer = read_tokenizer(files)

    @given(TEXTS)
    @example("hello'Th")
    def check(text: str) -> None:
        assert tokenizer.encode(text) == naive_ids(text, ids, ranks)

    check()


def test_equals_tokenizers_library(files: Path) -> None:
    library = pytest.importorskip("tokenizers")
    bpe = library.models.BPE.from_file(str(files / "vocab.json"), str(files / "merges.txt"))
    theirs = library.Tokenizer(bpe)
    theirs.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ours = read_tokenizer(files)
    assert ours.n_vocab == theirs.get_vocab_size()

    @given(TEXTS)
    def check(text: str) -> None:
        assert ours.encode(text) == theirs.encode(text).ids

    check()


def test_every_token_is_made_by_its_pair_alone(files: Path) -> None:
    """The check on load, done the long way: merge each token's letters as tiktoken would, without shortcuts."""
    ids, ranks = read_naively(files)
    for left, right in list(ranks)[:: max(1, len(ranks) // 2000)]:
        word = [*left, *right]
        while len(word) > 2:
            joined = [ids.get(one + two, len(ids)) for one, two in pairwise(word)]
            at = joined.index(min(joined))
            word[at : at + 2] = [word[at] + word[at + 1]]
        assert word == [left, right]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [15496, 995]),
        ("The cat sat on the", [464, 3797, 3332, 319, 262]),
        ("a  b", [64, 220, 275]),
        ("def f():\n    return  x", [4299, 277, 33529, 198, 220, 220, 220, 1441, 220, 2124]),
        ("hello\nworld", [31373, 198, 6894]),
        ("it'll", [270, 1183]),
        ("It'LL", [1026, 6, 3069]),
        ("   ", [220, 220, 220]),
        ("Hello\r\n", [15496, 201, 198]),
        ("a\u00a0b", [64, 1849, 65]),
        ("\x85", [126, 227]),
        ("\u0967\u0968\u0969", [24231, 100, 24231, 101, 24231, 102]),
        ("e\u0301", [68, 136, 223]),
        ("\U0001f917", [8582, 97, 245]),
        ("\u65e5\u672c\u8a9e", [33768, 98, 17312, 105, 45739, 252]),
        ("\u2028", [447, 101]),
        ("<|endoftext|>", [27, 91, 437, 1659, 5239, 91, 29]),
        ("\ud83d", [4210]),
        ("\ud83d\udc4d", [41840, 235]),
        ("", []),
    ],
)
def test_known_ids_of_gpt2(gpt2: Tokenizer, text: str, ids: list[int]) -> None:
    assert gpt2.encode(text) == ids
    assert gpt2.decode(ids) == well_formed(text)


def test_gpt2_in_numbers(gpt2: Tokenizer, gpt2_files: Path) -> None:
    assert (gpt2.n_vocab, gpt2.end_of_text, gpt2.encoding.n_vocab) == (50257, 50256, 50257)
    assert count_tokens(gpt2_files) == 50257
    assert gpt2.decode([64, 50256]) == "a<|endoftext|>"


@pytest.mark.parametrize("space", [" ", "\n", "\u3000"])
def test_white_space_of_any_length(small: Tokenizer, space: str) -> None:
    """A million spaces overflow the engine's stack, so they are cut; the cut must change no id."""
    for n in (998, 999, 1000, 1001, 2001):
        for before, after in (("", ""), ("a", "b"), ("", " \x1cb"), ("a", "\n!")):
            text = before + space * n + after
            assert small.encode(text) == small.encoding.encode_ordinary(text)
    text = "a" + space * 1_100_000 + "b" + space * 1_100_000
    assert LONG_SPACE.search(text)
    assert small.decode(small.encode(text)) == text


# Round trips, surrogates, odd ids


@given(ANY_TEXT)
@example("a <|endoftext|> b")
def test_round_trip(small: Tokenizer, text: str) -> None:
    ids = small.encode(text)
    assert small.decode(ids) == text
    assert small.decode(np.array(ids, np.int32)) == text
    assert small.end_of_text not in ids


@given(ANY_TEXT)
def test_round_trip_of_gpt2(gpt2: Tokenizer, text: str) -> None:
    assert gpt2.decode(gpt2.encode(text)) == text


@given(st.text(st.one_of(st.characters(), st.sampled_from("\ud83d\udc4d\ud800\udfff\udcff"))))
def test_surrogates_join_or_are_replaced(small: Tokenizer, text: str) -> None:
    right, i = "", 0
    while i < len(text):
        high, low = text[i], text[i + 1 : i + 2]
        if "\ud800" <= high < "\udc00" and "\udc00" <= low < "\ue000":
            right += chr(0x10000 + (ord(high) - 0xD800) * 0x400 + ord(low) - 0xDC00)
            i += 1
        else:
            right += "\ufffd" if "\ud800" <= high < "\ue000" else high
        i += 1
    assert small.decode(small.encode(text)) == right


def test_ids_that_do_not_exist(small: Tokenizer) -> None:
    for bad in (small.n_vocab, -1, 2**40, 1.0, True, "a", None, np.int64(-1), np.float32(1), np.True_):
        for use in (small.token_bytes, lambda i: small.decode([5, i]), TextStream(small).push):
            with pytest.raises(ValueError, match=r"token id .* is not a whole number from 0 to"):
                use(bad)  # type: ignore[arg-type]
    assert small.decode([]) == small.decode(np.array([], np.int64)) == ""
    assert small.token_bytes(np.int64(0)) == small.token_bytes(0)  # type: ignore[arg-type]


# Streams


@pytest.mark.parametrize("cut", range(7))
def test_stream_holds_characters_together(small: Tokenizer, cut: int) -> None:
    ids = small.encode("\U0001f917\u2028\u65e5")[:cut]
    stream = TextStream(small)
    chunks = [stream.push(i) for i in ids]
    assert "\ufffd" not in "".join(chunks)
    assert "".join(chunks) + stream.flush() == small.decode(ids)


def test_stream_ends_inside_a_character_of_gpt2(gpt2: Tokenizer) -> None:
    for ids in ([8582], [8582, 97], [33768], [447], [64, 97, 64], [8582, 97, 245]):
        stream = TextStream(gpt2)
        assert "".join(map(stream.push, ids)) + stream.flush() == gpt2.decode(ids)
    assert gpt2.decode([8582, 97, 245]) == "\U0001f917"


IDS = st.lists(st.one_of(st.integers(0, 256 + len(PAIRS)), st.sampled_from([256, 257, 262, 263])), max_size=30)


@given(IDS)
def test_stream_joins_to_the_whole_text(small: Tokenizer, ids: list[int]) -> None:
    stream = TextStream(small)
    chunks = [stream.push(i) for i in ids]
    shown = [i for i in ids if i != small.end_of_text]
    assert "".join(chunks) + stream.flush() == small.decode(shown)
    assert not stream.stopped


@given(st.lists(st.sampled_from([*BITS, "x"])).map("".join))
def test_stream_is_prompt(small: Tokenizer, text: str) -> None:
    """After each id all complete characters are out: nothing is held back without need."""
    stream, data, shown = TextStream(small), b"", ""
    for i in small.encode(text):
        data += small.token_bytes(i)
        shown += stream.push(i)
        assert shown == data.decode("utf-8", errors="ignore")


STOPS = st.lists(
    st.one_of(
        st.sampled_from(["ab", "abc", "b", "\U0001f917", "\u65e5", "o a"]), st.text("abc\u00e9", min_size=1, max_size=3)
    ),
    max_size=3,
)
STOPPED_TEXTS = st.lists(st.sampled_from(["a", "b", "c", "ab", "abc", "hello", "\u00e9", "\U0001f917", "\u65e5", " "]))


@given(STOPPED_TEXTS.map("".join), STOPS)
@example("xabc", ["abc", "ab"])
@example("aaab", ["aab"])
@example("xabc", ["abc", "c"])
@example("xabc", ["abc", "b"])
def test_stream_cuts_before_the_first_stop(small: Tokenizer, text: str, stops: list[str]) -> None:
    stream, rule = TextStream(small, stops), stop_rule(small, stops)
    ids = small.encode(text)
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    right = text[: min(ends)[1]] if ends else text
    out = ""
    for n, i in enumerate(ids, 1):
        before = stream.stopped
        out += stream.push(i)
        assert right.startswith(out)
        if not before:
            assert rule(ids[:n]) == rule(np.array(ids[:n])) == stream.stopped  # type: ignore[arg-type]
        assert stream.stopped == any(stop in small.decode(ids[:n]) for stop in stops)
    assert out + stream.flush() == right


@given(IDS, st.lists(st.text("ahel\u00e9\U0001f917", min_size=1, max_size=3), max_size=3))
def test_rule_and_stream_agree_on_any_ids(small: Tokenizer, ids: list[int], stops: list[str]) -> None:
    stream, rule = TextStream(small, stops), stop_rule(small, stops, end_of_text=False)
    data = b""
    for n, i in enumerate(ids, 1):
        stream.push(i)
        new = b"" if i == small.end_of_text else small.token_bytes(i)
        right = any((data + new).find(s.encode(), max(0, len(data) - len(s.encode()) + 1)) >= 0 for s in stops)
        assert rule(ids[:n]) == right
        data += new
        if stream.stopped:
            assert right
            break
        assert not right


def test_rule_at_end_of_text(small: Tokenizer) -> None:
    end, a = small.end_of_text, small.encode("a")[0]
    assert end is not None
    assert stop_rule(small, ())([a, end])
    assert not stop_rule(small, ())([end, a])
    assert not stop_rule(small, (), end_of_text=False)([a, end])
    assert not stop_rule(small, "a")([])
    stream = TextStream(small, ["aa"])
    assert [stream.push(i) for i in (a, end, a)] == ["", "", ""]
    assert stream.stopped
    assert stop_rule(small, ["aa"], end_of_text=False)([a, end, a])


def test_rule_forgets_stops_that_ended_before(small: Tokenizer) -> None:
    ids = small.encode("ab") + small.encode("x")
    assert stop_rule(small, ["ab", "long stop"])(ids[:-1])
    assert not stop_rule(small, ["ab", "long stop"])(ids)


def test_empty_stop_is_refused(small: Tokenizer) -> None:
    for use in (stop_rule, TextStream):
        with pytest.raises(ValueError, match=r"stop text .* is empty"):
            use(small, ["a", ""])
    assert stop_rule(small, ["\ud83d\udd17"])(small.encode("\U0001f517"))


# Files


def test_line_ends_and_version_line_change_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, vocabulary())
    plain = read_tokenizer(folder).encode(" the hello abc")
    assert len(plain) == 5
    for content in ("\r\n".join(["#version: 0.2", *PAIRS, ""]), "\n".join(PAIRS), "\r\n".join(PAIRS)):
        (folder / "merges.txt").write_bytes(content.encode())
        assert read_tokenizer(folder).encode(" the hello abc") == plain
    (folder / "vocab.json").write_bytes(json.dumps(vocabulary(), indent=1).replace("\n", "\r\n").encode())
    assert read_tokenizer(folder).encode(" the hello abc") == plain


def test_tokenizer_json_gives_the_same(tmp_path: Path, small: Tokenizer) -> None:
    for merges in (list(PAIRS), [pair.split(" ") for pair in PAIRS]):
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(model__merges=merges)), encoding="utf-8")
        tokenizer = read_tokenizer(tmp_path)
        check_same_vocabulary(tokenizer, small)
        assert tokenizer.encode(" the hello <|endoftext|>") == small.encode(" the hello <|endoftext|>")
        assert tokenizer.end_of_text == small.end_of_text
        assert count_tokens(tmp_path) == small.n_vocab
    write(tmp_path, vocabulary(["x y"]), ["x y"])  # vocab.json + merges.txt come first
    assert read_tokenizer(tmp_path).n_vocab == count_tokens(tmp_path) == 258


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer is .*NFC"),
        ({"model__type": "Unigram"}, "model.type is 'Unigram', not 'BPE'"),
        ({"model__dropout": 0.1}, "model.dropout is 0.1"),
        ({"model__byte_fallback": True}, "model.byte_fallback is True"),
        ({"model__end_of_word_suffix": "</w>"}, "model.end_of_word_suffix is '</w>'"),
        ({"model__continuing_subword_prefix": "##"}, "model.continuing_subword_prefix is '##'"),
        ({"pre_tokenizer__add_prefix_space": True}, "pre_tokenizer.add_prefix_space is True"),
        ({"pre_tokenizer__use_regex": False}, "pre_tokenizer.use_regex is False"),
        ({"pre_tokenizer__type": "Metaspace"}, "pre_tokenizer.type is 'Metaspace'"),
        ({"pre_tokenizer": None}, "pre_tokenizer.type is None"),
        ({"model": None}, "model.vocab, model.merges or added_tokens is missing"),
        ({"model__merges": [3]}, "malformed"),
        ({"added_tokens": [{"id": 5}]}, "malformed"),
        ({"added_tokens": [{"id": 5, "content": "<x>"}]}, "id 5 is given twice"),
        ({"added_tokens": [{"id": 5, "content": "he"}]}, "'he' has id 256 but is added as 5"),
    ],
)
def test_foreign_tokenizer_json_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(**changes)), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"tokenizer\.json: .*{fault}") as caught:
        read_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def lines(*edits: Callable[[list[str]], object]) -> bytes:
    """merges.txt with its list of pairs edited."""
    pairs = list(PAIRS)
    for edit in edits:
        edit(pairs)
    return "\n".join(["#version: 0.2", *pairs, ""]).encode()


def ids_json(edit: Callable[[dict[str, int]], object]) -> bytes:
    """vocab.json with its ids edited."""
    ids = vocabulary()
    edit(ids)
    return json.dumps(ids).encode()


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("merges.txt", lines(lambda p: p.__setitem__(0, "e h")), "pair 'e h' on line 2 makes 'eh', which"),
        ("merges.txt", lines(lambda p: p.__setitem__(12, "a aa")), "pair 'a aa' on line 14 cannot happen"),
        ("merges.txt", lines(lambda p: p.insert(0, p.pop(2))), "pair 'h e' on line 3 .* out of order"),
        ("merges.txt", lines(lambda p: p.insert(3, p[2])), "pair 'l l' on line 5 .* out of order"),
        ("merges.txt", lines(lambda p: p.insert(0, p.pop(4))), "pair 'he ll' on line 2 is not two tokens"),
        ("merges.txt", lines(lambda p: p.__setitem__(1, "Ġ t h")), "pair 'Ġ t h' on line 3 is not two tokens"),
        ("merges.txt", lines(lambda p: p.__setitem__(1, "")), "pair '' on line 3 is not two tokens"),
        ("merges.txt", lines(lambda p: p.pop()), "no pair makes token"),
        ("merges.txt", lines(lambda p: p.pop(8)), "pair 'ab c' on line 10 is not two tokens"),
        ("merges.txt", b"\n".join([b"#version", b"h e\xff"]), "cannot be read .*0xff"),
        ("merges.txt", b"\xef\xbb\xbf" + lines(), "on line 1 is not two tokens"),
        ("merges.txt", b"", "on line 1 is not two tokens"),
        ("vocab.json", ids_json(lambda ids: ids.pop("a")), "id 64 is missing"),
        ("vocab.json", ids_json(lambda ids: ids.update(a=65)), "id 65 is given twice, to 'a' and to 'b'"),
        ("vocab.json", ids_json(lambda ids: ids.update(a=True)), "'a' has the id True"),
        ("vocab.json", ids_json(lambda ids: ids.update(a=-1)), "'a' has the id -1"),
        ("vocab.json", ids_json(lambda ids: ids.update({"<x>": 2**40})), "id 273 is missing"),
        ("vocab.json", ids_json(lambda ids: ids.update({"<x>": ids.pop("a")})), "byte written 'a' has no token"),
        ("vocab.json", ids_json(lambda ids: ids.update({"<a\ud83d>": 273})), "no Unicode text"),
        ("vocab.json", b'{"a": 0, "a": 1}', "the key 'a' is there twice"),
        ("vocab.json", b'{"a": 0', "cannot be used"),
        ("vocab.json", b"[" * 100_000, "cannot be used"),
        ("vocab.json", b"[]", "holds a JSON list"),
        ("vocab.json", b'{"\xff": 0}', "cannot be used .*0xff"),
        ("added_tokens.json", b'{"<x>": 3}', "id 3 is given twice"),
        ("added_tokens.json", b'{"": 273}', "is empty"),
        ("added_tokens.json", b'{"<\\ud83d>": 273}', "no Unicode text"),
        ("added_tokens.json", b'{"<x>": 1.5}', "'<x>' has the id 1.5"),
        ("added_tokens.json", b'{"<x>": 900}', "id 273 is missing"),
        ("added_tokens.json", b'{"hello": 4}', "'hello' has id 261 but is added as 4"),
        ("added_tokens.json", b'{"<x>": 273, "<y>": 273}', "id 273 is given twice, to '<x>' and to '<y>'"),
        ("added_tokens.json", json.dumps({f"<{i}>": i for i in range(273, 120_001)}).encode(), "120001 tokens are"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path: Path, name: str, content: bytes, fault: str) -> None:
    """With the file that is damaged."""
    (write(tmp_path, vocabulary()) / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / name))}: .*{fault}") as caught:
        read_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda ids: ids.update({"zz": 273}), "no pair makes token 'zz'"),
        (lambda ids: ids.update(he=258, ll=256), "out of order"),
    ],
)
def test_ids_that_do_not_fit_the_pairs_are_named_by_the_pair(tmp_path: Path, edit: Any, fault: str) -> None:
    """Which of the two files is damaged nobody can know."""
    (write(tmp_path, vocabulary()) / "vocab.json").write_bytes(ids_json(edit))
    with pytest.raises(ValueError, match=rf"merges\.txt: .*{fault}"):
        read_tokenizer(tmp_path)


def test_last_merges_of_gpt2_dropped(tmp_path: Path, gpt2_files: Path) -> None:
    shutil.copytree(gpt2_files, tmp_path, dirs_exist_ok=True)
    content = (tmp_path / "merges.txt").read_bytes().rstrip(b"\n").split(b"\n")
    (tmp_path / "merges.txt").write_bytes(b"\n".join(content[:-10]))
    with pytest.raises(ValueError, match=r"merges\.txt: no pair makes token .*\(id 50246\)"):
        read_tokenizer(tmp_path)


def test_control_tokens_may_come_first_or_be_added(tmp_path: Path) -> None:
    ids = {token: i for i, token in enumerate(["<|endoftext|>", "[PAD]", *vocabulary(control=())])}
    folder = write(tmp_path, ids)
    (folder / "added_tokens.json").write_text(json.dumps({"extra": len(ids)}), encoding="utf-8")
    tokenizer = read_tokenizer(folder)
    assert tokenizer.end_of_text == 0
    assert tokenizer.decode([1, *tokenizer.encode("hello"), len(ids)]) == "[PAD]helloextra"
    assert len(tokenizer.encode("hello")) == 1


def test_folder_without_vocabulary(tmp_path: Path) -> None:
    assert count_tokens(tmp_path) is None
    with pytest.raises(ValueError, match=r"neither vocab\.json"):
        read_tokenizer(tmp_path)
    write(tmp_path, vocabulary())
    assert count_tokens(tmp_path) == 257 + len(PAIRS)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ValueError, match=r"vocab\.json needs merges\.txt beside it"):
        count_tokens(tmp_path)


def test_load_tokenizer_asks_for_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, vocabulary())
    asked = []

    def find_model(name: str, offline: bool = False) -> Path:
        asked.append((name, offline))
        return folder

    monkeypatch.setitem(sys.modules, "minispec.hub", SimpleNamespace(find_model=find_model))
    assert load_tokenizer("org/name", offline=True).n_vocab == load_tokenizer(folder).n_vocab
    assert asked == [("org/name", True)]


# Two vocabularies


def test_other_vocabulary_is_refused(tmp_path: Path, small: Tokenizer) -> None:
    check_same_vocabulary(small, small)
    swapped = vocabulary()
    swapped["a"], swapped["b"] = swapped["b"], swapped["a"]
    with pytest.raises(ValueError, match=r"token id 64 is b'a' for the target, b'b' for the draft"):
        check_same_vocabulary(small, read_tokenizer(write(tmp_path / "swapped", swapped)))
    shorter = read_tokenizer(write(tmp_path / "shorter", vocabulary(PAIRS[:5]), PAIRS[:5]))
    with pytest.raises(ValueError, match="the target has 273 tokens, the draft 262"):
        check_same_vocabulary(small, shorter)
