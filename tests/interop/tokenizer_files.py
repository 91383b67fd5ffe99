#!/usr/bin/env python3
"""Makes tokenizer.json files of random components and options, and compares our tokenizers with Hugging Face's.

Each file has one of three results. Equal: the same ids for every text, with and without special tokens, and the same
decoded text. Refused: kUnsupported, with the name of the feature. Different: the run fails and shrinks the file. In our
encoders a model never finds special tokens, so that documents cannot forge them. So the library gets files in which the
model has other names for them.

    tokenizer_files.py --ids build/release/bin/tokenizer_ids [--seed 1] [--files 200] [--seconds 900] [--keep FOLDER]

Exit status: 0 none differs, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import collections
import contextlib
import copy
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

from tokenizers_interop import (ALBERT, ALBERT_WORDS, DEEPSEEK, DEEPSEEK_CODER, GPT2, LLAMA3, O200K, ODD, QWEN, ROOT, SAMPLES, TEKKEN, require,
                                soup)

HIDDEN = "\U000f0000\U000f0001"
GPT2_PLAIN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
PATTERNS = [GPT2_PLAIN, LLAMA3, QWEN, O200K, TEKKEN, CLIP, BLOOM, *DEEPSEEK, *DEEPSEEK_CODER, r"\s+", r"\s", r"\d", r"[0-9]", r"[0-9][0-9][0-9]",
            r"\p{N}{1,3}", r"\p{N}", r"\p{P}", r"\p{L}+", r"[^\s]+", r"[\r\n]", r"\s+$", r" +", r"\S+", r"a+b?", r"(?:ab|a)b*", r"\s*\p{Lu}\p{Ll}*",
            r"x*", r"(?i:ab)", r"\w+", r"(?<=a)b", r"[^\p{P}\s]+|\p{P}++", r"\p{Sc}|\p{Z}", r"^a", r"[a-c-]+", r"\p{M}+", r"\p{Han}+", r"\R"]
REPLACED = [({"String": "ab"}, "x"), ({"String": " "}, "▁"), ({"String": "a"}, ""), ({"String": "``"}, '"'), ({"String": "e"}, "é"),
            ({"Regex": " {2,}"}, " "), ({"Regex": r"\s+"}, " "), ({"Regex": r"\s{2,}|[\n\r\t]"}, " "), ({"Regex": r"[^\x00-\x7f]"}, "?"),
            ({"Regex": " +"}, "▁"), ({"Regex": r"\p{N}"}, "0"), ({"Regex": r"[!?]+"}, "!"), ({"Regex": r"(ab)+"}, "b"), ({"String": "▁"}, " "),
            ({"Regex": "^ "}, ""), ({"Regex": r"\n"}, ""), ({"Regex": "[‘’]"}, "'"), ({"String": "of"}, "of the")]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
CONTENTS = ["<s>", "</s>", "<pad>", "<mask>", "[MASK]", "eod", "hello", "Hello", "a", "b", "ab", " ", "  ", "\n", "é", "e\u0301", "数", "word", "the ", " the",
            "<|end|>", "▁", "don't", ".", "İ", "Ａ", "1", "12", "Ġa", "<0x41>", "\u0301", "🦙", "_", "##s", "th", "<extra_id_0>", "\t\t"]
OWN_TEXTS = ["abab aab b a", " a", "  a  b ", "a", "hello helloo _hello hello_ Hello-hello", "eod eodx xeod EOD eod.", "the the  the", "abc abbb aaa",
             "1234567 12 3", "a b", "▁a ▁ b", "<s>a</s> <mask> b", " <mask>  <pad> ", "İstanbul ŞİŞLİ", "x<0x41>A", "\n\n a\n", "don't stop", "ａｂ ＡＢ"]


def component(kind, **fields):
    return {"type": kind, **fields}


class Maker:
    """Makes random parts of files."""

    def __init__(self, rng, tokenizers, charsmap):
        self.rng, self.tokenizers, self.charsmap = rng, tokenizers, charsmap
        self.flag = lambda share=0.5: rng.random() < share

    def sequence(self, name, plural, one, most):
        if self.flag(0.6):
            return one()
        return component(name, **{plural: [one() for _ in range(self.rng.randrange(0, most + 1))]})

    def one_normalizer(self):
        rng, flag = self.rng, self.flag
        kind = rng.choice(["NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "Lowercase", "Strip", "Replace", "Replace", "Replace", "Prepend", "Nmt",
                           "BertNormalizer", "Precompiled", "ByteLevel"])
        if kind == "Strip":
            return component(kind, strip_left=flag(), strip_right=flag())
        if kind == "Replace":
            pattern, content = rng.choice(REPLACED)
            return component(kind, pattern=pattern, content=content)
        if kind == "Prepend":
            return component(kind, prepend=rng.choice(["▁", "▁", " ", "ab", ""]))
        if kind == "BertNormalizer":
            return component(kind, clean_text=flag(), handle_chinese_chars=flag(), strip_accents=rng.choice([None, True, False]), lowercase=flag())
        if kind == "Precompiled":
            return component(kind, precompiled_charsmap=self.charsmap) if self.charsmap else component("NFKC")
        return component(kind)

    def normalizer(self):
        return None if self.flag(0.4) else self.sequence("Sequence", "normalizers", self.one_normalizer, 4)

    def one_pre_tokenizer(self):
        rng, flag = self.rng, self.flag
        kind = rng.choice(["BertPreTokenizer", "ByteLevel", "ByteLevel", "CharDelimiterSplit", "Metaspace", "Metaspace", "Whitespace", "WhitespaceSplit", "Split", "Split",
                           "Split", "Punctuation", "Digits", "UnicodeScripts", "FixedLength"])
        if kind == "ByteLevel":
            return component(kind, add_prefix_space=flag(), trim_offsets=flag(), use_regex=flag(0.6))
        if kind == "CharDelimiterSplit":
            return component(kind, delimiter=rng.choice([" ", "a", "▁", "-"]))
        if kind == "Metaspace":
            return component(kind, replacement=rng.choice(["▁", "▁", "▁", "_", " "]), prepend_scheme=rng.choice(["always", "first", "never"]), split=flag(0.7))
        if kind == "Split":
            pattern = {"Regex": rng.choice(PATTERNS)} if flag(0.7) else {"String": rng.choice([" ", "a", "ab", "▁", "\n", ". "])}
            return component(kind, pattern=pattern, behavior=rng.choice(BEHAVIORS), invert=flag(0.3))
        if kind == "Punctuation":
            return component(kind, behavior=rng.choice(BEHAVIORS))
        if kind == "Digits":
            return component(kind, individual_digits=flag())
        if kind == "FixedLength":
            return component(kind, length=rng.choice([1, 2, 5]))
        return component(kind)

    def pre_tokenizer(self):
        return None if self.flag(0.15) else self.sequence("Sequence", "pretokenizers", self.one_pre_tokenizer, 3)

    def one_decoder(self):
        rng, flag = self.rng, self.flag
        kind = rng.choice(["ByteLevel", "WordPiece", "Metaspace", "BPEDecoder", "CTC", "Replace", "Fuse", "Strip", "ByteFallback"])
        fields = {"ByteLevel": dict(add_prefix_space=True, trim_offsets=True, use_regex=True), "WordPiece": dict(prefix=rng.choice(["##", ""]), cleanup=flag()),
                  "Metaspace": dict(replacement="▁", prepend_scheme=rng.choice(["always", "first", "never"]), split=True),
                  "BPEDecoder": dict(suffix="</w>"), "CTC": dict(pad_token="<pad>", word_delimiter_token="|", cleanup=flag()),
                  "Strip": dict(content=rng.choice([" ", "a"]), start=rng.randrange(3), stop=rng.randrange(2))}
        if kind == "Replace":
            pattern, content = rng.choice(REPLACED)
            return component(kind, pattern=pattern, content=content)
        return component(kind, **fields.get(kind, {}))

    def decoder(self):
        return None if self.flag(0.2) else self.sequence("Sequence", "decoders", self.one_decoder, 4)

    def post_processor(self, added):
        if not added or self.flag(0.4):
            return None
        one, two = self.rng.choice(added), self.rng.choice(added)
        kind = self.rng.choice(["TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel"])
        if kind == "ByteLevel":
            return component(kind, add_prefix_space=True, trim_offsets=False, use_regex=True)
        if kind != "TemplateProcessing":
            extra = dict(trim_offsets=True, add_prefix_space=True) if kind == "RobertaProcessing" else {}
            return component(kind, sep=[two["content"], two["id"]], cls=[one["content"], one["id"]], **extra)
        tokens = {token["content"]: dict(id=token["content"], ids=[token["id"]], tokens=[token["content"]]) for token in (one, two)}
        single = [{"SpecialToken": dict(id=one["content"], type_id=0)}, {"Sequence": dict(id="A", type_id=0)}, {"SpecialToken": dict(id=two["content"], type_id=0)}]
        return component(kind, single=single, pair=single + [{"Sequence": dict(id="B", type_id=1)}], special_tokens=tokens)

    # Combinations of parts that published models have.
    def preset(self):
        prefix = self.flag()
        byte_level = component("ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=True)
        raw_bytes = byte_level | dict(use_regex=False, add_prefix_space=False)
        marks = [component("Replace", pattern={"String": "▁"}, content=" "), component("ByteFallback"), component("Fuse")]
        strip = component("Strip", content=" ", start=1, stop=0)
        scheme = self.rng.choice(["always", "first", "never"])
        space = component("Metaspace", replacement="▁", prepend_scheme=scheme, split=True)

        def split(regex, **options):
            return component("Split", pattern={"Regex": regex}, **({"behavior": "Isolated", "invert": False} | options))
        return self.rng.choice([
            ("gpt2", "BPE", None, byte_level, byte_level, {}),
            ("neox", "BPE", component("NFC"), byte_level, byte_level, {}),
            ("llama3", "BPE", None, component("Sequence", pretokenizers=[split(self.rng.choice([LLAMA3, QWEN, O200K, TEKKEN])), raw_bytes]), byte_level,
             dict(ignore_merges=self.flag())),
            ("falcon", "BPE", None, component("Sequence", pretokenizers=[
                component("Punctuation", behavior="Contiguous"), byte_level, component("Digits", individual_digits=False),
                split("[0-9][0-9][0-9]")]), byte_level, {}),
            ("starcoder", "BPE", None, component("Sequence", pretokenizers=[component("Digits", individual_digits=True), byte_level]), byte_level, {}),
            ("clip", "BPE", component("Sequence", normalizers=[component("NFC"), component("Replace", pattern={"Regex": r"\s+"}, content=" "),
                                                               component("Lowercase")]),
             component("Sequence", pretokenizers=[split(CLIP, behavior="Removed", invert=True), raw_bytes]), byte_level,
             dict(continuing_subword_prefix="", end_of_word_suffix="</w>")),
            ("bloom", "BPE", None, component("Sequence", pretokenizers=[split(BLOOM), raw_bytes]), byte_level, {}),
            ("llama2", "BPE", component("Sequence", normalizers=[component("Prepend", prepend="▁"), component("Replace", pattern={"String": " "}, content="▁")]),
             None, component("Sequence", decoders=[*marks, strip]), dict(byte_fallback=True, fuse_unk=True)),
            ("llama2-new", "BPE", None, space | dict(split=False), component("Sequence", decoders=[*marks, *[strip] * (scheme != "never")]),
             dict(byte_fallback=True, fuse_unk=True)),
            ("gemma", "BPE", component("Replace", pattern={"String": " "}, content="▁"), self.rng.choice([None, component(
                "Split", pattern={"String": " "}, behavior="MergedWithPrevious", invert=False)]), component("Sequence", decoders=marks),
             dict(byte_fallback=True, fuse_unk=True)),
            ("bert", "WordPiece", component("BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=self.rng.choice([None, True, False]),
                                            lowercase=prefix), component("BertPreTokenizer"), component("WordPiece", prefix="##", cleanup=True), {}),
            ("t5", "Unigram", component("Precompiled", precompiled_charsmap=self.charsmap) if self.charsmap else component("NFKC"), self.rng.choice([
                space, component("Sequence", pretokenizers=[component("WhitespaceSplit"), space])]), space, {}),
            ("t5-new", "Unigram", component("Sequence", normalizers=[
                component("NFKC"), component("Strip", strip_left=prefix, strip_right=True),
                component("Replace", pattern={"Regex": " {2,}"}, content="▁")]), space | dict(prepend_scheme="first"), space, {}),
            ("albert", "Unigram", component("Sequence", normalizers=ALBERT), ALBERT_WORDS, space, {}),
            ("words", "WordLevel", component("Lowercase"), component("Whitespace"), None, {}),
        ])

    def model(self, kind, normalizer, pre_tokenizer, lines, alphabet):
        """Trains on the lines as the file normalizes and splits them. Some words are known, and some are not."""
        trainers, models = self.tokenizers.trainers, self.tokenizers.models
        unk = self.rng.choice(["<unk>", "[UNK]"])
        empty = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
                 "post_processor": None, "decoder": None, "model": component("BPE", vocab={}, merges=[])}
        tokenizer = self.tokenizers.Tokenizer.from_str(json.dumps(empty))
        size, sample = self.rng.randrange(150, 900), self.rng.sample(lines, 150)
        if kind == "Unigram":
            tokenizer.model = models.Unigram([(unk, 0.0)], 0)
            trainer = trainers.UnigramTrainer(vocab_size=size, unk_token=unk, special_tokens=[unk], show_progress=False)
        elif kind == "WordPiece":
            tokenizer.model = models.WordPiece(unk_token=unk)
            trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=[unk], show_progress=False, limit_alphabet=200)
        elif kind == "WordLevel":
            tokenizer.model = models.WordLevel(unk_token=unk)
            trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=[unk], show_progress=False)
        else:
            suffix, prefix = alphabet.pop("end_of_word_suffix", None), alphabet.pop("continuing_subword_prefix", None)
            tokenizer.model = models.BPE(unk_token=unk)
            trainer = trainers.BpeTrainer(vocab_size=size + 256, special_tokens=[unk], show_progress=False, limit_alphabet=self.rng.choice([60, 300]),
                                          initial_alphabet=self.tokenizers.pre_tokenizers.ByteLevel.alphabet() if alphabet.pop("bytes", False) else [],
                                          **({"end_of_word_suffix": suffix} if suffix else {}),
                                          **({"continuing_subword_prefix": prefix} if prefix else {}))
        tokenizer.train_from_iterator(sample, trainer)
        return json.loads(tokenizer.to_str())["model"], unk


def set_vocabulary(model, order):
    """Gives the tokens new ids."""
    model["vocab"] = {token: i for i, token in enumerate(order)}


def change_model(rng, kind, model, unk, options):
    flag = lambda share: rng.random() < share
    if kind == "BPE":
        model |= options
        if model.get("byte_fallback") or flag(0.2):
            model["byte_fallback"] = True
            gone = {f"<0x{byte:02X}>" for byte in (rng.sample(range(256), 3) if flag(0.2) else ())}
            set_vocabulary(model, list(model["vocab"]) + [name for byte in range(256) if (name := f"<0x{byte:02X}>") not in gone])
        model["fuse_unk"] = options.get("fuse_unk", flag(0.5))
        model["dropout"] = rng.choice([None] * 8 + [0.0, 0.1])
        if flag(0.15):
            model["ignore_merges"] = True
        merges = model["merges"]
        for _ in range(rng.choice([0, 0, 0, 1, 5])):
            if merges:
                merges.insert(rng.randrange(len(merges) + 1), rng.choice(merges))
        if flag(0.3):
            model["merges"] = [" ".join(pair) for pair in merges] if all(" " not in a + b for a, b in merges) else merges
        if flag(0.2):
            model["unk_token"] = None
    elif kind == "Unigram":
        vocabulary = model["vocab"]
        if flag(0.3):
            model["byte_fallback"] = True
            vocabulary += [[f"<0x{byte:02X}>", 0.0] for byte in range(rng.choice([256, 256, 200]))]
        for _ in range(rng.choice([0, 0, 3])):
            rng.choice(vocabulary)[1] = rng.choice([-1.0, -5.0, -30.0, 1.0])
        if flag(0.1):
            model["unk_id"] = None
        elif flag(0.1):
            model["unk_id"] = rng.randrange(len(vocabulary))
    elif kind == "WordPiece":
        model["max_input_chars_per_word"] = rng.choice([100, 100, 5])
        if flag(0.1):
            model["continuing_subword_prefix"] = rng.choice(["", "@@"])


def vocabulary_of(model):
    if isinstance(model["vocab"], list):
        return {token: i for i, (token, _) in reversed(list(enumerate(model["vocab"])))}
    return model["vocab"]


def added_tokens(rng, model, unk):
    vocabulary = vocabulary_of(model)
    size, added = len(model["vocab"]), []
    contents = rng.sample(CONTENTS, rng.choice([0, 2, 5, 9]))
    if rng.random() < 0.3 and vocabulary:
        contents.append(rng.choice(list(vocabulary)))
    if rng.random() < 0.7:
        contents.insert(0, unk)
    flag = lambda share: rng.random() < share
    for content in dict.fromkeys(contents):
        # Files whose merges make a special token are refused, so a token of the vocabulary is rarely special.
        special = content == unk or flag(0.15 if content in vocabulary else 0.5)
        token = dict(id=vocabulary.get(content, size), content=content, single_word=flag(0.2), lstrip=flag(0.2), rstrip=flag(0.2),
                     normalized=flag(0.2), special=special)
        size += content not in vocabulary
        added.append(token)
    if added and flag(0.02):
        rng.choice(added)["id"] += 7
    return added


def make_file(seed, tokenizers, charsmap, lines):
    rng = random.Random(seed)
    maker = Maker(rng, tokenizers, charsmap)
    if rng.random() < 0.6:
        name, kind, normalizer, pre_tokenizer, decoder, options = copy.deepcopy(maker.preset())
        change = rng.randrange(6)
        if change == 0:
            normalizer = maker.normalizer()
        elif change == 1:
            pre_tokenizer = maker.pre_tokenizer()
        elif change == 2:
            decoder = maker.decoder()
    else:
        name, kind = "random", rng.choice(["BPE", "BPE", "WordPiece", "WordLevel", "Unigram"])
        normalizer, pre_tokenizer, decoder, options = maker.normalizer(), maker.pre_tokenizer(), maker.decoder(), {}
        if kind == "BPE" and rng.random() < 0.2:
            options = rng.choice([dict(end_of_word_suffix="</w>"), dict(continuing_subword_prefix="##"), dict(end_of_word_suffix="", continuing_subword_prefix="")])
    all_bytes = "ByteLevel" in json.dumps([normalizer, pre_tokenizer]) and rng.random() < 0.9
    model, unk = maker.model(kind, normalizer, pre_tokenizer, lines, options | dict(bytes=all_bytes))
    change_model(rng, kind, model, unk, options)
    added = added_tokens(rng, model, unk)
    return name, {
        "version": "1.0", "truncation": rng.choice([None, dict(direction="Right", max_length=4, strategy="LongestFirst", stride=0)]),
        "padding": rng.choice([None, dict(strategy={"Fixed": 8}, direction="Right", pad_to_multiple_of=None, pad_id=0, pad_type_id=0, pad_token="<pad>")]),
        "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": maker.post_processor(added),
        "decoder": decoder, "model": model}


# -- the two sides -------------------------------------------------------------------------------------------------------

class Session:
    """The program tokenizer_ids, which runs on for all files."""

    def __init__(self, program):
        self.program, self.process = program, None

    def ask(self, what, data):
        if self.process is None:
            self.process = subprocess.Popen([self.program, "-", "session"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        data = what.encode() + data
        self.process.stdin.write(struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()
        head = self.process.stdout.read(4)
        if len(head) < 4:
            status, self.process = self.process.wait(), None
            return False, f"tokenizer_ids ended: {status}".encode()
        body = self.process.stdout.read(struct.unpack("<I", head)[0])
        return body[:1] == b"+", body[1:]


def pack(ids):
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack(data):
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def hide_specials(data):
    """Returns the file with other names of special tokens in the model, so that it does not find them in texts."""
    data = copy.deepcopy(data)
    names = {token["content"] for token in data["added_tokens"] if token["special"]}
    model = data["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = [[HIDDEN + token if token in names else token, score] for token, score in model["vocab"]]
    else:
        model["vocab"] = {HIDDEN + token if token in names else token: i for token, i in model["vocab"].items()}
    if model.get("unk_token") in names:
        model["unk_token"] = HIDDEN + model["unk_token"]
    data["post_processor"] = None
    return data


class Library:
    def __init__(self, tokenizers, data):
        self.whole = tokenizers.Tokenizer.from_str(json.dumps(data))
        self.hidden = tokenizers.Tokenizer.from_str(json.dumps(hide_specials(data)))
        for one in (self.whole, self.hidden):
            one.no_padding()
            one.no_truncation()
        self.ids = {self.hidden.token_to_id(token["content"]): self.whole.token_to_id(token["content"]) for token in data["added_tokens"]}
        # The library decodes these to their normalized text. We decode all special tokens to nothing.
        self.shown = {token["id"] for token in data["added_tokens"] if token["special"] and token["normalized"]}

    def encode(self, text, specials):
        self.hidden.encode_special_tokens = not specials
        return [self.ids.get(i, i) for i in self.hidden.encode(text, add_special_tokens=False).ids]

    def decode(self, ids):
        return self.whole.decode(ids, skip_special_tokens=True)


class Difference(Exception):
    pass


@contextlib.contextmanager
def silence():
    """Hides what panics of the library write to standard error."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def quietly(call, *arguments):
    """Returns the result, or None if the library fails or panics."""
    try:
        with silence():
            return call(*arguments)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        if os.environ.get("TOKENIZER_FILES_WHY"):
            print(f"  the library: {str(error)[:300]}", flush=True)
        return None


