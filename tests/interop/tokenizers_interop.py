#!/usr/bin/env python3
"""Compares the ids of our tokenizers with tiktoken, Hugging Face tokenizers and SentencePiece.

Some vocabularies are trained here, on this repository's documents. Others come from $MILLRACE_ORACLE
(llama2-tokenizer.model, r50k_base.tiktoken) and $MILLRACE_VOCABULARIES, else from $MILLRACE_PEERS/vocab, which
install-peers fills (*.tiktoken, *.json, tekken*.json, *.model). Missing folders are skipped.

Texts are natural language, code, Unicode soup and text that tokenizers often get wrong. --texts FOLDER adds *.jsonl files
of {"text": …}, of which --bytes are used. Exit status: 0 equal, 77 a library is missing (named), 1 otherwise.

    tokenizers_interop.py LIBRARY --ids build/release/bin/tokenizer_ids [--texts FOLDER --bytes 1e9] [--only CASE]
"""
import argparse
import importlib
import itertools
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
ORACLE = pathlib.Path(os.environ.get("MILLRACE_ORACLE", "/nonexistent"))
VOCABULARIES = pathlib.Path(os.environ.get("MILLRACE_VOCABULARIES") or os.path.join(os.environ.get("MILLRACE_PEERS", "/nonexistent"), "vocab"))
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"""
          r"""\s*[\r\n]|\s+(?!\S)|\s""")
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"""
          r"""\s+(?!\S)|\s+""")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER, _SHORT = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_NOT_HAN = r"&&[^\p{Han}]]"
