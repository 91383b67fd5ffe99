"""Batches of other objectives than the next token: those for BERT, and pairs of answers."""

import json

import numpy as np
import pytest

import millrace

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(60)]
PAD, CLS, SEP, MASK = 0, 2, 3, 4


@pytest.fixture(scope="module")
def bert(endpoint):
    """Returns a function that opens texts of words w0 to w59 with BERT's tokenizer."""
    draw = np.random.default_rng(5)
    texts = [" ".join(f"w{i}" for i in draw.integers(0, 60, draw.integers(4, 40))) for _ in range(120)]
    records = [{"text": text, "sentence": text, "other": texts[-1 - i], "label": ["no", "yes"][i % 2], "number": i % 3}
               for i, text in enumerate(texts)]
    with millrace.open("s3://corpus/bert/vocab.txt", "w") as file:
        file.write("".join(piece + "\n" for piece in PIECES))
    with millrace.open("s3://corpus/bert/texts.jsonl", "w") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))

    def open_with(**options):
        wanted = {"framework": "numpy", "sequence_length": 32, **options}
        return millrace.Dataset("s3://corpus/bert/texts.jsonl", "s3://corpus/bert/vocab.txt", **wanted)

    open_with.records = records
    return open_with


def test_masked_tokens_and_pairs(bert):
    data = bert(objective="mlm", batch_size=4, mlm={"max_predictions": 5})
    hidden, follows = 0, set()
    for batch in data:
        assert set(batch) == {"input_ids", "labels", "attention_mask", "token_type_ids", "next_sentence_label"}
        assert all(value.dtype == np.int64 for value in batch.values())
        assert batch["next_sentence_label"].shape == (4,)
        follows |= set(batch["next_sentence_label"].tolist())
        for row in range(4):
            ids, labels, mask, segments = (batch[name][row] for name in (
                "input_ids", "labels", "attention_mask", "token_type_ids"))
            length = int(mask.sum())
            assert mask.tolist() == [1] * length + [0] * (32 - length) and (ids[length:] == PAD).all()
            # A hidden token may have become any other token.
            first, second = np.flatnonzero((ids[:length] == SEP) & (labels[:length] == -100))
            assert ids[0] == CLS and second == length - 1
            assert segments.tolist() == [0] * (first + 1) + [1] * (second - first) + [0] * (32 - length)
            learnt = np.flatnonzero(labels != -100)
            assert 1 <= len(learnt) <= 5 and (labels[learnt] > MASK).all()
            assert not set(learnt) & {0, first, second}
            hidden += int((ids[learnt] == MASK).sum())
    assert follows == {0, 1} and hidden > 100


def test_samples_are_the_rows_of_batches(bert):
    for objective in ("mlm", "classification"):
        classes = {"classes": ["no", "yes"]}
        options = {"objective": objective, "classification": classes if objective == "classification" else None}
        rows = [{name: value[i] for name, value in batch.items()}
                for batch in bert(batch_size=5, **options) for i in range(5)]
        samples = list(bert(**options))
        assert len(samples) >= len(rows) > 50
        for row, sample, at in zip(rows, samples, range(40)):
            direct = bert(**options).sample(at) if at < 3 else sample
            assert row.keys() == sample.keys() == direct.keys()
            for name in row:
                assert np.array_equal(row[name], sample[name]) and np.array_equal(row[name], direct[name]), name
                assert isinstance(sample[name], np.ndarray)


def test_texts_without_pairs_have_no_label_of_their_own(bert):
    sample = bert(objective="mlm", mlm={"next_sentence": False}).sample(0)
    assert set(sample) == {"input_ids", "labels", "attention_mask", "token_type_ids"}
    assert not sample["token_type_ids"].any()