def compare(tokenizers, session, path, data, texts):
    """Raises Difference if the results differ. Else returns a word for the result."""
    library = quietly(Library, tokenizers, data)
    path.write_text(json.dumps(data))
    loaded, said = session.ask("l", str(path).encode())
    said = said.decode()
    if not loaded and "tokenizer_ids ended" in said:
        raise Difference(said)
    if library is None:
        if loaded and quietly(tokenizers.Tokenizer.from_str, json.dumps(data)) is not None:
            raise Difference("a model that makes special tokens is accepted")
        return "the library refuses", ""
    if not loaded:
        if "unsupported" not in said.lower() and "not supported" not in said:
            raise Difference(f"refused as broken: {said}")
        return "refused", said
    vocabulary = len(library.whole.get_vocab())
    rng = random.Random(7)
    for text in texts:
        for what, specials in (("e", False), ("s", True)):
            expected = quietly(library.encode, text, specials)
            if expected is None:
                continue
            good, answer = session.ask(what, text.encode())
            got = unpack(answer) if good else answer.decode()
            if got != expected:
                raise Difference({"what": "specials" if specials else "plain", "text": text, "expected": expected, "got": got})
            compare_decoded(library, session, expected)
    for _ in range(5):
        compare_decoded(library, session, [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 9))])
    return "equal", said


