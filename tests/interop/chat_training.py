#!/usr/bin/env python3
"""Compares `layout: auto` with transformers, on the chat templates that trl ships.

    chat_training.py --tokens build/release/bin/conversation_tokens [--seed 1] [--count 30] [--only NAME]

Random conversations, with tools, calls, reasoning and weights, go through each template with a byte-level and a
Metaspace tokenizer. The ids equal those of apply_chat_template(tokenize=True). Of templates with {% generation %}, the
trained tokens equal return_assistant_tokens_mask. Of the others they equal what each turn adds, which this script
computes by rendering the beginnings of the conversation with transformers. Where a template changes earlier turns, they
equal the mask of its twin with {% generation %}, if both write the same ids, or the record is refused by name.

Exit status: 0 none differs, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

PEERS = pathlib.Path(os.environ.get("MILLRACE_PEERS", ""))
ROOT = pathlib.Path(__file__).resolve().parents[2]


def into_peers():
    """Goes on in the environment of the peers, which has transformers."""
    python = PEERS / "venv/bin/python"
    if not os.environ.get("MILLRACE_PEERS") or not python.exists():
        print("skipped: MILLRACE_PEERS has no venv with transformers")
        sys.exit(77)
    if pathlib.Path(sys.executable) != python:
        os.execv(python, [str(python), *sys.argv])


into_peers()
try:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import transformers.utils.chat_template_utils as chat_utils
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


class OneDay(datetime.datetime):
    """The day that templates see in training."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12)


chat_utils.datetime = OneDay

SPECIAL = re.compile(r"<\|[A-Za-z0-9_]{2,40}\|>|<｜[^｜<>]{2,40}｜>|</?(?:start_of_turn|end_of_turn|turn)>|\[/?INST\]|<\|END_OF_TURN_TOKEN\|>")
WORDS = ["the", "a", "river", "mill", "Größe", "数据", "2 + 2", "it's", "\n\n", "  spaced ", "naïve", "🙂", "x = {1: [2]};", "<b>&amp;", "end."]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Tells the \"weather\".", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def text(self):
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randrange(1, 8)))

    def record(self):
        rng, messages = self.rng, []
        if rng.random() < 0.3:
            messages.append({"role": "system", "content": self.text()})
        tools = rng.random() < 0.3
        for _ in range(rng.randrange(1, 4)):
            messages.append({"role": "user", "content": self.text()})
            if tools and rng.random() < 0.5:
                call = {"type": "function", "id": "call12345", "function": {"name": "get_weather", "arguments": {"city": self.text()}}}
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
                messages.append({"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": self.text()})
            answer = {"role": "assistant", "content": self.text()}
            if rng.random() < 0.3:
                answer["reasoning_content"] = self.text()
            messages.append(answer)
        return {"messages": messages, **({"tools": [TOOL]} if tools else {})}


def base_tokenizer(kind, texts):
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>", *(f"<0x{i:02X}>" for i in range(256))], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    # In published files the tokens of bytes are words like others.
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = [token for token in whole["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(whole))


def write_folder(folder, base, source):
    """Writes a tokenizer with the special tokens that a template names, and returns transformers' view of the folder."""
    tokenizer = Tokenizer.from_str(base.to_str())
    specials = ["<s>", "</s>", *sorted(set(SPECIAL.findall(source)))]
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in specials])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_text(source)
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>", chat_template=source), specials


def expected(peer, record, marked):
    """The ids, the text, the offsets and the mask of transformers, or the words with which the template refuses."""
    try:
        out = peer.apply_chat_template(record["messages"], tools=record.get("tools"), tokenize=True, return_dict=True,
                                       return_assistant_tokens_mask=marked)
        text = peer.apply_chat_template(record["messages"], tools=record.get("tools"), tokenize=False)
    except Exception as error:  # whatever Python raises within a template
        return {"refused": f"{type(error).__name__}: {error}"}
    offsets = peer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return {"ids": out["input_ids"], "text": text, "offsets": offsets, "mask": out.get("assistant_masks")}


def turns(peer, specials, record, text):
    """The stretches of the text that each answer adds. None: the beginnings of the conversation do not tell."""
    spans = []
    for i, message in enumerate(record["messages"]):
        if message["role"] != "assistant":
            continue
        try:
            render = lambda n, asks: peer.apply_chat_template(record["messages"][:n], tools=record.get("tools"), tokenize=False, add_generation_prompt=asks)
            asked, answered = render(i, True), render(i + 1, False)
        except Exception:
            return None
        if not text.startswith(asked) or not text.startswith(answered) or len(answered) < len(asked):
            return None
        end = len(answered.rstrip(" \t\r\n"))
        spans.append((len(asked), end if any(answered[:end].endswith(one) for one in specials) else len(answered)))
    return spans


def mask_of(spans, offsets):
    return [int(any(begin < e and s < end for s, e in spans)) for begin, end in offsets]


def mask_of_ranges(ranges, count):
    mask = [0] * count
    for begin, end in ranges:
        mask[begin:end] = [1] * (end - begin)
    return mask


