"""Files from anywhere: each is loaded right or refused in one line, soon, in little memory, and nothing else is read.

Right means: as the safetensors library reads it, as an independent reader of JSON and of merges does, or bit for bit
as the file that was damaged.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import assert_same_bits
from checkpoints import safetensors_bytes, stored_as, tiny_tensors, write_checkpoint
from heads_files import medusa_tensors, write_heads
from hostile import (
    ENCODINGS,
    MEMORY,
    NUMBERS,
    ODD,
    SMALLEST,
    THOROUGH,
    Pairs,
    Raw,
    broken,
    damaged,
    edited,
    encoded,
    growth,
    junk,
    render,
    tokenizer_json,
    verdict,
    with_header,
    write_model,
)
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize, safe_open

from minispec.drafters import MedusaDrafter
from minispec.drafters.ngram import open_ngram, table_of
from minispec.heads import find_heads, read_heads
from minispec.json_file import read_json
from minispec.model import GPT2
from minispec.model_files import MOST_MEMORY, PER_MARK
from minispec.ngram_table import count_table, load_table, save_table
from minispec.parameters import GPT2Config
from minispec.probs_file import read_probs
from minispec.prompts import read_prompts
from minispec.safetensors_file import MOST_HEADER, StoredTensor, read_header, read_metadata, read_tensor
from minispec.tokenizer import read_tokenizer
from minispec.vocabulary import MOST_IN_TOKEN, MOST_LETTERS, MOST_TOKENS, byte_letters, read_vocabulary
from minispec.weights import Checkpoint, load_model, read_config

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TENSORS = tiny_tensors(SMALLEST)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files a test breaks one at a time and mends again."""
    return write_model(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("hostile") / "shards", n_shards=2)