def compare_decoded(library, session, ids):
    if library.shown & set(ids) or len(ids) > 500:
        return
    expected = quietly(library.decode, ids)
    if expected is None:
        return
    for what in "dt":
        good, answer = session.ask(what, pack(ids))
        if not good or answer.decode("utf-8", "replace") != expected:
            raise Difference({"what": "decode" if what == "d" else "stream", "ids": ids, "expected": expected, "got": answer.decode("utf-8", "replace")})


# -- shrinking -----------------------------------------------------------------------------------------------------------

def shorter(items):
    size = max(1, len(items) // 2)
    while True:
        for at in range(0, len(items), size):
            yield items[:at] + items[at + size:]
        if size == 1:
            return
        size //= 2


def smaller_files(data):
    for key in ("normalizer", "pre_tokenizer", "decoder", "post_processor", "truncation", "padding"):
        if data[key] is not None:
            yield data | {key: None}
        for plural in ("normalizers", "pretokenizers", "decoders"):
            if isinstance(data[key], dict) and plural in data[key]:
                for fewer in shorter(data[key][plural]):
                    yield data | {key: data[key] | {plural: fewer}}
                for one in data[key][plural]:
                    yield data | {key: one}
    size = len(data["model"]["vocab"])
    for fewer in shorter(data["added_tokens"]):
        number, vocabulary = size, vocabulary_of(data["model"])
        fewer = copy.deepcopy(fewer)
        for token in fewer:
            token["id"] = vocabulary.get(token["content"], number)
            number += token["content"] not in vocabulary
        yield data | {"added_tokens": fewer}
    for at, token in enumerate(data["added_tokens"]):
        for name in ("single_word", "lstrip", "rstrip", "normalized"):
            if token[name]:
                yield data | {"added_tokens": [*data["added_tokens"][:at], token | {name: False}, *data["added_tokens"][at + 1:]]}


def shrink(differs, data, text):
    """Returns a smaller file and text that still differ."""
    for _ in range(3):
        before = json.dumps([data, text])
        for candidates, put in ((shorter, lambda one: (data, one)), (smaller_files, lambda one: (one, text))):
            progress = True
            while progress:
                progress = False
                for one in candidates(text if candidates is shorter else data):
                    if differs(*put(one)):
                        data, text = put(one)
                        progress = True
                        break
        if json.dumps([data, text]) == before:
            break
    return data, text


# -- the run -------------------------------------------------------------------------------------------------------------

def character_map():
    """Returns SentencePiece's character map, in base64."""
    import base64
    import io
    with contextlib.suppress(ImportError):
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.Train(sentence_iterator=iter(SAMPLES * 5), model_writer=model, vocab_size=300, hard_vocab_limit=False,
                                                 minloglevel=2)
        return base64.b64encode(sentencepiece_model_pb2.ModelProto.FromString(model.getvalue()).normalizer_spec.precompiled_charsmap).decode()
    return ""


def texts_for(seed, data):
    rng = random.Random(seed)
    contents = [token["content"] for token in data["added_tokens"]]

    def mixed():
        parts = [rng.choice([*contents, *ODD, *OWN_TEXTS, " ", " ", "a", "b"]) for _ in range(rng.randrange(1, 12))]
        return "".join(parts)
    return [*OWN_TEXTS, *SAMPLES, *rng.sample(ODD, 20), *(soup(rng) for _ in range(25)), *(mixed() for _ in range(40)), "ab" * 700, " " * 300]


def every_character(tokenizers, session, path):
    """Tests each step that looks at single characters, over Unicode. Returns the number of steps that differ."""
    def alone(type, **options):
        return {"type": type, **options}
    split = [alone("Split", pattern={"Regex": regex}, behavior="Isolated", invert=False) for regex in (r"\p{N}", r"\p{L}", r"\p{P}", r"\s")]
    digits = [alone("Digits", individual_digits=each) for each in (False, True)]
    pre_tokenizers = [*split, *digits, alone("Punctuation", behavior="Isolated"), alone("Whitespace"), alone("WhitespaceSplit"),
                      alone("BertPreTokenizer")]
    normalizers = [alone(type) for type in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")]
    normalizers.append(alone("BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=True))
    # A sample of planes 2 to 13 (ideographs or unassigned) and of 15 and 16 (private use).
    codes = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 61), *range(0xE0000, 0xE0200))]
    # A boundary shows by the unknown tokens that are not one; U+0378 is no character of any kind.
    texts = ["".join(f"{char}\u0378{char}a" for char in codes[at:at + 2048]) for at in range(0, len(codes), 2048)]
    by_bytes = {f"<0x{byte:02X}>": byte for byte in range(256)}
    different = 0
    for key, steps in (("pre_tokenizer", pre_tokenizers), ("normalizer", normalizers)):
        vocabulary = {"[UNK]": 0, "a": 1} if key == "pre_tokenizer" else {**by_bytes, "[UNK]": 256}
        model = {"type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                 "fuse_unk": True, "byte_fallback": key == "normalizer", "ignore_merges": False, "vocab": vocabulary, "merges": []}
        for step in steps:
            data = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                    "post_processor": None, "decoder": None, "model": model} | {key: step}
            try:
                outcome, said = compare(tokenizers, session, path, data, texts)
                if outcome != "equal":
                    print(f"every character, {step}: {outcome}: {said}")
            except Difference as difference:
                different += 1
                found = difference.args[0]
                at = next((i for i, (one, other) in enumerate(zip(found.get("expected", []), found.get("got", []))) if one != other), None)
                print(f"DIFFERENT in every character, {step}, from token {at} of {found['text'][:1]!r}…", flush=True)
    return different


def reason_of(said):
    """Returns an error message without the names in it."""
    said = said.rsplit("tokenizer.json: ", 1)[-1]
    return said if len(said) < 90 else said[:90] + "…"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ids", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", type=int, help="so many at most; 150, unless --seconds says when to end")
    parser.add_argument("--seconds", type=float, help="as many files as this time has")
    parser.add_argument("--keep", type=pathlib.Path, help="where files that differ are kept")
    arguments = parser.parse_args()
    os.environ |= {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}
    tokenizers = require("tokenizers")
    # A text that rarely changes, so that a seed makes the same files with other versions of the repository.
    lines = [line for line in (ROOT / "LICENSE").read_text().splitlines() if line] + SAMPLES * 10 + OWN_TEXTS * 10
    charsmap = character_map()
    session = Session(arguments.ids)
    outcomes, reasons, different, began = collections.Counter(), collections.Counter(), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tokenizer.json"
        different += every_character(tokenizers, session, path)
        seed = arguments.seed
        most = arguments.files or (10 ** 9 if arguments.seconds else 150)
        while seed < arguments.seed + most and time.monotonic() - began < (arguments.seconds or 10 ** 9):
            made = quietly(make_file, seed, tokenizers, charsmap, lines)
            seed += 1
            if made is None:
                outcomes["the library cannot train it"] += 1
                continue
            name, data = made
            try:
                outcome, said = compare(tokenizers, session, path, data, texts_for(seed, data))
                outcomes[outcome] += 1
                if outcome == "refused":
                    reasons[reason_of(said)] += 1
            except Difference as difference:
                different += 1
                report(arguments, tokenizers, session, path, name, seed - 1, data, difference)
    print(f"{seed - arguments.seed} files in {time.monotonic() - began:.0f} s: {different} different, " +
          ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    for reason, count in reasons.most_common(25):
        print(f"  refused {count}: {reason}")
    sys.exit(1 if different else 0)


def report(arguments, tokenizers, session, path, name, seed, data, difference):
    detail = difference.args[0]
    print(f"DIFFERENT seed {seed} ({name}): {detail}", flush=True)
    if isinstance(detail, dict) and "text" in detail:
        def differs(file, text):
            try:
                compare(tokenizers, session, path, file, [text])
            except Difference as other:
                return isinstance(other.args[0], dict) and other.args[0]["what"] == detail["what"]
            return False
        data, text = shrink(differs, data, detail["text"])
        with contextlib.suppress(Difference):
            compare(tokenizers, session, path, data, [text])
        small = {key: value for key, value in data.items() if key not in ("model", "version") and value}
        model = {key: value for key, value in data["model"].items() if key not in ("vocab", "merges")}
        print(f"  shrunk: {text!r} {json.dumps(small, ensure_ascii=False)} {json.dumps(model, ensure_ascii=False)}", flush=True)
        try:
            compare(tokenizers, session, path, data, [text])
        except Difference as last:
            print(f"  there: {last.args[0]}", flush=True)
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        (arguments.keep / f"{seed}.json").write_text(json.dumps(data, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
