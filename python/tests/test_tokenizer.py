import pickle

import numpy as np
import pytest

import millrace


def test_encodes_and_decodes(model):
    tokenizer = millrace.Tokenizer(model)
    text = "the old mill turns \u6c34\u8f66"
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert tokenizer.decode(ids) == text and tokenizer.decode(ids.tolist()) == text
    whole = tokenizer.encode(text, bos=True, eos=True)
    assert whole.tolist() == [tokenizer.bos, *ids.tolist(), tokenizer.eos]
    assert tokenizer.encode(text.encode()).tolist() == ids.tolist()
    assert len(tokenizer) == tokenizer.vocab_size == 400
    assert tokenizer.piece(tokenizer.bos) == b"<s>"
    with pytest.raises(millrace.Error):
        tokenizer.decode([400])
    with pytest.raises(TypeError):
        tokenizer.encode(7)


def test_a_batch_is_its_texts_on_any_number_of_threads(model):
    tokenizer = millrace.Tokenizer(model)
    texts = [f"{i} river mill {i * i}" for i in range(100)]
    expected = [tokenizer.encode(text, bos=True).tolist() for text in texts]
    for threads in (1, 2, 7):
        assert [ids.tolist() for ids in tokenizer.encode_batch(texts, bos=True, threads=threads)] == expected
    assert tokenizer.encode_batch([]) == []


def test_pickles(model):
    tokenizer = millrace.Tokenizer(model)
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.fingerprint == tokenizer.fingerprint


def test_ids_are_sentencepieces(model, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    with millrace.open(model) as file:
        (tmp_path / "model").write_bytes(file.read())
    peer = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "model"))
    tokenizer = millrace.Tokenizer(model)
    for text in ("", " ", "a  b", "the mill\n\tturns", "\u6c34\u8f66 \U0001f999 \x00"):
        assert tokenizer.encode(text).tolist() == peer.encode(text), repr(text)


def test_what_is_missing_is_named(endpoint):
    with pytest.raises(FileNotFoundError, match="s3://corpus/nowhere.model"):
        millrace.Tokenizer("s3://corpus/nowhere.model")


def test_a_models_name_is_answered_with_what_to_do(endpoint, corpus):
    for make in (millrace.Tokenizer, lambda name: millrace.Dataset(corpus, tokenizer=name)):
        with pytest.raises(millrace.Error, match='(?s)"gpt2": there is no such file.*hf_hub_download\\("gpt2", "tokenizer.json"\\)'):
            make("gpt2")


def test_the_url_of_a_model_is_that_of_its_tokenizer(endpoint, model):
    with millrace.open(model, "rb") as file:
        bytes_of_model = file.read()
    header = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    files = {
        "tokenizer.model": bytes_of_model,
        "config.json": b"{}",
        "model.safetensors": len(header).to_bytes(8, "little") + header + b"\x01",
    }
    for name, content in files.items():
        with millrace.open(f"s3://corpus/model/{name}", "wb") as file:
            file.write(content)
    assert millrace.Tokenizer("s3://corpus/model/").fingerprint == millrace.Tokenizer(model).fingerprint