class Ours:
    def __init__(self, program, folder):
        self.process = subprocess.Popen([program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.error = json.loads(self.process.stdout.readline()).get("error")

    def __call__(self, record):
        self.process.stdin.write(json.dumps(record) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    paths = sorted((PEERS / "trainers/trl/chat_templates").glob("*.jinja"))
    if not paths:
        print("skipped: the peers have no trl")
        return 77
    texts = [path.read_text()[:50_000] for path in sorted((ROOT / "docs").rglob("*.md"))[:20]]
    tally = {"equal": 0, "refused by both": 0, "refused by name": 0, "uncertain": 0, "as the twin": 0, "not supported": 0}
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in ("bytes", "metaspace"):
            base = base_tokenizer(kind, texts)
            for path in paths:
                if given.only not in path.name:
                    continue
                compare(pathlib.Path(temporary) / f"{kind}-{path.stem}", base, path, given, tally, wrong)
    print(", ".join(f"{count} {name}" for name, count in tally.items()))
    for one in wrong[:20]:
        print("differs:", one)
    enough = given.only or (tally["equal"] > given.count * len(paths) and tally["as the twin"] > 0)
    return 1 if wrong or not enough else 0


def compare(folder, base, path, given, tally, wrong):
    source = path.read_text()
    twin_path = path.with_name(path.stem + "_training.jinja")
    marked = re.search(r"\{%-?\s*generation\s*-?%\}", source) is not None
    peer, specials = write_folder(folder, base, source)
    twin = PreTrainedTokenizerFast(tokenizer_object=peer.backend_tokenizer, bos_token="<s>", eos_token="</s>",
                                   chat_template=twin_path.read_text()) if twin_path.exists() else None
    ours = Ours(given.tokens, folder)
    if ours.error:
        tally["not supported"] += 1
        print(f"{folder.name}: {ours.error}")
        ours.close()
        return
    maker = Maker(random.Random(f"{given.seed} {path.name}"))
    for number in range(given.count):
        record = maker.record()
        theirs, answer = expected(peer, record, marked), ours(record)
        name = f"{folder.name} {number}"
        broken = answer.get("broken")
        if "error" in answer:
            wrong.append(f"{name}: {answer['error']}: {json.dumps(record)}")
            break
        if "refused" in theirs:
            refused = broken is not None
            tally["refused by both"] += refused
            if not refused:
                wrong.append(f"{name}: transformers refuses it: {theirs['refused']}")
            continue
        if broken and (broken.startswith("unrendered_") or "not supported" in answer["why"]):
            tally["refused by name"] += 1
            continue
        spans = None if marked else turns(peer, specials, record, theirs["text"])
        if broken == "unmarked_answer" and spans is None and not marked:
            tally["uncertain"] += 1
            continue
        if broken:
            wrong.append(f"{name}: {broken} {answer['why']}")
            continue
        if answer["ids"] != theirs["ids"]:
            wrong.append(f"{name}: other ids: {json.dumps(record)}")
            continue
        mask = mask_of_ranges(answer["trained"], len(answer["ids"]))
        wanted, kept = theirs["mask"] if marked else None, "equal"
        if not marked and spans is not None:
            wanted = mask_of(spans, theirs["offsets"])
        elif not marked and twin is not None:
            other = expected(twin, record, True)
            if other.get("ids") == theirs["ids"]:
                wanted, kept = of_whole_characters(other["mask"], theirs["offsets"]), "as the twin"
                if frames(mask, wanted, theirs, specials):
                    wanted = mask
        if marked:
            wanted = of_whole_characters(wanted, theirs["offsets"])
        if wanted is None:
            tally["uncertain"] += 1
        elif mask == wanted:
            tally[kept] += 1
        else:
            wrong.append(f"{name}: another mask: {json.dumps(record)}\n  {marks(mask, theirs)}\n  {marks(wanted, theirs)}")
    ours.close()


def of_whole_characters(mask, offsets):
    """transformers marks only the first token of a character at the end of an answer: here all of them."""
    marked = {tuple(offset) for offset, m in zip(offsets, mask) if m}
    return [int(tuple(offset) in marked) for offset in offsets]


def frames(mask, wanted, theirs, specials):
    """Whether the twin marks nothing more than what frames an answer: white space, and in front of it the token of the role
    or the <think> with which the template asks."""
    tokens = [theirs["text"][begin:end] for begin, end in theirs["offsets"]]
    if any(m and not w for m, w in zip(mask, wanted)):
        return False
    more, position = "", 0
    for position, (m, w) in enumerate(zip(mask, wanted)):
        if w and not m:
            more += tokens[position]
            continue
        begins = m and (position == 0 or not mask[position - 1])
        for special in specials if begins else ():
            more = more.replace(special, "")
        if begins:
            more = more.replace("<think>", "")
        if more.strip():
            return False
        more = ""
    return not more.strip()


def marks(mask, theirs):
    return "".join(f"«{theirs['text'][b:e]}»" if m else theirs["text"][b:e] for m, (b, e) in zip(mask, theirs["offsets"]))[-600:].replace("»«", "").replace("\n", "⏎")


if __name__ == "__main__":
    sys.exit(main())