def test_classes_of_rows(bert):
    classification = {"text": "sentence", "pair": "other", "label": "label", "classes": ["no", "yes"]}
    data = bert(objective="classification", classification=classification, shuffle_window=0, sequence_length=128)
    samples = list(data)
    assert len(samples) == len(bert.records)
    for sample, record in zip(samples, bert.records):
        assert int(sample["labels"]) == ["no", "yes"].index(record["label"]) and sample["labels"].shape == ()
        first, second = ([PIECES.index(word) for word in record[name].split()] for name in ("sentence", "other"))
        length = int(sample["attention_mask"].sum())
        assert sample["input_ids"][:length].tolist() == [CLS, *first, SEP, *second, SEP]
        assert int(sample["token_type_ids"].sum()) == len(second) + 1
    numbered = bert(objective="classification", classification={"label": "number"}, shuffle_window=0, dtype="int32",
                    batch_size=120)
    batch = next(iter(numbered))
    assert batch["labels"].dtype == np.int32
    assert batch["labels"].tolist() == [record["number"] for record in bert.records]


def test_skipped_batches_have_the_shape_of_others(bert):
    for options in ({"objective": "mlm"}, {"objective": "classification", "classification": {"label": "number"}}):
        data = bert(batch_size=4, **options)
        position = iter(data)
        want = [next(position) for _ in range(3)]
        again = bert(batch_size=4, **options)
        again.skip_to({**data.state_dict(), "samples": 8})
        got = [batch for batch, _ in zip(again, range(3))]
        for i in range(3):
            assert got[i].keys() == want[i].keys()
            for name in want[i]:
                assert got[i][name].shape == want[i][name].shape and got[i][name].dtype == want[i][name].dtype
                assert np.array_equal(got[i][name], want[i][name]) == (i == 2 or not want[i][name].any())


@pytest.fixture(scope="module")
def pairs(endpoint, model):
    """Returns a function that opens prompts with two answers."""
    draw, words = np.random.default_rng(9), ["mill", "wheel", "river", "grain", "水车"]
    text = lambda most: " ".join(draw.choice(words, draw.integers(1, most)))
    records = [{"prompt": "the " + text(9), "chosen": " " + text(12), "rejected": " " + text(40), "worse": " no"}
               for _ in range(90)]
    # A prompt that leaves no room for an answer.
    records[7]["prompt"] = "the " + " ".join(["turning"] * 60)
    with millrace.open("s3://corpus/preferences/pairs.jsonl", "w") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))

    def open_with(**options):
        wanted = {"framework": "numpy", "sequence_length": 64, "objective": "dpo", **options}
        return millrace.Dataset("s3://corpus/preferences/pairs.jsonl", model, **wanted)

    open_with.records = records
    return open_with


def answer_of(tokenizer, prompt, answer, length):
    """Returns ids and labels by their definition: BOS, prompt and answer as one text, EOS; labels behind the prompt."""
    ids = [*tokenizer.encode(prompt + answer, bos=True, eos=True)][:length]
    asked = len(tokenizer.encode(prompt, bos=True))
    return ids, [-100] * min(asked, len(ids)) + ids[asked:]


def test_pairs_of_answers(pairs):
    keys = {f"{answer}_{name}" for answer in ("chosen", "rejected") for name in ("input_ids", "labels", "attention_mask")}
    data = pairs(shuffle_window=0)
    cut, unlearnt = 0, 0
    samples = list(data)
    assert len(samples) == len(data) == len(pairs.records)
    for sample, record in zip(samples, pairs.records):
        assert set(sample) == keys
        expected = {answer: answer_of(data.tokenizer, record["prompt"], record[answer], 32)
                    for answer in ("chosen", "rejected")}
        has_labels = all(any(label != -100 for label in labels) for _, labels in expected.values())
        for answer, (ids, labels) in expected.items():
            length = len(ids)
            got = {name: sample[f"{answer}_{name}"] for name in ("input_ids", "labels", "attention_mask")}
            assert all(value.shape == (32,) and value.dtype == np.int64 for value in got.values())
            assert got["input_ids"][:length].tolist() == ids
            assert got["attention_mask"].tolist() == [1] * length + [0] * (32 - length)
            wanted = labels if has_labels else [-100] * length
            assert got["labels"].tolist() == wanted + [-100] * (32 - length)
            cut += length == 32
        unlearnt += not has_labels
    assert cut > 10 and unlearnt == 1


