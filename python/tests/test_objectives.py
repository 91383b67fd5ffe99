"""Batches for BERT: masked tokens, pairs of texts, classes of rows."""

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


def test_wrong_options_are_named(bert):
    with pytest.raises(ValueError, match="causal_lm"):
        bert(objective="bert")
    with pytest.raises(ValueError, match="mlm has no probabilty; it has probability"):
        bert(objective="mlm", mlm={"probabilty": 0.1})
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