def read_all(folder: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint."""
    return dict(Checkpoint(folder))


def assert_whole(found: dict[str, Any]) -> None:
    """These are the tensors of the model that was damaged."""
    assert list(found) == list(TENSORS)
    for name, array in TENSORS.items():
        assert_same_bits(found[name], array)


# --- weights: the library's verdict --------------------------------------------------------------------


def judged(path: Path) -> dict[str, Any] | None:
    """What the safetensors library finds in a file, by name, or None where it refuses."""
    try:
        with safe_open(path, framework="numpy"):
            pass
        return dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except SafetensorError:
        return None


def assert_as_the_library_says(path: Path, found: dict[str, StoredTensor] | str, folder: Path) -> None:
    expected = judged(path)
    if isinstance(found, str):
        assert "not a complete safetensors file" in found
        size = int.from_bytes(path.read_bytes()[:8], "little")
        assert expected is None or size > MOST_HEADER
        return
    assert expected is not None
    assert found.keys() == expected.keys()
    content = path.read_bytes()
    for name, tensor in found.items():
        theirs = expected[name]
        assert (list(tensor.shape), tensor.dtype) == (list(theirs["shape"]), theirs["dtype"])
        assert content[tensor.start : tensor.start + len(theirs["data"])] == bytes(theirs["data"])
        if tensor.dtype in ("F32", "F16", "BF16"):
            values = verdict(partial(read_tensor, tensor), folder, len(content))
            if not isinstance(values, str):
                bits = np.frombuffer(bytes(theirs["data"]), {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[tensor.dtype])
                right = (bits.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "BF16" else bits
                np.testing.assert_array_equal(values.ravel(), right)
                assert np.isfinite(values).all()
            else:
                assert " holds " in values


def test_weights_cut_at_every_byte_are_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, replace(SMALLEST, n_vocab=3)) / WEIGHTS
    whole = path.read_bytes()
    for cut in range(len(whole)):
        line = broken(path, whole[:cut], partial(read_header, path))
        assert isinstance(line, str), cut
        assert WEIGHTS in line
        assert "truncated" in line


@given(data=st.data())
def test_damaged_weights_get_the_librarys_verdict(model: Path, data: Any) -> None:
    whole = (model / WEIGHTS).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    content = data.draw(damaged(whole) | damaged(whole[:header]).map(lambda cut: cut + whole[header:]))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / WEIGHTS
        path.write_bytes(content)
        assert_as_the_library_says(path, verdict(partial(read_header, path), path.parent, len(content)), path.parent)


DTYPES = [
    "F32",
    "F16",
    "BF16",
    "F64",
    "I64",
    "I32",
    "I16",
    "I8",
    "U8",
    "U16",
    "U32",
    "U64",
    "BOOL",
    "F8_E4M3",
    "F8_E5M2",
]
NO_DTYPES = ["f32", "F33", "", "C64", "F4", "F8_E8M0", "float32", 1, None]
WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


@st.composite
def headers(draw: Any) -> bytes:
    """A safetensors file of up to four tensors, right or with some of what can be wrong in its header."""
    entries, end = Pairs(), 0
    for i in range(draw(st.integers(0, 4))):
        dtype = draw(st.sampled_from(["F32", "F32", "F16", "BF16", *DTYPES]))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        start, end = end, end + WIDTHS.get(dtype, 1) * int(np.prod(shape))
        name = draw(st.sampled_from([f"t{i}", f"t{i}", "a", "é", "\U0001f917", "", "a/b", "__metadata"]))
        entries.append((name, Pairs([("dtype", dtype), ("shape", shape), ("data_offsets", [start, end])])))
    entries = Pairs(draw(st.permutations(entries)))
    if draw(st.integers(0, 3)) == 0:
        entries.insert(0, ("__metadata__", draw(st.sampled_from([{}, {"é": "ü"}, {"a": 1}, None, [], {"a": None}]))))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        spoil(draw, entries)
    text = render(entries)
    if draw(st.integers(0, 7)) == 0:
        text = draw(st.sampled_from([" ", "\t\n", "\ufeff", "x"])) + text
    text += " " * draw(st.sampled_from([0, 0, 1, 7]))
    n_data = max(0, end + draw(st.sampled_from([0, 0, 0, 0, 1, -1, 4])))
    values = draw(st.sampled_from([bytes(n_data), b"\x7f\x80" * n_data, b"\x01\x3f" * n_data]))[:n_data]
    right = len(text.encode("utf-8", "surrogatepass"))
    lengths = [None] * 12 + [0, 1, right - 1, right + 1, 2**31, 2**32, 2**63, 2**64 - 1, 100_000_001]
    return with_header(text, values, draw(st.sampled_from(lengths)))


def spoil(draw: Any, entries: Pairs) -> None:
    """One thing wrong, or at least odd."""
    if not entries:
        entries.append((draw(st.text(max_size=3)), draw(junk)))
        return
    at = draw(st.integers(0, len(entries) - 1))
    name, entry = entries[at]
    how = draw(st.sampled_from(["dtype", "shape", "offsets", "again", "field", "junk", "unknown", "alias"]))
    if how == "again":
        entries.append((name, draw(st.sampled_from([entry, {}]))))
    elif how == "alias":
        entries.append(("alias", entry))
    elif how == "junk" or not isinstance(entry, Pairs):
        entries[at] = (name, draw(junk))
    elif how == "unknown":
        entry.append((draw(st.sampled_from(["x", "dtype", "shape", "data_offsets"])), draw(junk)))
    elif how == "field":
        del entry[draw(st.integers(0, len(entry) - 1))]
    else:
        field = {"dtype": "dtype", "shape": "shape", "offsets": "data_offsets"}[how]
        values = [value for key, value in entry if key == field]
        if not values:
            return
        if how == "dtype":
            new: Any = draw(st.sampled_from([*DTYPES, *NO_DTYPES]))
        elif isinstance(values[0], list) and values[0]:
            new = list(values[0])
            number = st.sampled_from([*NUMBERS, None, "2", True, Raw("1e2"), Raw("-0"), Raw("2.0")]) | st.integers(
                -1, 40
            )
            new[draw(st.integers(0, len(new) - 1))] = draw(number)
            new = new[::-1] if draw(st.booleans()) else new
        else:
            new = draw(junk)
        entry[:] = [(key, new if key == field else value) for key, value in entry]


@given(content=headers())
@example(with_header('{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}', b""))
@example(with_header('{"a":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]}}', b""))
@example(with_header('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":9e400}}', b"\0"))
@example(with_header(b'{"\xff":1}', b""))
@example(with_header('{"a":{"dtype":"\\u001b[2J\\u202e","shape":[0],"data_offsets":[0,0]}}', b""))
@example(with_header("{}".encode("utf-16"), b""))
@example(b"")
def test_headers_of_every_kind_get_the_librarys_verdict(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / WEIGHTS
        path.write_bytes(content)
        assert_as_the_library_says(path, verdict(partial(read_header, path), path.parent, len(content)), path.parent)


def entry(number: int) -> str:
    return f'"{number:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'


LARGE: dict[str, Callable[[], str]] = {  # made when they are asked for
    "tensors": lambda: ",".join(map(entry, range(36_000))),
    "shape": lambda: '"a":{"dtype":"U8","shape":[' + "0," * 1_000_000 + '0],"data_offsets":[0,0]}',
    "unknown": lambda: '"a":{"x":[' + "[]," * 680_000 + '0],"dtype":"U8","shape":[0],"data_offsets":[0,0]}',
    "metadata": lambda: '"__metadata__":{' + ",".join(f'"{i:x}":"aa"' for i in range(150_000)) + "}",
}


@pytest.mark.parametrize("kind", LARGE)
def test_headers_as_large_as_may_be_take_little_memory(tmp_path: Path, kind: str) -> None:
    content = with_header("{" + LARGE[kind]() + "}", b"")
    assert 0.8 * MOST_HEADER < len(content) < MOST_HEADER
    (tmp_path / WEIGHTS).write_bytes(content)
    assert not isinstance(verdict(partial(read_header, tmp_path / WEIGHTS), tmp_path, len(content)), str)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("kind", LARGE)
def test_the_librarys_own_memory_for_large_headers_is_little(model: Path, tmp_path: Path, kind: str) -> None:
    """Its parser is no part of Python, which counts none of its memory."""
    content = with_header("{" + LARGE[kind]() + "}", b"")
    (tmp_path / WEIGHTS).write_bytes(content)
    assert growth("header", model / WEIGHTS, tmp_path / WEIGHTS) < MEMORY + len(content)


def test_a_header_that_is_larger_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).write_bytes(with_header('{"__metadata__":{"a":"' + "a" * MOST_HEADER + '"}}', b""))
    line = verdict(partial(read_header, tmp_path / WEIGHTS), tmp_path)
    assert f"its header has {MOST_HEADER + 25} bytes, more than the {MOST_HEADER} that it may have" in str(line)


@given(data=st.data(), value=st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]))
def test_one_value_that_is_not_finite_is_refused_by_its_tensors_name(model: Path, data: Any, value: float) -> None:
    name, dtype = data.draw(st.sampled_from(list(TENSORS))), data.draw(st.sampled_from(["F32", "F16", "BF16"]))
    tensors = {key: array.copy() for key, array in TENSORS.items()}
    tensors[name].flat[data.draw(st.integers(0, tensors[name].size - 1))] = value
    content = safetensors_bytes({key: stored_as(array, dtype) for key, array in tensors.items()})
    line = str(broken(model / WEIGHTS, content, partial(read_all, model)))
    assert f"'{name}' holds" in line
    assert WEIGHTS in line


# --- the index, and what it may lead to -------------------------------------------------------------------

TRICKS = [
    "../out.safetensors", "/etc/passwd", "/etc/passwd.safetensors", "a/../../out.safetensors", "..\\out.safetensors",
    "C:\\out.safetensors", "\\\\host\\share\\out.safetensors", "//host/out.safetensors", "file:out.safetensors",
    "out.safetensors\0", "a" * 300 + ".safetensors", "é" * 130 + ".safetensors", "\ud800.safetensors",
    "a\nb.safetensors", "\x1b[2J.safetensors", "\u202eout.safetensors", ".safetensors", "..safetensors", "", ".", "..",
    "CON.safetensors", "out.safetensors ", " .safetensors", "nowhere.safetensors", "link.safetensors",
    "far.safetensors", "loop.safetensors", "dangling.safetensors", "folder.safetensors", "pipe.safetensors",
    "device.safetensors", "vocab.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
]  # fmt: skip


@pytest.fixture(scope="module")
def traps(shards: Path) -> Path:
    """The sharded model beside a file that is not its own, with links of every kind and a pipe."""
    shutil.copy(shards / "model-00001-of-00002.safetensors", shards.parent / "out.safetensors")
    links = {"link": "model-00001-of-00002.safetensors", "far": "../out.safetensors", "loop": "loop.safetensors"}
    for name, target in (links | {"dangling": "none", "device": "/dev/zero"}).items():
        (shards / f"{name}.safetensors").symlink_to(target)
    (shards / "folder.safetensors").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(shards / "pipe.safetensors")
    return shards


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@given(data=st.data())
def test_an_index_leads_nowhere_but_to_the_shards_beside_it(traps: Path, data: Any) -> None:
    index = json.loads((traps / INDEX).read_text())
    names = index["weight_map"]
    if data.draw(st.booleans()):
        for name in data.draw(st.lists(st.sampled_from(list(names)), min_size=1, max_size=3)):
            names[name] = data.draw(st.sampled_from(TRICKS) | st.text(max_size=9).map(lambda s: s + ".safetensors"))
        text = render(index)
    else:
        text = render(data.draw(edited({"weight_map": names}) | edited(names).map(lambda some: {"weight_map": some})))
    content = text.encode("utf-8", "surrogatepass")
    found = broken(traps / INDEX, content, partial(read_all, traps), ".safetensors")  # a shard it leads to
    if not isinstance(found, str):
        assert_whole(found)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("name", TRICKS)
def test_tricks_in_an_index_are_refused_by_name(traps: Path, name: str) -> None:
    index = json.loads((traps / INDEX).read_text())
    right = index["weight_map"]["wte.weight"]
    index["weight_map"]["wte.weight"] = name
    found = broken(traps / INDEX, json.dumps(index).encode(), partial(read_all, traps), ".safetensors")
    assert isinstance(found, str) == (name not in (right, "link.safetensors"))  # a link to the shard is the shard


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize(
    "name",
    [
        "config.json", WEIGHTS, INDEX, "vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json",
        "tokenizer.json", "medusa.safetensors", "ngram.safetensors",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["link out", "device", "loop", "pipe", "folder", "dangling"])
def test_no_file_of_a_model_leads_out_of_its_folder(tmp_path: Path, name: str, kind: str) -> None:
    folder = whole_model(tmp_path / "model", name)
    path, outside = folder / name, tmp_path / name
    path.rename(outside)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        targets = {"link out": outside, "device": Path("/dev/zero"), "loop": path, "dangling": tmp_path / "none"}
        path.symlink_to(targets[kind])

    def load() -> None:
        tokenizer = read_tokenizer(folder)
        read_all(folder)
        if name == "medusa.safetensors":
            target = load_model(folder, backend="numpy")
            MedusaDrafter(target, read_heads(find_heads(str(folder), "medusa"), "medusa", target))
        elif name == "ngram.safetensors":
            open_ngram(table_of(folder), tokenizer)

    line = verdict(load, folder)
    assert isinstance(line, str)
    assert kind != "link out" or f"{path} is a link out of its folder" in line
    if kind == "link out":
        path.unlink()
        path.symlink_to(shutil.move(outside, folder / "inside"))
        load()


def whole_model(folder: Path, name: str) -> Path:
    """A model that has a file of this name."""
    write_model(folder, n_shards=2 if name == INDEX else 1)
    if name == "tokenizer.json":
        for other in ("vocab.json", "merges.txt"):
            (folder / other).unlink()
        (folder / name).write_text(json.dumps(tokenizer_json(), ensure_ascii=False), encoding="utf-8")
    elif name == "tokenizer_config.json":
        (folder / name).write_text('{"add_prefix_space": false}')
    elif name == "added_tokens.json":
        (folder / name).write_text('{"<|endoftext|>": 259}')
    elif name == "medusa.safetensors":
        write_heads(folder / name, "medusa", GPT2(SMALLEST, TENSORS, "numpy"), medusa_tensors(SMALLEST))
    elif name == "ngram.safetensors":
        tokenizer = read_tokenizer(folder)
        save_table(folder / name, count_table([[0, 1, 2, 0, 1]], tokenizer.n_vocab), tokenizer, {})
    return folder


# --- the config -------------------------------------------------------------------------------------------


# What each field is called in a config.json, and what it is where none of these is given.
FIELDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "n_layer": (("n_layer", "num_hidden_layers"), 12),
    "n_head": (("n_head", "num_attention_heads"), 12),
    "n_embd": (("n_embd", "hidden_size"), 768),
    "n_ctx": (("n_positions", "n_ctx", "max_position_embeddings"), 1024),
    "n_vocab": (("vocab_size",), 50257),
    "n_inner": (("n_inner",), None),
    "layer_norm_epsilon": (("layer_norm_epsilon",), 1e-5),
    "scale_attn_weights": (("scale_attn_weights",), True),
    "scale_attn_by_inverse_layer_idx": (("scale_attn_by_inverse_layer_idx",), False),
}
# Settings that are no part of a shape, with all that they may say.
MAY_SAY: dict[str, list[Any]] = {
    "model_type": ["gpt2"],
    "activation_function": ["gelu_new", "gelu_pytorch_tanh"],
    "add_cross_attention": [False],
    "quantization_config": [None],
    "pruned_heads": [None, {}],
    "tie_word_embeddings": [True, False],
}
SETTINGS = [*MAY_SAY, *(name for names, _ in FIELDS.values() for name in names)]


def assert_honoured(config: GPT2Config, pairs: Pairs) -> None:
    """The config says what its file says, under whatever name."""
    said = json.loads(render(pairs))
    assert len(said) == len(pairs)
    assert {field.name for field in fields(GPT2Config)} == FIELDS.keys()
    for field, (names, default) in FIELDS.items():
        given_ = [said[name] for name in names if said.get(name) is not None]
        expected = given_ or [4 * config.n_embd if field == "n_inner" else default]
        assert all(getattr(config, field) == value for value in expected), field
    for name, allowed in MAY_SAY.items():
        assert name not in said or said[name] in allowed, name


@given(data=st.data())
def test_a_config_is_honoured_or_refused(model: Path, data: Any) -> None:
    whole = json.loads((model / "config.json").read_text())
    pairs = data.draw(edited(whole, SETTINGS))
    found = broken(model / "config.json", render(pairs).encode("utf-8", "surrogatepass"), partial(read_config, model))
    if not isinstance(found, str):
        assert_honoured(found, pairs)


@given(data=st.data())
def test_a_config_that_is_not_the_weights_is_refused(model: Path, data: Any) -> None:
    whole = json.loads((model / "config.json").read_text())
    pairs = data.draw(edited(whole, SETTINGS))
    text = render(pairs).encode("utf-8", "surrogatepass")
    found = broken(model / "config.json", text, partial(read_all, model))
    if not isinstance(found, str):
        assert_whole(found)
        assert dict(pairs).get("tie_word_embeddings", True) is True  # there is no output layer of its own


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_is_honoured_or_refused(model: Path, name: str) -> None:
    """In the company of others and alone: luck leaves some out above."""
    whole = json.loads((model / "config.json").read_text())
    for value in (*NUMBERS, *ODD):
        for said in (whole | {name: value}, {name: value}):
            pairs = Pairs(said.items())
            found = broken(model / "config.json", render(pairs).encode(), partial(read_config, model))
            if not isinstance(found, str):
                assert_honoured(found, pairs)


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "n_ctx", "vocab_size", "tie_word_embeddings"])
def test_a_setting_that_the_weights_contradict_is_refused(model: Path, name: str) -> None:
    whole = json.loads((model / "config.json").read_text()) | {name: False if name.startswith("tie") else 259}
    line = broken(model / "config.json", json.dumps(whole).encode(), partial(read_all, model))
    assert isinstance(line, str)


# --- texts of every kind: cuts, damage, encodings, size ------------------------------------------------------

Reader = Callable[[Path], Any]


def all_tokens(folder: Path) -> tuple[list[bytes], int | None]:
    """The bytes of every token, and the end of a text."""
    tokenizer = read_tokenizer(folder)
    return [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)], tokenizer.end_of_text


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Reader]]:
    """Every file that is a text, with what reads it."""
    plain = write_model(tmp_path_factory.mktemp("plain"))
    cut = write_model(tmp_path_factory.mktemp("cut") / "model", n_shards=2)
    single = write_model(tmp_path_factory.mktemp("single"))
    for name in ("vocab.json", "merges.txt"):
        (single / name).unlink()
    (single / "tokenizer.json").write_text(json.dumps(tokenizer_json(), ensure_ascii=False), encoding="utf-8")
    (plain / "tokenizer_config.json").write_text('{"add_prefix_space": false}')
    (plain / "added_tokens.json").write_text('{"<|endoftext|>": 259, "<extra>": 260}')
    vocabulary: Reader = all_tokens
    return {
        "config.json": (plain / "config.json", read_config),
        "index": (cut / INDEX, lambda folder: {name: array.tolist() for name, array in read_all(folder).items()}),
        "vocab.json": (plain / "vocab.json", vocabulary),
        "merges.txt": (plain / "merges.txt", vocabulary),
        "added_tokens.json": (plain / "added_tokens.json", vocabulary),
        "tokenizer_config.json": (plain / "tokenizer_config.json", vocabulary),
        "tokenizer.json": (single / "tokenizer.json", vocabulary),
    }


TEXTS = [
    "config.json",
    "index",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "tokenizer.json",
]


# What may be named when one of these is damaged in a way that reads well, but does not fit the others.
BESIDE = {"vocab.json": ("merges.txt", "added_tokens.json"), "index": (".safetensors",)}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_cut_at_every_byte(texts: Any, name: str) -> None:
    """Less the last line end they are whole; anything shorter is refused, and the file is named."""
    path, read = texts[name]
    whole, right = path.read_bytes(), read(path.parent)
    for cut in range(0, len(whole), 1 if THOROUGH or len(whole) < 1000 else 41):
        found = broken(path, whole[:cut], partial(read, path.parent))
        if whole[cut:].strip():
            assert isinstance(found, str), (cut, found)
        else:
            assert found == right


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_damaged_texts(texts: Any, name: str, data: Any) -> None:
    """What is loaded in spite of the damage says what the file says."""
    path, read = texts[name]
    content = data.draw(damaged(path.read_bytes()))
    found = broken(path, content, partial(read, path.parent), *BESIDE.get(name, ()))
    if isinstance(found, str):
        return
    if name.endswith(".json"):
        json.loads(content.decode("utf-8-sig"))
    if name in ("vocab.json", "merges.txt", "added_tokens.json", "tokenizer.json"):
        assert_the_files_tokens(path, content, found)


def assert_the_files_tokens(path: Path, content: bytes, found: tuple[list[bytes], int | None]) -> None:
    """Every token has the bytes that its letters stand for, or is added as its own text."""
    tokens, _ = found
    letters = {letter: byte for byte, letter in enumerate(byte_letters())}

    def said(name: str) -> Any:
        return json.loads((content if name == path.name else (path.parent / name).read_bytes()).decode("utf-8-sig"))

    if path.name == "tokenizer.json":
        vocab = said(path.name)["model"]["vocab"]
        added = {token["content"]: token["id"] for token in said(path.name).get("added_tokens") or []}
    else:
        vocab, added = said("vocab.json"), said("added_tokens.json")
    for token, i in (vocab | added).items():
        spelt = bytes(letters[letter] for letter in token) if set(token) <= letters.keys() else None
        assert tokens[i] in (spelt, token.encode())
        assert token in vocab or tokens[i] == token.encode()
    assert len(set(tokens)) == len(tokens) == len(vocab | added)


@pytest.mark.parametrize("name", ["vocab.json", "added_tokens.json", "tokenizer.json"])
@given(data=st.data())
def test_an_edited_vocabulary(texts: Any, name: str, data: Any) -> None:
    path, read = texts[name]
    whole = json.loads(path.read_text(encoding="utf-8"))
    pairs = data.draw(edited(whole, ["<|endoftext|>", "<x>", "he", "hell", "a", "zz"]))
    text = render(pairs).encode("utf-8", "surrogatepass")
    found = broken(path, text, partial(read, path.parent), *BESIDE.get(name, ()))
    if not isinstance(found, str):
        assert len(dict(pairs)) == len(pairs)
        assert_the_files_tokens(path, text, found)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_encodings_are_read_right_or_refused(texts: Any, name: str, encoding: str) -> None:
    """A byte order mark before JSON is let through; UTF-16 and UTF-32 never are; other texts only if they are ASCII."""
    path, read = texts[name]
    text, right = path.read_bytes().decode(), read(path.parent)
    found = broken(path, encoded(text, encoding), partial(read, path.parent))
    if encoding in ("latin-1", "cp1252", "utf-7"):
        assert isinstance(found, str) or (found == right and text.isascii())
    elif encoding == "utf-8-sig" and name != "merges.txt":
        assert found == right
    else:
        assert isinstance(found, str)


ROOM = MOST_MEMORY // PER_MARK  # marks of which so many are too many
HUGE: dict[str, Callable[[], str]] = {  # made when they are asked for
    "lists": lambda: '{"a":[' + "[]," * (ROOM // 2 - 30_000) + "[]]}",
    "objects": lambda: '{"a":[' + "{}," * (ROOM // 2 - 30_000) + "{}]}",
    "objects of one": lambda: '{"a":[' + '{"a":1},' * (ROOM // 3 - 30_000) + "1]}",
    "keys": lambda: "{" + ",".join(f'"{i:x}":{i + 300}' for i in range(ROOM // 2 - 80_000)) + "}",
    "fractions": lambda: "{" + ",".join(f'"{i:x}":1.5' for i in range(ROOM // 2 - 80_000)) + "}",
    "words": lambda: '{"a":[' + '"aa",' * (ROOM - 100_000) + "1]}",
    "one wide text": lambda: '{"a":"\U0001f917' + "a" * 10_000_000 + '"}',
}


@pytest.mark.parametrize("kind", HUGE if THOROUGH else ["keys", "one wide text"])
def test_json_of_any_kind_takes_little_memory(tmp_path: Path, kind: str) -> None:
    """Just small enough to be parsed, and too much by half."""
    path = tmp_path / "a.json"
    content = HUGE[kind]().encode()
    path.write_bytes(content)
    assert isinstance(verdict(lambda: len(read_json(path, 1 << 24)), tmp_path, len(content)), int)
    path.write_bytes(content[:-2] + content[len(content) // 2 :])
    line = verdict(lambda: len(read_json(path, 1 << 25)), tmp_path, len(content))
    assert "of memory, more than such a file may" in str(line)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("kind", HUGE if THOROUGH else ["words"])
def test_a_process_that_reads_json_of_any_kind_grows_little(model: Path, tmp_path: Path, kind: str) -> None:
    content = HUGE[kind]().encode()
    (tmp_path / "a.json").write_bytes(content)
    assert growth("json", model / "config.json", tmp_path / "a.json") < MEMORY + len(content)


def test_merges_of_any_kind_take_little_memory(model: Path) -> None:
    path = model / "merges.txt"
    for content in (b"\n" * (ROOM - 9), b"a\n" * (ROOM - 99_999), b"\n" * 2 * ROOM, b"a" * (1 << 24), b"a" * (2 << 24)):
        assert "merges.txt" in broken(path, content, partial(read_vocabulary, model))


def entangled(n: int, n_pairs: int) -> tuple[dict[str, int], list[str]]:
    """Sound pairs that take long to check: every seam is between two long chains."""
    rng, letters = np.random.default_rng(0), sorted(byte_letters())
    tokens, pairs = {letter: i for i, letter in enumerate(letters)}, list[str]()
    right, left = ("".join(rng.choice(some, n)) for some in (letters[:128], letters[128:]))
    chains = [(right[-k], right[len(right) - k + 1 :]) for k in range(2, n + 1)]
    chains += [(left[: k - 1], left[k - 1]) for k in range(2, n + 1)]
    seams = [(right[-i:], left[:j]) for i in range(n, 1, -1) for j in range(n, 1, -1)]
    for one, other in chains + seams[:n_pairs]:
        if one + other not in tokens:
            tokens[one + other] = len(tokens)
            pairs.append(f"{one} {other}")
    return tokens, pairs


@pytest.mark.parametrize(("n", "n_pairs", "told"), [(250, 3000, None), (250, 9000, "in all"), (600, 9, "letters")])
def test_entangled_vocabularies_are_checked_soon_or_refused(
    tmp_path: Path, n: int, n_pairs: int, told: str | None
) -> None:
    tokens, pairs = entangled(n, n_pairs)
    assert (sum(map(len, pairs)) > MOST_LETTERS or max(map(len, tokens)) > MOST_IN_TOKEN) == bool(told)
    (tmp_path / "vocab.json").write_text(json.dumps(tokens), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(pairs), encoding="utf-8")
    found = verdict(partial(read_vocabulary, tmp_path), tmp_path, 10_000_000)
    assert (told in str(found)) if told else not isinstance(found, str)


def sound(n_tokens: int) -> tuple[dict[str, int], list[str]]:
    """So many tokens: pairs of any two letters, and then of three."""
    letters = sorted(byte_letters())
    pairs = [f"{one} {other}" for one in letters for other in letters]
    # The first two are joined before the last two, as `one` comes before `other` above.
    pairs += [f"{one}{other} {last}" for one in letters[:128] for other in letters[128:] for last in letters[32:64]]
    pairs = pairs[: n_tokens - 256]
    return {token: i for i, token in enumerate([*letters, *(pair.replace(" ", "") for pair in pairs)])}, pairs


@pytest.mark.skipif(not THOROUGH, reason="takes some seconds")
@pytest.mark.parametrize("n_tokens", [MOST_TOKENS, MOST_TOKENS + 1])
def test_as_many_tokens_as_may_be(model: Path, tmp_path: Path, n_tokens: int) -> None:
    tokens, pairs = sound(n_tokens)
    (tmp_path / "vocab.json").write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(pairs), encoding="utf-8")
    if sys.platform == "linux":
        assert growth("vocabulary", model, tmp_path) < 3_000_000 + MEMORY
    found = verdict(partial(read_vocabulary, tmp_path), tmp_path, 3_000_000)
    if isinstance(found, str):
        assert n_tokens > MOST_TOKENS
        assert f"{n_tokens} tokens are more than" in str(found)
    else:
        assert sorted(found[0].values()) == list(range(n_tokens))


# --- files of heads, of tables, of probabilities, of prompts --------------------------------------------------


@given(data=st.data())
def test_damaged_tables_are_refused_or_look_up_tokens(model: Path, data: Any) -> None:
    tokenizer = read_tokenizer(model)
    table = count_table([[0, 1, 2, 3, 0, 1, 2, 3, 0]], tokenizer.n_vocab)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "ngram.safetensors"
        save_table(path, table, tokenizer, {})
        content = data.draw(damaged(path.read_bytes()))
        path.write_bytes(content)
        found = verdict(partial(load_table, path, tokenizer), path.parent, len(content))
    if not isinstance(found, str):
        for text in ([], [0], [0, 1, 2, 3], [259] * 5):
            token, share = found.guess(text)
            assert 0 <= token < tokenizer.n_vocab
            assert 0 <= share <= 1


@given(
    metadata=st.dictionaries(st.sampled_from(["method", "version", "target", "config", "masks"]), st.text(max_size=50))
)
@example({"method": "a\nb\x1b[2J", "version": "x" * 5000})
def test_metadata_of_heads_is_never_believed(metadata: dict[str, str]) -> None:
    target = GPT2(SMALLEST, TENSORS, "numpy")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "medusa.safetensors"
        path.write_bytes(with_header(render({"__metadata__": metadata}), b""))
        assert isinstance(verdict(partial(read_heads, path, "medusa", target), path.parent), str)
        try:
            json.dumps(metadata, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return
        assert read_metadata(path) == metadata


ARRAY = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }"


def npy(header: str, data: bytes, version: bytes = b"\1\0") -> bytes:
    text = header.encode("latin-1", "replace") + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


NUMPY_FILES = {
    "right": npy(ARRAY, bytes(16)),
    "short": npy(ARRAY, bytes(15)),
    "long": npy(ARRAY, bytes(17)),
    "a terabyte": npy(ARRAY.replace("2", str(10**12)), bytes(16)),
    "wraps round": npy(ARRAY.replace("2", str(2**61 + 2)), bytes(16)),
    "negative": npy(ARRAY.replace("2", "-2"), bytes(16)),
    "objects": npy(ARRAY.replace("<f8", "|O"), bytes(16)),
    "text": npy(ARRAY.replace("<f8", "<U2"), bytes(16)),
    "code": npy("__import__('os').system('true')", bytes(16)),
    "deep": npy("(" * 200, bytes(16)),
    "a line too few": npy("{'descr': '''", bytes(16)),
    "no dict": npy("7", bytes(16)),
    "no header": b"\x93NUMPY",
    "version 9": npy(ARRAY, bytes(16), b"\x09\0"),
    "an archive": b"PK\x03\x04" + bytes(20),
    "a pickle": b"\x80\x04K\x01.",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", NUMPY_FILES)
def test_arrays_of_every_kind(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(NUMPY_FILES[kind])
    found = verdict(lambda: read_probs("--p", f"@{path}"), tmp_path)
    assert isinstance(found, str) == (kind != "right"), found


@given(data=st.data(), kind=st.sampled_from([".npy", ".json", ".txt"]))
def test_damaged_probabilities(data: Any, kind: str) -> None:
    whole = {".npy": NUMPY_FILES["right"], ".json": b"[0.5, 0.25, 0.25]", ".txt": b"0.5, 0.25\n0.25"}[kind]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"a{kind}"
        path.write_bytes(data.draw(damaged(whole)))
        found = verdict(lambda: read_probs("--p", f"@{path}"), path.parent)
    assert isinstance(found, str | list | np.ndarray)


@given(data=st.data())
def test_damaged_prompts(data: Any) -> None:
    lines = b'{"prompt": "Once \xc3\xa9", "kind": "story", "id": 7}\n{"prompt": "Two"}\n'
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.jsonl"
        path.write_bytes(data.draw(damaged(lines)))
        found = verdict(lambda: read_prompts(path), path.parent)
    for prompt in found if not isinstance(found, str) else []:
        assert prompt.text
        assert (prompt.text + prompt.kind + prompt.id).encode()
