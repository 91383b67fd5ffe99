#!/usr/bin/env python3
"""GGUF files against the Python package `gguf` of llama.cpp, and against transformers.

    gguf_files.py --millrace build/release/bin/millrace

A Llama, a Qwen2, a Qwen3 and a GPT-2 of random weights are exported in every type. The package's reader must find the bytes that its
quantizer makes of the weights. transformers loads the file, and computes the same logits as the model that Millrace
imports from it. Files that the package writes are imported, with blocks of every type that can be read.

Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
PEERS = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent")) / "venv/bin/python"
if PEERS.exists() and pathlib.Path(sys.executable) != PEERS and "MILLRACE_IN_VENV" not in os.environ:
    os.environ["MILLRACE_IN_VENV"] = "1"
    os.execv(PEERS, [str(PEERS), *sys.argv])
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error")
VOCAB, LAYERS = 64, 2
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")


def need(*modules):
    try:
        return [__import__(module) for module in modules]
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(SKIPPED)


gguf, numpy, torch, transformers = need("gguf", "numpy", "torch", "transformers")
LLAMA = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=48)
# transformers reads neither the vocabulary nor the positions of GPT-2 from a file: they are those of its default.
GPT2 = dict(vocab_size=50257, n_embd=64, n_layer=LAYERS, n_head=4, n_positions=1024)
# Names in files, as convert_hf_to_gguf.py has them, and whether rows are turned ("q", "k") or the matrix is transposed ("t").
LLAMA_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
GPT2_NAMES = {"token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f"}
LLAMA_BLOCK = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
               "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
QWEN3_BLOCK = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GPT2_BLOCK = {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
              "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}


class Model:
    def __init__(self, millrace, folder, name, model):
        torch.manual_seed(4)
        self.millrace, self.folder, self.name, self.llama = millrace, folder, name, "gpt2" not in name
        self.architecture = name.split("-")[0]
        self.config = model.config
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3)
        self.weights = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
        model.save_pretrained(folder / name)
        self.ckpt("import", folder / name, folder / f"{name}-run")

    def ckpt(self, *arguments):
        done = subprocess.run([self.millrace, "ckpt", *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, (arguments, done.stderr)

    def tensors(self):
        """The weights by their names in GGUF files, in that layout."""
        names = dict(LLAMA_NAMES if self.llama else GPT2_NAMES)
        for layer in range(LAYERS):
            for gguf_name, name in (LLAMA_BLOCK | QWEN3_BLOCK if self.llama else GPT2_BLOCK).items():
                names[f"blk.{layer}.{gguf_name}"] = f"{'model.layers' if self.llama else 'transformer.h'}.{layer}.{name}"
        made = {}
        for gguf_name, name in names.items():
            for part in ("weight", "bias"):
                if f"{name}.{part}" not in self.weights:
                    continue
                values = self.weights[f"{name}.{part}"]
                if name.endswith(("q_proj", "k_proj")) and self.architecture == "llama":
                    heads = self.config.num_attention_heads if "q_proj" in name else self.config.num_key_value_heads
                    values = values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)
                if part == "weight" and name.endswith(("c_attn", "c_proj", "c_fc")):
                    values = values.T
                made[f"{gguf_name}.{part}"] = numpy.ascontiguousarray(values)
        return made

    def check_file(self, path, kind):
        """The package's reader finds all tensors, with the bytes of its own quantizer."""
        reader = gguf.GGUFReader(path)
        expected = self.tensors()
        assert {tensor.name for tensor in reader.tensors} == expected.keys(), path
        for tensor in reader.tensors:
            values = expected[tensor.name]
            keeps = values.ndim == 1 or tensor.name == "position_embd.weight"
            wanted = gguf.GGMLQuantizationType.F32 if keeps else gguf.GGMLQuantizationType[kind.upper()]
            assert tensor.tensor_type == wanted, (tensor.name, tensor.tensor_type)
            assert list(tensor.shape) == list(values.shape[::-1]), (tensor.name, tensor.shape)
            assert tensor.data.tobytes() == gguf.quants.quantize(values, wanted).tobytes(), (path, tensor.name)
        return reader

    def check_logits(self, path):
        """transformers' reading of the file and Millrace's are one model."""
        ids = torch.arange(3, 3 + 30)[None] % VOCAB
        theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        run, back = path.with_suffix(".run"), path.with_suffix(".hf")
        self.ckpt("import", path, run)
        self.ckpt("export", run, back)
        ours = transformers.AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32)
        with torch.no_grad():
            want, got = theirs.eval()(ids).logits, ours.eval()(ids).logits
        error = ((got - want).norm() / want.norm()).item()
        assert error < 1e-6, (path, error)
        for key in ("max_position_embeddings", "num_hidden_layers", "tie_word_embeddings"):
            assert getattr(ours.config, key) == getattr(self.config, key), key
        return error

    def write(self, path, theta=10000.0, rope_freqs=None):
        """The file that the package writes."""
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_vocab_size(self.config.vocab_size)
        writer.add_context_length(self.config.max_position_embeddings)
        writer.add_embedding_length(64)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(96 if self.llama else 256)
        writer.add_head_count(self.config.num_attention_heads)
        if self.llama:
            writer.add_head_count_kv(self.config.num_key_value_heads)
            writer.add_key_length(getattr(self.config, "head_dim", None) or 16)
            writer.add_layer_norm_rms_eps(self.config.rms_norm_eps)
            writer.add_rope_freq_base(theta)
        else:
            writer.add_layer_norm_eps(self.config.layer_norm_epsilon)
        writer.add_tags(["a", "b"])
        if rope_freqs is not None:
            writer.add_tensor("rope_freqs.weight", rope_freqs)
        for number, (name, values) in enumerate(self.tensors().items()):
            kind = [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.F16][number % 3]
            kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 or "position" in name else kind
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


