#!/usr/bin/env python3
"""Byte-level tokenizers in GGUF files against the tokenizers library, transformers and the package `gguf`.

    gguf_tokenizers.py --millrace build/release/bin/millrace --ids build/release/bin/tokenizer_ids

For each way of splitting texts a tokenizer is trained, with special tokens and others that were added. It is put into a GGUF
file twice: by `millrace ckpt export`, and by the package as llama.cpp's converter does. Millrace's ids of either file, and of
the tokenizer.json that it imports, must be those of the tokenizer that was trained, for every text. transformers' reading of
the file that Millrace wrote must give them too.

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 equal, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers_interop import LLAMA3, QWEN, SAMPLES, Ours, byte_level, own_files, pathological, require, soup

tokenizers, gguf, torch, transformers = (require(name) for name in ("tokenizers", "gguf", "torch", "transformers"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
# llama.cpp's, one after the other (llama-vocab.cpp, "default regex for BPE tokenization pre-processing").
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
# Behind the vocabulary, as a chat model has them: special or not.
ADDED = {"<|eot_id|>": True, "<think>": False, "</think>": False, "<|pad|>": True, "<tool call>": False, "数据": False}
PADDING = 9  # rows of the model's matrices without a token
BOS, EOS = "<|endoftext|>", "<|eot_id|>"


def texts(seed):
    rng = random.Random(seed)
    yield from ("", *SAMPLES)
    yield from own_files()
    yield from (soup(rng) for _ in range(400))
    yield from pathological(rng, 5000)
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn"]
    rng.shuffle(characters)  # every character beside others
    yield from ("".join(itertools.chain.from_iterable(zip(part, rng.choices(" a1'.\n", k=len(part))))) for part in
                (characters[at:at + 500] for at in range(0, len(characters), 500)))
    for token in (BOS, "<|im_start|>", *ADDED):
        yield from (token, f"a {token} b", f"{token}{token}\n", f"x{token}y", token[:-1], f" {token.upper()}")


class Case:
    def __init__(self, pre, folder, arguments):
        self.pre, self.folder, self.arguments = pre, folder, arguments
        splits = {"gpt-2": None, "llama-bpe": [LLAMA3], "qwen2": [QWEN], "default": DEFAULT}[pre]
        steps = tokenizers.pre_tokenizers
        splitter = steps.ByteLevel(add_prefix_space=False) if splits is None else steps.Sequence(
            [*(steps.Split(tokenizers.Regex(one), "isolated") for one in splits), steps.ByteLevel(add_prefix_space=False, use_regex=False)])
        lines = [line for text in own_files() for line in text.splitlines(True)] + SAMPLES * 20
        self.data = json.loads(byte_level(tokenizers, splitter, lines, ignore_merges=pre == "llama-bpe"))
        if pre == "qwen2":
            self.data["normalizer"] = {"type": "NFC"}
        size = len(self.data["model"]["vocab"])
        flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
        self.data["added_tokens"] += [dict(id=size + i, content=text, special=special, **flags) for i, (text, special) in enumerate(ADDED.items())]
        if pre == "llama-bpe":
            bos = self.data["model"]["vocab"][BOS]
            self.data["post_processor"] = {
                "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {BOS: {"id": BOS, "ids": [bos], "tokens": [BOS]}}}
        self.reference = tokenizers.Tokenizer.from_str(json.dumps(self.data))
        plain = tokenizers.Tokenizer.from_str(json.dumps(self.data))
        plain.encode_special_tokens = True
        self.size = size + len(ADDED) + PADDING
        self.texts = list(texts(pre))
        # What all files must give, text by text.
        self.plain, self.special = self.ids(plain), self.ids(self.reference)
        self.decoded = [text.encode() for text in self.reference.decode_batch(self.special)]

    def millrace(self, *arguments, **options):
        done = subprocess.run([self.arguments.millrace, *map(str, arguments)], capture_output=True, text=True, **options)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def ids(self, library):
        return [encoding.ids for encoding in library.encode_batch(self.texts, add_special_tokens=False)]

    def same(self, what, text, expected, got):
        if expected != got:
            at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
            sys.exit(f"{self.pre}: other {what} for {text[:200]!r}… at {at}:\nexpected {expected[max(0, at - 5):at + 5]}\ngot      {got[max(0, at - 5):at + 5]}")

    def tokens(self):
        """The lists of convert_hf_to_gguf.py: texts and types by id."""
        tokens, types = [f"[PAD{i}]" for i in range(self.size)], [UNUSED] * self.size
        for text, at in self.data["model"]["vocab"].items():
            tokens[at], types[at] = text, NORMAL
        for added in self.data["added_tokens"]:
            tokens[added["id"]], types[added["id"]] = added["content"], CONTROL if added["special"] else USER_DEFINED
        return tokens, types

    def check_fields(self, path):
        """What Millrace wrote is what the converter would write."""
        fields = gguf.GGUFReader(path).fields
        def value(name):
            return fields[f"tokenizer.ggml.{name}"].contents()
        tokens, types = self.tokens()
        assert value("model") == "gpt2" and value("pre") == self.pre, (value("model"), value("pre"))
        assert value("tokens") == tokens
        assert value("token_type") == types
        assert [tuple(merge.split(" ")) for merge in value("merges")] == [tuple(merge) for merge in self.data["model"]["merges"]]
        assert value("bos_token_id") == tokens.index(BOS) and value("eos_token_id") == tokens.index(EOS)
        assert value("add_bos_token") == (self.pre == "llama-bpe") and not value("add_eos_token")
        assert fields["tokenizer.chat_template"].contents() == "{{ messages }}"

    def check_file(self, path, name):
        """The ids of the file itself."""
        lines = "".join(json.dumps({"text": text}) + "\n" for text in self.texts)
        out = self.millrace("tokenizer", "encode", "--model", path, "--json", input=lines)
        answers = out.splitlines()
        assert len(answers) == len(self.texts), (len(answers), len(self.texts))
        for text, plain, line in zip(self.texts, self.plain, answers):
            self.same(f"ids of the file of {name}", text, plain, json.loads(line)["ids"])

    def check_json(self, path, name):
        """The ids and texts of the tokenizer.json that is imported from the file, and of ours with special tokens."""
        theirs = self.ids(tokenizers.Tokenizer.from_file(str(path)))
        with Ours(self.arguments.ids, path, "encode") as encode, Ours(self.arguments.ids, path, "specials") as specials, \
                Ours(self.arguments.ids, path, "decode") as decode:
            for text, plain, special, decoded, imported in zip(self.texts, self.plain, self.special, self.decoded, theirs):
                self.same(f"ids of {name}", text, plain, encode.ask(text.encode()))
                self.same(f"ids with special tokens of {name}", text, special, specials.ask(text.encode()))
                self.same(f"ids of the library with the file of {name}", text, special, imported)
                self.same(f"text of {name}", text, decoded, decode.ask(special))

    def check_transformers(self, path):
        """transformers' reading of the file. It neither composes texts nor knows "default"."""
        if self.pre == "default":
            return
        theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        for text, special, got in zip(self.texts, self.special, theirs(self.texts, add_special_tokens=False).input_ids):
            if self.pre == "qwen2" and unicodedata.normalize("NFC", text) != text:
                continue
            # Of added tokens that are text, it finds only those that are written in the byte-level alphabet.
            if "<tool call>" in text or "数据" in text:
                continue
            self.same("ids of transformers", text, special, got)
        assert theirs.bos_token == BOS and theirs.eos_token == EOS

    def write_with_package(self, source, path):
        """The file that llama.cpp's converter would write: the tensors of `source` and the package's metadata."""
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_vocab_size(self.size)
        writer.add_context_length(32)
        writer.add_embedding_length(64)
        writer.add_block_count(1)
        writer.add_feed_forward_length(64)
        writer.add_head_count(2)
        writer.add_layer_norm_rms_eps(1e-5)
        tokens, types = self.tokens()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges([" ".join(merge) for merge in self.data["model"]["merges"]])
        writer.add_bos_token_id(tokens.index(BOS))
        writer.add_eos_token_id(tokens.index(EOS))
        for tensor in gguf.GGUFReader(source).tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def run(self):
        config = transformers.LlamaConfig(vocab_size=self.size, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                          num_attention_heads=2, max_position_embeddings=32)
        transformers.LlamaForCausalLM(config).save_pretrained(self.folder / "hf")
        (self.folder / "hf/tokenizer.json").write_text(json.dumps(self.data))
        (self.folder / "hf/tokenizer_config.json").write_text(json.dumps(
            {"bos_token": {"content": BOS}, "eos_token": EOS, "chat_template": "{{ messages }}"}))
        ours, theirs = self.folder / "ours/m.gguf", self.folder / "theirs/m.gguf"
        theirs.parent.mkdir()
        self.millrace("ckpt", "import", self.folder / "hf", self.folder / "run")
        self.millrace("ckpt", "export", self.folder / "run", ours)
        self.check_fields(ours)
        self.write_with_package(ours, theirs)
        for path, name in ((ours, "Millrace"), (theirs, "the package")):
            self.check_file(path, name)
            imported, back = path.with_suffix(".run"), path.with_suffix(".hf")
            self.millrace("ckpt", "import", path, imported)
            self.millrace("ckpt", "export", imported, back)
            self.check_json(back / "tokenizer.json", name)
            whole = transformers.AutoTokenizer.from_pretrained(back)
            begin = [whole.convert_tokens_to_ids(BOS)] if self.pre == "llama-bpe" else []
            self.same("ids of a text with its ends", "a text", begin + self.reference.encode("a text", add_special_tokens=False).ids, whole("a text").input_ids)
            assert (whole.bos_token, whole.eos_token) == (BOS, EOS), (whole.bos_token, whole.eos_token)
        self.check_transformers(ours)
        print(f"ok: {self.pre}: the same for {len(self.texts)} texts, {sum(len(text.encode()) for text in self.texts) / 1e6:.1f} MB", flush=True)


def check_refusals(folder, millrace):
    """Other splits are refused by their names, as is a file that names none."""
    for pre, expected in (("jina-v2-zh", "jina-v2-zh"), (None, "tokenizer.ggml.pre")):
        path = folder / "refused.gguf"
        writer = gguf.GGUFWriter(path, "jina")  # the tokenizer of any model can be read
        writer.add_tokenizer_model("gpt2")
        if pre:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(["a"])
        writer.add_token_merges(["a a"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        done = subprocess.run([millrace, "tokenizer", "encode", "--model", path], input="a", capture_output=True, text=True)
        assert done.returncode != 0 and expected in done.stderr, done.stderr
    print("ok: other splits are refused")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--ids", required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for pre in ("gpt-2", "llama-bpe", "qwen2", "default"):
            if arguments.only in pre:
                (folder := pathlib.Path(temporary, pre)).mkdir()
                Case(pre, folder, arguments).run()
        check_refusals(pathlib.Path(temporary), arguments.millrace)


if __name__ == "__main__":
    sys.exit(main())