KIMI = r"[\p{Han}]+|" + O200K.replace(_UPPER, _UPPER[:-1] + _NOT_HAN).replace(_LOWER, _LOWER[:-1] + _NOT_HAN).replace(r"[\r\n/]", r"[\r\n]")
TEKKEN = O200K.replace(_SHORT, "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
            "\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
_LETTERS = ("A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386"
            "\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
            "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
            "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
            "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
            "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2"
            "\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
            "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
            "\U000118a0-\U000118df\U0001e900-\U0001e943")
_EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK2 = ("[\r\n]", f"\\s?[{_LETTERS}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", _EAST)
DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST)
BOUNDARIES = r"(?<=\d|\u00e9)\p{L}|\b\w\B|\w+\b|(?<![\s.])\W|\A\s|\W"
ALBERT = [{"type": "Replace", "pattern": {"String": "``"}, "content": '"'}, {"type": "Replace", "pattern": {"String": "''"}, "content": '"'},
          {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
SINGLE_SPACES = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
ALBERT_WORDS = {"type": "Sequence", "pretokenizers": [
    {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]}
PATTERNS = {"gpt2": GPT2, "cl100k": CL100K, "llama3": LLAMA3, "qwen": QWEN, "o200k": O200K}
SAMPLES = [
    "The quick brown fox doesn't jump over 12,345 lazy dogs; it's can't've DON'T I'LL We'Re 'tis.",
    "数据从对象存储直接流向训练。这是一个测试,包含标点、数字123和English混排。", "日本語の文章とカタカナ、ひらがな。",
    "한국어 문장도 있습니다.", "Съешь же ещё этих мягких французских булок", "Ζαφείρι δέξου πάγκαλο", "नमस्ते दुनिया क्षत्रिय",
    "Größe, naïve café — “quoted” … ﬁn", "مرحبا بالعالم", "שלום עולם", "สวัสดีชาวโลก", "🦙🦙👩‍👩‍👧‍👦🇩🇪 ok",
    "def f(x):\n\treturn {'a': x**2,\n\n    'b': [1, 2]}\r\n", "  leading and trailing  \n \n\n  ", "e\u0301 n\u0303 \u0130 \u017fo",
]
ODD = [" ", "  ", " " * 17, "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "▁", "▁▁", "<s>", "</s>", "<unk>", "<0x0A>", "'s",
       "'S", "'ſ", "'ll", "'LL", "'t", "’s", "a", "Z", "ß", "ǅ", "ª", "²", "٣", "Ⅷ", "1", "42", "2024", "_", "-", "...", "\u0301",
       "\u200d", "\ufeff", "\ufffd", "🦙", "数", "の", "가", "\u1161", "𝔘", "\x00", "\x1c", "\x7f", "<|endoftext|>", "##", "[MASK]",
       "don't", "hello", "Hello", "\u1100\u1161", "\u11a8", "a\u0323\u0307", "\u0344", "\uac00\u11a8", "\u0958", "HELLO", "Ab", "/", "Ω", "İ", "ﬃ", "①", "ｱ", "Ａ", "\u0345", "\U000e0001", "\u0378"]
ADDED = ["<left>", " <left>", "<right> ", "<both>", " \t<both>\n", "word", "words", "the word", "_word", "数word", "ab", " ab ", "\n\n", "<bo",
         "hello", "e\u0301t", "\u00e9t ", "HELLO", "\u24d0word", "\u0301word", "ab\u200d"]
CLUSTERS = ["\r\n", "©\u200d©", "ﬁ\u0301", "①\u0308", "\u1100\u1161\u11a8", "क्ष", "क\u094d\u0301", "ﷺ", "\u0600a", "🇩🇪🇫", "\u200dx", "é\u0301\u0301\u0301", "ａ\u0301", "㍿", "½\u0301"]
ODD += CLUSTERS


def require(name):
    """Returns the package, of this Python or of the peers' Python."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        peers = os.path.join(os.environ.get("MILLRACE_PEERS", ""), "venv", "bin", "python")
        if os.path.exists(peers) and os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(peers))):
            os.execv(peers, [peers, *sys.argv])
        print(f"skipped: no Python package {name} ({error})")
        sys.exit(SKIPPED)


# -- texts ---------------------------------------------------------------------------------------------------------------

def soup(rng):
    """Returns a text of odd parts and random characters."""
    parts = []
    for _ in range(rng.randrange(1, 60)):
        kind = rng.randrange(7)
        if kind < 3:
            parts.append(rng.choice(ODD))
        elif kind == 6:
            parts.append(rng.choice(ADDED))
        elif kind == 3:
            parts.append(chr(rng.choice((rng.randrange(0x300), rng.randrange(0x3000), rng.randrange(0xD800),
                                         rng.randrange(0xE000, 0x110000)))))
        else:
            sample = rng.choice(SAMPLES)
            start = rng.randrange(len(sample))
            parts.append(sample[start:start + rng.randrange(1, 12)])
    return "".join(parts)


def pathological(rng, size):
    base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    yield from ("a" * size, " " * size, "ab" * (size // 2), "\n" * size, "▁" * size, "the " * (size // 4), "数" * (size // 3), "1" * size,
                " \n" * (size // 2), "!" * size, "".join(rng.choices(base64, k=size)), "é" * (size // 2),
                "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=size)), "".join(map(chr, rng.choices(range(0x4E00, 0x9FA5), k=size // 3))),
                "🦙" * (size // 4), "a " * (size // 2), "  a" * (size // 3), "\u0301" * (size // 2))


def own_files():
    for path in sorted(itertools.chain(ROOT.glob("docs/**/*.md"), ROOT.glob("*.md"), ROOT.glob("millrace/base/*.cc"))):
        yield path.read_text()


def stored(folder, limit, rng):
    """Yields documents of all files in turn, each once, until `limit` bytes."""
    files = [path.open() for path in sorted(folder.glob("*.jsonl"))]
    total = 0
    while files and total < limit:
        file = rng.choice(files)
        line = file.readline()
        if not line:
            files.remove(file)
            continue
        text = json.loads(line)["text"]
        total += len(text)
        yield text


def texts(arguments, seed):
    rng = random.Random(seed)
    yield ""
    yield from SAMPLES
    yield from ODD
    yield from own_files()
    yield from (soup(rng) for _ in range(arguments.soups))
    yield from pathological(rng, arguments.long)
    if arguments.texts:
        yield from stored(arguments.texts, arguments.bytes, rng)


# -- our side ------------------------------------------------------------------------------------------------------------

class Ours:
    """The program tokenizer_ids with one model. A thread writes its input, so that full pipes cannot block it."""

    def __init__(self, program, model, mode, *pattern):
        self.process = subprocess.Popen([program, str(model), mode, *pattern], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.as_text = mode in ("decode", "stream")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def ask(self, item):
        data = struct.pack(f"<{len(item)}i", *item) if self.as_text else item
        self.process.stdin.write(struct.pack("<I", len(item)) + data)
        self.process.stdin.flush()
        head = self.process.stdout.read(4)
        if len(head) < 4:
            sys.exit(f"tokenizer_ids ended: {self.process.wait()}")
        (count,) = struct.unpack("<I", head)
        body = self.process.stdout.read(count if self.as_text else 4 * count)
        return body if self.as_text else list(struct.unpack(f"<{count}i", body))


class Case:
    def __init__(self, name, model, encode, *, pattern=(), invalid=False, decode=None, mode="encode"):
        self.name, self.model, self.encode, self.pattern = name, model, encode, pattern
        self.invalid, self.decode, self.mode = invalid, decode, mode

    def run(self, arguments):
        began, bytes_seen, tokens, count, panics = time.monotonic(), 0, 0, 0, 0
        with Ours(arguments.ids, self.model, self.mode, *self.pattern) as ours, \
                Ours(arguments.ids, self.model, "decode", *self.pattern) as decoder, \
                Ours(arguments.ids, self.model, "stream", *self.pattern) as stream:
            inputs = ((text, text.encode("utf-8", "replace")) for text in texts(arguments, self.name))
            if self.invalid:
                inputs = itertools.chain(inputs, self.broken(arguments))
            for text, data in inputs:
                try:
                    expected, got = list(self.encode(text)), ours.ask(data)
                except BaseException as error:  # tiktoken's regular expressions overflow their stack on long runs
                    if type(error).__name__ != "PanicException":
                        raise
                    panics += 1
                    continue
                if expected != got:
                    self.differ("ids", data, expected, got)
                if len(got) < 5000:
                    decoded = decoder.ask(got)
                    if stream.ask(got) != decoded:
                        self.differ("text of a stream", data, decoded, stream.ask(got))
                    if self.decode and self.decode(got) != decoded:
                        self.differ("text", data, self.decode(got), decoded)
                bytes_seen, tokens, count = bytes_seen + len(data), tokens + len(got), count + 1
        seconds = time.monotonic() - began
        print(f"{self.name}: the same for {count} texts, {bytes_seen / 1e6:.1f} MB, {tokens} tokens ({seconds:.1f} s)"
              + f"; the library gave up on {panics}" * (panics > 0), flush=True)

    def broken(self, arguments):
        rng = random.Random(self.name)
        for _ in range(arguments.soups // 4):
            data = bytearray(soup(rng).encode())
            for _ in range(rng.randrange(1, 9)):
                data.insert(rng.randrange(len(data) + 1), rng.randrange(256))
            yield bytes(data), bytes(data)
        yield (noise := rng.randbytes(arguments.long)), noise

    def differ(self, what, data, expected, got):
        at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
        sys.exit(f"{self.name}: other {what} for {data[:200]!r}… at {at}:\nexpected {expected[max(0, at - 5):at + 5]}\n"
                 f"got      {got[max(0, at - 5):at + 5]}")


# -- references ----------------------------------------------------------------------------------------------------------

def is_tekken(path):
    return path.name.startswith("tekken")


def tekken_case(path):
    """The same as Mistral's code: special tokens have the first ids, and are never found in texts."""
    import base64
    data = json.loads(path.read_text())
    size, specials = data["config"]["default_vocab_size"], data["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in data["vocab"][:size - specials]}
    encoding = require("tiktoken").Encoding("x", pat_str=data["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    return Case(f"tiktoken-{path.stem}", path, lambda text: [specials + rank for rank in encoding.encode_ordinary(text)],
                decode=lambda ids: encoding.decode_bytes([i - specials for i in ids]))


def tiktoken_cases(folder):
    import base64
    tiktoken = require("tiktoken")
    files = {"r50k": ORACLE / "r50k_base.tiktoken"}
    if not files["r50k"].exists():
        files = {}
    small = {bytes([byte]): byte for byte in range(256)}
    words = sorted({word for text in itertools.chain(own_files(), SAMPLES) for word in text.split()})
    rng = random.Random(1)
    # A vocabulary with parts of characters, and with tokens that merging their bytes does not yield.
    for _ in range(3000):
        data = (rng.choice(("", " ")) + rng.choice(words)).encode()
        start = rng.randrange(len(data))
        small.setdefault(data[start:start + rng.choice((2, 2, 2, 3, 3, 4, 5, 8))], len(small))
    files["small"] = folder / "small.tiktoken"
    files["small"].write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in small.items()))

    def case(name, path, regex, **options):
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_bytes().splitlines())}
        encoding = tiktoken.Encoding("x", pat_str=regex, mergeable_ranks=ranks, special_tokens={})
        return Case(f"tiktoken-{name}", path, encoding.encode_ordinary, decode=encoding.decode_bytes, **options)

    (folder / "tekken.json").write_text(json.dumps({
        "config": {"pattern": TEKKEN, "default_vocab_size": 20 + len(small), "default_num_special_tokens": 20, "version": "v3"},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for token, rank in small.items()]}))
    yield tekken_case(folder / "tekken.json")
    for (name, path), (pattern, regex) in itertools.product(files.items(), PATTERNS.items()):
        yield case(f"{name}-{pattern}", path, regex, pattern=(pattern,))
    for path in sorted(VOCABULARIES.glob("*.tiktoken")):  # published ones, whose patterns are known
        pattern = next((pattern for pattern in PATTERNS if pattern in path.name), "gpt2")
        yield case(path.stem, path, PATTERNS[pattern])
    yield from map(tekken_case, sorted(filter(is_tekken, VOCABULARIES.glob("*.json"))))