def test_pairs_in_batches_shifted_and_by_other_templates(pairs):
    batches = list(pairs(batch_size=4, shuffle_window=0, dtype="int32"))
    samples = list(pairs(shuffle_window=0))
    for number, batch in enumerate(batches):
        for name, value in batch.items():
            assert value.dtype == np.int32 and value.shape == (4, 32)
            assert all(np.array_equal(value[i], samples[4 * number + i][name]) for i in range(4)), name
    shifted = pairs(shuffle_window=0, labels="shifted").sample(0)
    aligned = samples[0]
    for answer in ("chosen", "rejected"):
        assert np.array_equal(shifted[f"{answer}_labels"][:-1], aligned[f"{answer}_labels"][1:])
    record = pairs.records[3]
    data = pairs(shuffle_window=0, preference={"prompt": "Q: {prompt}\nA:", "rejected": "{worse}"})
    ids, labels = answer_of(data.tokenizer, f"Q: {record['prompt']}\nA:", " no", 32)
    assert data.sample(3)["rejected_input_ids"][:len(ids)].tolist() == ids
    assert data.sample(3)["rejected_labels"][:len(ids)].tolist() == labels


def test_pairs_of_conversations(endpoint, model):
    asked = [{"role": "user", "content": "what turns?"}]
    say = lambda text: [*asked, {"role": "assistant", "content": text}]
    with millrace.open("s3://corpus/preferences/chats.jsonl", "w") as file:
        file.write(json.dumps({"chosen": say("the mill"), "rejected": say("no idea, sorry")}) + "\n")
    with millrace.open("s3://corpus/preferences/answers.jsonl", "w") as file:
        for text in ("the mill", "no idea, sorry"):
            file.write(json.dumps({"messages": say(text)}) + "\n")
    # zephyr has no special tokens of its own, so any tokenizer can write it.
    options = {"framework": "numpy", "layout": "zephyr", "shuffle_window": 0}
    pair = millrace.Dataset("s3://corpus/preferences/chats.jsonl", model, objective="dpo", sequence_length=512, **options)[0]
    alone = millrace.Dataset("s3://corpus/preferences/answers.jsonl", model, mode="sft", sequence_length=256, **options)
    for number, answer in enumerate(("chosen", "rejected")):
        for name in ("input_ids", "labels", "attention_mask"):
            assert np.array_equal(pair[f"{answer}_{name}"], alone[number][name]), (answer, name)


def test_skipped_pairs_have_the_shape_of_others(pairs):
    data = pairs(batch_size=4)
    position = iter(data)
    want = [next(position) for _ in range(3)]
    again = pairs(batch_size=4)
    again.skip_to({**data.state_dict(), "samples": 8})
    for i, batch in enumerate(got for got, _ in zip(again, range(3))):
        assert batch.keys() == want[i].keys()
        for name in batch:
            assert batch[name].shape == want[i][name].shape and batch[name].dtype == want[i][name].dtype
            assert np.array_equal(batch[name], want[i][name]) == (i == 2)


def test_the_loss_of_pairs_with_torch(pairs):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    data = pairs(batch_size=4, framework="torch", shuffle_window=0)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=data.tokenizer.vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2))
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=None)))
    together = {name: torch.cat([batch[f"chosen_{name}"], batch[f"rejected_{name}"]])
                for name in ("input_ids", "attention_mask", "labels")}
    loss = model(**together).loss
    loss.backward()
    assert torch.isfinite(loss) and model.lm_head.weight.grad.abs().sum() > 0


def test_wrong_options_are_named(bert):
    with pytest.raises(ValueError, match="causal_lm"):
        bert(objective="bert")
    with pytest.raises(ValueError, match="mlm has no probabilty; it has probability"):
        bert(objective="mlm", mlm={"probabilty": 0.1})
    with pytest.raises(ValueError, match="preference has no choosen; it has prompt, chosen, rejected"):
        bert(objective="dpo", preference={"choosen": "{text}"})
    with pytest.raises(ValueError, match="never shifted"):
        bert(objective="mlm", labels="shifted")


def test_transformers_take_the_batches(bert):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                     intermediate_size=32, num_labels=3)
    torch.manual_seed(1)
    batch = next(iter(bert(objective="mlm", batch_size=4, framework="torch")))
    assert torch.isfinite(transformers.BertForPreTraining(config)(**batch).loss)
    data = bert(objective="classification", classification={"label": "number"}, framework="torch")
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=6)))
    assert batch["labels"].shape == (6,)
    assert torch.isfinite(transformers.BertForSequenceClassification(config)(**batch).loss)
