"""Compares records with Python's json and tar modules. MILLRACE_GENERATE=100 tests 100 times as many files."""

import json
import os
import random
import shutil
import subprocess
import sys
import tarfile

import pytest

import millrace

TIMES = int(os.environ.get("MILLRACE_GENERATE", "1"))


@pytest.fixture
def no_limits():
    """Raises Python's limits of nesting and digits, which are not part of JSON."""
    depth, digits = sys.getrecursionlimit(), sys.get_int_max_str_digits()
    sys.setrecursionlimit(100_000)
    sys.set_int_max_str_digits(0)
    yield
    sys.setrecursionlimit(depth)
    sys.set_int_max_str_digits(digits)


def one_of(draw, *makers):
    return draw.choice(makers)()


def number(draw):
    digits = lambda most: "".join(draw.choice("0123456789") for _ in range(draw.randint(1, most)))  # noqa: E731
    return draw.choice(["", "", "-"]) + one_of(
        draw,
        lambda: digits(4).lstrip("0") or "0",
        lambda: "9" * draw.randint(18, 21),
        lambda: str(draw.randint(2**62, 2**65)),
        lambda: digits(60).lstrip("0") or "0",
        lambda: f"{draw.random()!r}",
        lambda: f"{draw.random() * 10 ** draw.randint(-30, 30)!r}",
        lambda: f"{digits(3).lstrip('0') or '0'}.{digits(30)}",
        lambda: f"{draw.randint(1, 9)}{draw.choice('eE')}{draw.choice(['', '+', '-'])}{draw.randint(0, 400)}",
        lambda: draw.choice(["1e999", "1e-999", "NaN", "Infinity", "0", "0.0"]),
        lambda: draw.choice(["01", "1.", ".5", "1e", "+1", "1e5.5"] + ["7"] * 60),
    )


def string(draw):
    some = ["a", "text", "€", "水", "😀", "\x7f", "\u2028", "\\n", "\\\"", "\\\\", "\\/", "\\u0041", "\\u6c34", "\\ud83d\\ude00"]
    rare = ["\\ud83d", "\\ude00", "\\ud83d\\u0041", "\\u00", "\\x", "\t", "\x00", "\\u0000", "\ufeff"]
    parts = [draw.choice(some if draw.random() < 0.97 else rare) for _ in range(draw.randint(0, 6))]
    return f'"{"".join(parts)}"'


def value(draw, depth=0):
    if depth < 4 and draw.random() < 0.3:
        inside = [value(draw, depth + 1) for _ in range(draw.randint(0, 3))]
        if draw.random() < 0.5:
            return "[" + ",".join(inside) + "]"
        return "{" + ", ".join(f"{name(draw)}:{one}" for one in inside) + "}"
    if draw.random() < 0.01:
        deep = draw.randint(900, 3000)
        return "[" * deep + value(draw, 9) + "]" * deep
    return one_of(draw, lambda: number(draw), lambda: string(draw), lambda: draw.choice(["true", "false", "null", "nul", "True"]))


def name(draw):
    return one_of(draw, *[lambda: '"a"', lambda: '"b"'] * 3, lambda: '"c"', lambda: '"\\u0061"', lambda: string(draw))


def line(draw):
    space = lambda: draw.choice(["", "", "", " ", "\t", "\r"])  # noqa: E731
    members = [f"{name(draw)}{space()}:{space()}{value(draw)}" for _ in range(draw.randint(0, 6))]
    if draw.random() < 0.7:
        members += [f'"{field}":{draw.choice([number, string])(draw)}' for field in "ab"]
        draw.shuffle(members)
    text = draw.choice(["{"] * 30 + ["", "["]) + space() + f"{space()},{space()}".join(members) + draw.choice(["}"] * 30 + ["", "]"])
    made = (text + space()).encode("utf-8")
    if draw.random() < 0.15:
        made = bytearray(made or b" ")
        at = draw.randrange(len(made))
        made[at : at + draw.randint(0, 2)] = bytes(draw.choice(b'"\\{}[],:09e.- \xc3\xff\xed\xa0') for _ in range(draw.randint(0, 2)))
    return bytes(made).replace(b"\n", b" ")


def as_text(value):
    if isinstance(value, str):
        value.encode("utf-8")  # raises for half of a surrogate pair
        return value
    if isinstance(value, (bool, int, float)):
        return str(value)
    raise ValueError("not text")


def document(line, fields=("a", "b")):
    """Returns the document of a template that joins the fields. None if Python rejects the record."""
    try:
        record = json.loads(line.decode("utf-8"))
        if not isinstance(record, dict):
            return None
        return "".join(as_text(record[field]) for field in fields) or None
    except (ValueError, KeyError):
        return None


@pytest.mark.parametrize("seed", range(3 * TIMES))
def test_records_are_what_pythons_json_says(tmp_path, no_limits, seed):
    draw = random.Random(seed)
    lines = [line(draw) for _ in range(1500)]
    expected = [(one, text) for one in lines for text in [document(one)] if text is not None]
    assert len(expected) > 100
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"\n".join(lines))
    texts = list(millrace.documents(str(path), template="{a}{b}"))
    for at, (one, text) in enumerate(expected):
        assert at < len(texts) and texts[at] == text, f"Python reads {one[:2000]!r} as {text[:200]!r}, not as {texts[at:at + 1]!r}"
    assert len(texts) == len(expected), f"Python reads nothing as {texts[len(expected):][:1]!r}"


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar")
@pytest.mark.parametrize(
    "form", ["gnu", "oldgnu", *(f"pax --sparse-version={version}" for version in ("0.0", "0.1", "1.0"))]
)
def test_sparse_files_are_what_pythons_tarfile_says(tmp_path, form):
    draw = random.Random(form)
    inside = tmp_path / "set"
    inside.mkdir()
    for number in range(6 * TIMES):
        with open(inside / f"{number:03}.txt", "wb") as file:
            for _ in range(draw.choice([0, 1, 3, 5, 30])):
                file.seek(draw.choice([0, 1, 4096, 10_000, 50_000]), os.SEEK_CUR)
                file.write(b"text %d " % draw.randint(0, 9) * draw.choice([1, 200, 2000]))
            file.truncate(file.tell() + draw.choice([0, 0, 1, 20_000]))
    archive = tmp_path / "set.tar"
    subprocess.run(
        ["tar", *f"--format={form}".split(), "--sparse", "--sort=name", "-cf", archive, "set"], cwd=tmp_path, check=True
    )
    with tarfile.open(archive) as read:
        files = [read.extractfile(member).read().decode() for member in read if member.isreg()]
        assert any(member.issparse() for member in read)
    assert list(millrace.documents(str(archive), template="{txt}")) == [text for text in files if text]