def sentencepiece_cases(folder):
    spm = require("sentencepiece")
    models = {}
    if (ORACLE / "llama2-tokenizer.model").exists():
        models["llama2"] = ORACLE / "llama2-tokenizer.model"
    lines = [line for text in own_files() for line in text.splitlines()] + SAMPLES * 20
    llama = dict(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True)
    kinds = {
        "llama": llama,
        "plain-bpe": dict(model_type="bpe"),
        "user-defined": llama | dict(user_defined_symbols=["<tool>", "▁▁", "abc", "ab", "数据", "▁the"]),
        "user-defined-nfkc": dict(model_type="bpe", user_defined_symbols=["<tool>", "①", "don't", "a b"], byte_fallback=True),
        "suffix": llama | dict(treat_whitespace_as_suffix=True),
        "no-prefix": llama | dict(add_dummy_prefix=False),
        "no-fallback": llama | dict(byte_fallback=False),
        "unigram": dict(model_type="unigram"),
        "unigram-user-defined": dict(model_type="unigram", user_defined_symbols=["<tool>", "①", "don't", "ab", "abc", "数据", "▁the"]),
        "unigram-fallback": dict(model_type="unigram", normalization_rule_name="identity", remove_extra_whitespaces=False,
                                 byte_fallback=True),
        "casefold": dict(model_type="bpe", normalization_rule_name="nmt_nfkc_cf"),
    }
    for name, options in kinds.items():
        models[name] = folder / f"{name}.model"
        with models[name].open("wb") as file:
            spm.SentencePieceTrainer.Train(sentence_iterator=iter(lines), model_writer=file, vocab_size=1200, character_coverage=0.99,
                                           minloglevel=2, hard_vocab_limit=False, **options)
    models |= {path.stem: path for path in VOCABULARIES.glob("*.model")}
    for name, path in models.items():
        library = spm.SentencePieceProcessor(model_file=str(path))
        specials = {i for i in range(library.vocab_size()) if library.is_control(i) or library.is_unknown(i)}

        def decode(ids, library=library, specials=specials):
            return library.decode([i for i in ids if i not in specials]).encode()
        yield Case(f"sentencepiece-{name}", path, library.encode, invalid=True, decode=decode)


