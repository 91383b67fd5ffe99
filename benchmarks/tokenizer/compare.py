#!/usr/bin/env python3
"""Millrace's tokenizers beside sentencepiece, Hugging Face tokenizers and tiktoken, on the same documents in one run.

    compare.py BUILD/bin/tokenizer_bench DOCUMENTS.jsonl… [--oracle FOLDER] [--seconds 2]

Python needs the packages named in tests/requirements.txt. FOLDER ($MILLRACE_ORACLE) has llama2-tokenizer.model and
r50k_base.tiktoken. Each library is given whole documents and returns lists of ids, as its documentation shows; one thread,
medians per second of CPU, so that other work on the machine counts little; every peer's ids are compared with ours by their number. Hugging Face's tokenizer of each vocabulary is rebuilt from
the same file.
"""
import argparse
import base64
import json
import os
import pathlib
import statistics
import subprocess
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def rate(encode, documents, seconds):
    """Median MB per CPU second, and the number of ids."""
    size, rates, began = sum(len(text.encode()) for text in documents), [], time.monotonic()
    while len(rates) < 2 or time.monotonic() - began < seconds:
        start = time.process_time()
        tokens = sum(len(encode(text)) for text in documents)
        rates.append(size / 1e6 / (time.process_time() - start))
    return statistics.median(rates[1:]), tokens


def llama2_peers(model):
    import sentencepiece
    from tokenizers import Tokenizer, decoders, models, normalizers
    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    yield "sentencepiece", library.encode
    pieces = [library.id_to_piece(i) for i in range(library.vocab_size())]
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = sorted((-library.get_score(ids[piece]), ids[piece], piece[:at], piece[at:])
                    for piece in pieces[259:] for at in range(1, len(piece)) if piece[:at] in ids and piece[at:] in ids)
    fast = Tokenizer(models.BPE(ids, [(left, right) for _, _, left, right in merges], byte_fallback=True, fuse_unk=True,
                                unk_token="<unk>"))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    yield "tokenizers", lambda text: fast.encode(text, add_special_tokens=False).ids


def r50k_peers(file):
    import tiktoken
    from tokenizers import Tokenizer, models, pre_tokenizers
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file.read_bytes().splitlines())}
    encoding = tiktoken.Encoding("r50k", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    yield "tiktoken", encoding.encode_ordinary
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet |= {byte: chr(256 + i) for i, byte in enumerate(byte for byte in range(256) if byte not in printable)}

    def spell(token):
        return "".join(alphabet[byte] for byte in token)

    def halves(token, rank):
        """The last merge of a token: BPE with lower ranks only."""
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            if ranks.get(parts[best] + parts[best + 1], 1 << 30) >= rank:
                break
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        return parts

    merges = [tuple(map(spell, halves(token, rank))) for token, rank in sorted(ranks.items(), key=lambda item: item[1])
              if len(token) > 1]
    fast = Tokenizer(models.BPE({spell(token): rank for token, rank in ranks.items()}, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    yield "tokenizers", lambda text: fast.encode(text, add_special_tokens=False).ids


def ours(bench, model, documents, seconds):
    lines = subprocess.run([bench, model, documents, str(seconds)], check=True, capture_output=True, text=True).stdout
    return {result["what"]: result for result in map(json.loads, lines.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("documents", nargs="+", type=pathlib.Path)
    parser.add_argument("--oracle", type=pathlib.Path, default=os.environ.get("MILLRACE_ORACLE"))
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    for name, peers in (("llama2-tokenizer.model", llama2_peers), ("r50k_base.tiktoken", r50k_peers)):
        model = arguments.oracle / name
        for path in arguments.documents:
            documents = [json.loads(line)["text"] for line in path.open()]
            mine = ours(arguments.bench, model, path, arguments.seconds)
            base = mine["documents"]["mb_per_cpu_s"]
            print(f"{name}, {path.name}, {sum(len(text.encode()) for text in documents) / 1e6:.1f} MB in {len(documents)} documents")
            for what in ("documents", "one string", "documents, 2 threads", "decode"):
                print(f"  millrace {what:21} {mine[what]['mb_per_cpu_s']:8.1f} MB/s of CPU, {mine[what]['mb_per_s']:.1f} MB/s")
            for peer, encode in peers(model):
                speed, tokens = rate(encode, documents, arguments.seconds)
                whole, _ = rate(encode, ["".join(documents)], arguments.seconds)
                same = "" if tokens == mine["documents"]["tokens"] else f"  OTHER IDS: {tokens} of {mine['documents']['tokens']}"
                print(f"  {peer:30} {speed:8.1f} MB/s: millrace is {base / speed:.1f}x; one string {whole:.1f} MB/s: "
                      f"{mine['one string']['mb_per_cpu_s'] / whole:.1f}x{same}", flush=True)
        print(f"{name}, 1 MB each")
        for what, result in ours(arguments.bench, model, "pathological", arguments.seconds / 2).items():
            if what != "load":
                print(f"  millrace {what:21} {result['mb_per_cpu_s']:8.1f} MB/s of CPU")


if __name__ == "__main__":
    main()