# Where a block has its halves, which random bytes would make infinite.
SCALES = {"Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2),
          "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": ()}


def check_blocks(millrace, folder):
    """Blocks of random bytes, of each type that is only read, have the values that the package finds in them."""
    random = numpy.random.default_rng(5)
    config = transformers.LlamaConfig(**LLAMA | dict(hidden_size=256, intermediate_size=512, max_position_embeddings=16))
    for kind, scales in SCALES.items():
        model = Model(millrace, folder, f"llama-{kind}", transformers.LlamaForCausalLM(config))
        number = gguf.GGMLQuantizationType[kind]
        elements, size = gguf.GGML_QUANT_SIZES[number]
        path, values = folder / f"{kind}.gguf", {}
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(16)
        writer.add_embedding_length(256)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(512)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        for name, tensor in model.tensors().items():
            if tensor.ndim == 1:
                writer.add_tensor(name, tensor)
                continue
            rows, columns = tensor.shape
            blocks = random.integers(0, 256, (rows * columns // elements, size), dtype=numpy.uint8)
            for at in scales:
                halves = random.uniform(-0.1, 0.1, len(blocks)).astype(numpy.float16)
                blocks[:, at:at + 2] = halves.view(numpy.uint8).reshape(-1, 2)
            if kind == "MXFP4":
                blocks[:, 0] = random.choice([0, 1, 2, 120, 128, 130], len(blocks))
            stored = blocks.reshape(rows, -1)
            values[name] = gguf.quants.dequantize(stored, number).reshape(rows, columns)
            writer.add_tensor(name, stored, raw_dtype=number)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        run = path.with_suffix(".run")
        model.ckpt("import", path, run)
        model.ckpt("export", run, folder / f"{kind}-f32.gguf", "--type", "f32")
        read = {tensor.name: tensor.data for tensor in gguf.GGUFReader(folder / f"{kind}-f32.gguf").tensors}
        for name, wanted in values.items():
            assert numpy.array_equal(read[name].reshape(wanted.shape), wanted), (kind, name)
        print(f"ok: {kind}: {sum(map(numpy.size, values.values()))} numbers are those of the package")


def check_rope(millrace, folder):
    """Llama 3's scaling of positions is read back from the factors in a file of the package."""
    for factor, original, head_dim in ((8.0, 8192, 128), (32.0, 8192, 64), (4.0, 4096, 128)):
        scaling = dict(rope_type="llama3", rope_theta=500000.0, factor=factor, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=original)
        config = transformers.LlamaConfig(**LLAMA | dict(head_dim=head_dim, num_attention_heads=2, num_key_value_heads=1,
                                                         max_position_embeddings=131072, rope_parameters=scaling))
        name = f"llama-rope-{factor:g}-{original}"
        model = Model(millrace, folder, name, transformers.LlamaForCausalLM(config))
        # As convert_hf_to_gguf.py: what each frequency is divided by.
        plain = 1 / 500000.0 ** (torch.arange(0, head_dim, 2).float() / head_dim)
        scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        factors = (plain / scaled).numpy()
        exported = folder / f"{name}.gguf"
        model.ckpt("export", folder / f"{name}-run", exported)
        (stored,) = [tensor for tensor in gguf.GGUFReader(exported).tensors if tensor.name == "rope_freqs.weight"]
        numpy.testing.assert_allclose(stored.data, factors, rtol=2e-5)
        written = folder / f"{name}-written.gguf"
        model.write(written, theta=500000.0, rope_freqs=factors)
        for path in (exported, written):
            run, back = path.with_suffix(".run"), path.with_suffix(".hf")
            model.ckpt("import", path, run)
            model.ckpt("export", run, back)
            got = transformers.AutoConfig.from_pretrained(back).rope_parameters
            assert {key: got[key] for key in scaling} == scaling, got
            theirs, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](
                transformers.AutoConfig.from_pretrained(back), torch.device("cpu"))
            assert torch.equal(theirs, scaled)
        print(f"ok: positions of Llama 3 scaled by {factor:g} from {original}")


def check_tokenizer(model):
    """The vocabulary goes into the file and comes back."""
    (sentencepiece,) = need("sentencepiece")
    text = model.folder / "text.jsonl"
    text.write_text("".join(f'{{"text": "the mill grinds grain number {i} into fine flour"}}\n' for i in range(200)))
    trained = model.folder / "run-with-tokenizer/tokenizer.model"
    trained.parent.mkdir()
    subprocess.run([model.millrace, "tokenizer", "train", "--input", text, "--vocab-size", "300", "--output", trained],
                   check=True, capture_output=True)
    folder = model.folder / "with-tokenizer"
    config = transformers.LlamaConfig(**{**LLAMA, "vocab_size": 310})
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(trained.read_bytes())
    model.ckpt("import", folder, model.folder / "t-run")
    model.ckpt("export", model.folder / "t-run", model.folder / "t.gguf")
    reader = gguf.GGUFReader(model.folder / "t.gguf")
    before = sentencepiece.SentencePieceProcessor(model_file=str(trained))
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    scores = reader.fields["tokenizer.ggml.scores"].contents()
    count = before.vocab_size()
    assert tokens[:count] == [before.id_to_piece(i) for i in range(count)] and len(tokens) == 310
    assert scores[:count] == [before.get_score(i) for i in range(count)]
    model.ckpt("import", model.folder / "t.gguf", model.folder / "t-again")
    model.ckpt("export", model.folder / "t-again", model.folder / "t-hf")
    after = sentencepiece.SentencePieceProcessor(model_file=str(model.folder / "t-hf/tokenizer.model"))
    for sample in ("the mill grinds", "  two  spaces", "naïve 😀", ""):
        assert after.encode(sample) == before.encode(sample), sample
    print("ok: a vocabulary of SentencePiece")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millrace", required=True)
    millrace = str(pathlib.Path(parser.parse_args().millrace).resolve())
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        models = [Model(millrace, folder, "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))),
                  Model(millrace, folder, "qwen2", transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA))),
                  Model(millrace, folder, "qwen3", transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA | dict(head_dim=128)))),
                  Model(millrace, folder, "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)))]
        for model in models:
            for kind in TYPES:
                path = folder / f"{model.name}-{kind}.gguf"
                model.ckpt("export", folder / f"{model.name}-run", path, "--type", kind)
                model.check_file(path, kind)
                print(f"ok: {model.name} {kind}: logits differ by {model.check_logits(path):.1e}")
            path = folder / f"{model.name}-written.gguf"
            model.write(path)
            print(f"ok: {model.name} of the package: logits differ by {model.check_logits(path):.1e}")
        check_blocks(millrace, folder)
        check_rope(millrace, folder)
        check_tokenizer(models[0])


if __name__ == "__main__":
    sys.exit(main())