def byte_level(tokenizers, pre_tokenizer, lines, **options):
    from tokenizers import decoders, models, trainers
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<|endoftext|>", "<|im_start|>"], show_progress=False,
                                  initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(lines, trainer)
    data = json.loads(tokenizer.to_str())
    data["model"] |= options
    return json.dumps(data)


def llama2_json(tokenizers, lines):
    from tokenizers import decoders, models, normalizers, trainers
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.train_from_iterator([line for line in lines if len(line) < 200], trainers.BpeTrainer(
        vocab_size=2000, limit_alphabet=200, max_token_length=8, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]))
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token | {"normalized": False} for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    return json.dumps(data)


def gemma_json(tokenizers, lines):
    data = json.loads(llama2_json(tokenizers, lines))
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    data["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return json.dumps(data)


def bert_json(tokenizers, lines, **options):
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(lines, trainers.WordPieceTrainer(
        vocab_size=3000, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        # Many characters, so that tokens show the normalization of odd characters.
        initial_alphabet=[chr(code) for code in range(0x21, 0x3000) if code % 3 and chr(code).isprintable() and not 0x41 <= code <= 0x5A]))
    return tokenizer.to_str()


def bert_vocabulary(text):
    vocabulary = json.loads(text)["model"]["vocab"]
    return "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.get))


def unigram_json(tokenizers, lines, folder, rules="nmt_nfkc", before=(), after=(), words=None, fallback=False):
    """Returns a file like T5's and XLM-R's: a SentencePiece model's vocabulary and character map, and Metaspace."""
    import base64
    spm = require("sentencepiece")
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import pre_tokenizers as pre
    with (folder / "unigram.model").open("wb") as file:
        spm.SentencePieceTrainer.Train(sentence_iterator=iter(line for line in lines if len(line) < 4000), model_writer=file, vocab_size=1500,
                                       character_coverage=0.99, minloglevel=2, hard_vocab_limit=False, model_type="unigram",
                                       normalization_rule_name=rules, byte_fallback=fallback)
    model = sentencepiece_model_pb2.ModelProto.FromString((folder / "unigram.model").read_bytes())
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    precompiled = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else []
    special = [dict(id=i, content=piece.piece, special=True, normalized=False, single_word=False, lstrip=False, rstrip=False)
               for i, piece in enumerate(model.pieces) if piece.type in (2, 3)]
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [*before, *precompiled, *after]},
        "pre_tokenizer": words or space, "post_processor": None, "decoder": space | {"prepend_scheme": (words or space).get("prepend_scheme", "always")},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": fallback, "vocab": [[p.piece, p.score] for p in model.pieces]}})


def without_specials(text):
    """Returns the file with other names for the special tokens of a Unigram model, which the library finds in texts."""
    data = json.loads(text)
    if data["model"].get("type") == "Unigram":
        pieces = {piece[0]: piece for piece in data["model"]["vocab"]}
        for token in data["added_tokens"]:
            if token["special"] and token["content"] in pieces:
                pieces[token["content"]][0] = token["content"] = "\U000f0000\U000f0001" + token["content"]
    return json.dumps(data)


def with_added(text, only_raw=False, leave_out=(), **tokenizer):
    """Returns the file with added tokens of all kinds, and with the other changes."""
    data = json.loads(text) | tokenizer
    vocabulary = data["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    size = 1 + max(*vocabulary.values(), *(token["id"] for token in data["added_tokens"]))
    plain = dict(special=False, single_word=False, lstrip=False, rstrip=False, normalized=False)
    for content, options in (
            ("<left>", dict(lstrip=True)), ("<right>", dict(rstrip=True)), ("<both>", dict(lstrip=True, rstrip=True, special=True)),
            ("word", dict(single_word=True)), ("ab", dict(single_word=True, lstrip=True)), ("\n\n", {}), ("<bo", {}),
            ("hello", dict(normalized=True)), ("e\u0301t", dict(normalized=True, rstrip=True)), ("HELLO", dict(normalized=True, special=True))):
        if (only_raw and options.get("normalized")) or content in leave_out:
            continue
        known = content in vocabulary
        data["added_tokens"].append(plain | options | dict(id=vocabulary[content] if known else size, content=content))
        size += not known
    return json.dumps(data)


def hf_cases(folder):
    tokenizers = require("tokenizers")
    from tokenizers import pre_tokenizers as pre
    lines = [line for text in own_files() for line in text.splitlines(True)] + SAMPLES * 20

    def split(regex, behavior="isolated", invert=False):
        return pre.Sequence([pre.Split(tokenizers.Regex(regex), behavior, invert), pre.ByteLevel(add_prefix_space=False, use_regex=False)])

    def one_after_another(regexes, *steps):
        return pre.Sequence([*(pre.Split(tokenizers.Regex(one), "isolated") for one in regexes), *steps,
                             pre.ByteLevel(add_prefix_space=False, use_regex=False)])

    files = {
        "gpt2": byte_level(tokenizers, pre.ByteLevel(add_prefix_space=False), lines),
        "gpt2-prefix": byte_level(tokenizers, pre.ByteLevel(add_prefix_space=True), lines),
        "llama3": byte_level(tokenizers, split(LLAMA3), lines, ignore_merges=True),
        "tekken": byte_level(tokenizers, split(TEKKEN), lines),
        "starcoder": byte_level(tokenizers, pre.Sequence([pre.Digits(True), pre.ByteLevel(add_prefix_space=False)]), lines),
        "gpt4o": byte_level(tokenizers, split(O200K, "removed", True), lines),
        "qwen3.5": byte_level(tokenizers, split(QWEN35), lines),
        "kimi": byte_level(tokenizers, split(KIMI), lines),
        "boundaries": byte_level(tokenizers, split(BOUNDARIES), lines),
        "added": with_added(byte_level(tokenizers, pre.ByteLevel(add_prefix_space=False), lines)),
        "added-nfc": with_added(byte_level(tokenizers, split(QWEN), lines), normalizer={"type": "NFC"}),
        "llama2": llama2_json(tokenizers, lines),
        "gemma": with_added(gemma_json(tokenizers, lines), only_raw=True),
        "deepseek": byte_level(tokenizers, one_after_another(DEEPSEEK), lines),
        "deepseek2": byte_level(tokenizers, one_after_another(DEEPSEEK2, pre.Digits(True)), lines),
        "deepseek-coder": byte_level(tokenizers, one_after_another(DEEPSEEK_CODER, pre.Digits(True)), lines),
        "t5": unigram_json(tokenizers, lines, folder),
        "xlm-r": unigram_json(tokenizers, lines, folder, words={"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}]}),
        "mbart": unigram_json(tokenizers, lines, folder, before=[{"type": "Strip", "strip_left": True, "strip_right": True}],
                              after=[{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]),
        "albert": unigram_json(tokenizers, lines, folder, before=ALBERT, after=SINGLE_SPACES, words=ALBERT_WORDS),
        # With byte fallback, the ids show the normalized form of unknown characters.
        "albert-bytes": unigram_json(tokenizers, lines, folder, fallback=True, rules="identity", before=ALBERT, after=SINGLE_SPACES),
        "unigram-nfd": unigram_json(tokenizers, lines, folder, fallback=True, rules="identity", before=[{"type": "NFD"}]),
        "unigram-lower": unigram_json(tokenizers, lines, folder, fallback=True, rules="identity",
                                      before=[{"type": "Lowercase"}, {"type": "StripAccents"}]),
        "t5-added": with_added(unigram_json(tokenizers, lines, folder)),
        "xlm-r-added": with_added(unigram_json(tokenizers, lines, folder, words=ALBERT_WORDS)),
        # If two tokens have the same normalized text, the library finds one of them at random.
        "albert-added": with_added(unigram_json(tokenizers, lines, folder, before=ALBERT, fallback=True, rules="identity"), leave_out=["HELLO"]),
        "unigram-nfkc": unigram_json(tokenizers, lines, folder, rules="identity", fallback=True, before=[{"type": "NFKC"}, {
            "type": "Replace", "pattern": {"String": "``"}, "content": '"'}], words={
                "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}),
        "unigram-nfc": unigram_json(tokenizers, lines, folder, rules="nmt_nfkc_cf", before=[{"type": "NFC"}], words={
                "type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}),
        "bert": bert_json(tokenizers, lines),
        "bert-cased": bert_json(tokenizers, lines, lowercase=False),
        "bert-accents": bert_json(tokenizers, lines, lowercase=True, strip_accents=False),
        "bert-raw": bert_json(tokenizers, lines, clean_text=False, handle_chinese_chars=False, strip_accents=True),
    }
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "vocab.txt").write_text(bert_vocabulary(files["bert"]))
    for path in itertools.chain((folder / f"{name}.json" for name in files), sorted(itertools.filterfalse(is_tekken, VOCABULARIES.glob("*.json")))):
        name = path.stem
        library = tokenizers.Tokenizer.from_file(str(path))
        plain = tokenizers.Tokenizer.from_str(without_specials(path.read_text()))
        plain.encode_special_tokens = True
        for one in (library, plain):  # we ignore the file's settings for batches
            one.no_padding()
            one.no_truncation()

        def encode(text, library):
            return library.encode(text, add_special_tokens=False).ids
        yield Case(f"tokenizers-{name}", path, lambda text, library=plain: encode(text, library))
        if name == "bert":
            yield Case("tokenizers-vocab.txt", folder / "vocab.txt", lambda text, library=plain: encode(text, library),
                       decode=lambda ids, library=plain: library.decode(ids).encode())
        yield Case(f"tokenizers-{name}-specials", path, lambda text, library=library: encode(text, library), mode="specials")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=("tiktoken", "sentencepiece", "tokenizers"))
    parser.add_argument("--ids", required=True)
    parser.add_argument("--texts", type=pathlib.Path)
    parser.add_argument("--bytes", type=float, default=1e8)
    parser.add_argument("--soups", type=int, default=300)
    parser.add_argument("--long", type=int, default=20_000)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    for folder, name in ((ORACLE, "MILLRACE_ORACLE"), (VOCABULARIES, "MILLRACE_VOCABULARIES")):
        if not folder.is_dir():
            print(f"without published vocabularies of ${name}, which names no folder")
    cases = {"tiktoken": tiktoken_cases, "sentencepiece": sentencepiece_cases, "tokenizers": hf_cases}[arguments.library]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(pathlib.Path(folder)):
            if arguments.only in case.name:
                case.run(arguments)


if __name__ == "__main__":
    main()
