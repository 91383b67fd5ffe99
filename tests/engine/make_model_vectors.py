#!/usr/bin/env python3
"""Writes what transformers makes of tiny random models of every family, for model_vectors_test.

    make_model_vectors.py OUT [NAME...]    needs torch, transformers and safetensors; run once, the result is committed

Each folder is a Hugging Face model (config.json, model.safetensors) with expected.safetensors beside it: input_ids, labels
(-100 ignored; shifted for causal models), logits, loss (the sum over labels) and grad/<parameter> of that sum. Decoders have
`generated`: the tokens that greedy decoding adds to the first row. BERT has token_type_ids, row_labels, attention_mask and
documents: the bounds of what the mask lets see each other. So has GPT-2 with classes, without segments. Dropout is off.
"""
import json
import pathlib
import sys

import torch
import transformers as hf
from safetensors.torch import save_file

VOCAB = 101
DECODER = dict(bos_token_id=1, eos_token_id=2)
LLAMA = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, head_dim=4, max_position_embeddings=64, **DECODER)
WIDE = {**LLAMA, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8}  # enough pairs for a ramp
PADDED = {**LLAMA, "pad_token_id": 0}  # where a class has one of its own, outside of this vocabulary
PHI = {key: value for key, value in {**WIDE, "pad_token_id": 0}.items() if key != "head_dim"}
GPT = dict(vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=3, n_positions=64, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
           **DECODER)
BERT = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 16}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5,
             "original_max_position_embeddings": 16}
YARN_MSCALE_ROPE = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.3,
                    "truncate": False, "original_max_position_embeddings": 64}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}
# A prompt has 17 tokens: it is short for the first of these, and generation makes it long. It is long for the second.
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.3, 1.7],
             "long_factor": [1.5, 2.5, 4.0, 6.0]}
DECODERS = {
    "llama3": hf.LlamaForCausalLM(hf.LlamaConfig(
        rope_parameters=LLAMA3_ROPE, attention_bias=True, mlp_bias=True, **LLAMA)),
    "mistral": hf.MistralForCausalLM(hf.MistralConfig(rope_parameters=LINEAR_ROPE, sliding_window=5, **LLAMA)),
    "qwen2": hf.Qwen2ForCausalLM(hf.Qwen2Config(**{k: v for k, v in LLAMA.items() if k != "head_dim"})),
    "qwen3": hf.Qwen3ForCausalLM(hf.Qwen3Config(tie_word_embeddings=True, **LLAMA)),
    "gpt2": hf.GPT2LMHeadModel(hf.GPT2Config(**GPT)),
    "gptj": hf.GPTJForCausalLM(hf.GPTJConfig(rotary_dim=4, **GPT)),
    "yarn": hf.LlamaForCausalLM(hf.LlamaConfig(rope_parameters=YARN_ROPE, **WIDE)),
    "yarn_mscale": hf.Qwen3ForCausalLM(hf.Qwen3Config(rope_parameters=YARN_MSCALE_ROPE, **WIDE)),
    "dynamic": hf.LlamaForCausalLM(hf.LlamaConfig(
        rope_parameters=DYNAMIC_ROPE, **{**WIDE, "max_position_embeddings": 14})),
    "longrope_short": hf.LlamaForCausalLM(hf.LlamaConfig(
        rope_parameters={**LONG_ROPE, "factor": 4.0, "original_max_position_embeddings": 20}, **WIDE)),
    "longrope": hf.MistralForCausalLM(hf.MistralConfig(
        rope_parameters={**LONG_ROPE, "original_max_position_embeddings": 12}, sliding_window=None, **WIDE)),
    # Windows in some layers only: the last ones, by max_window_layers, and others, by layer_types.
    "qwen2_window": hf.Qwen2ForCausalLM(hf.Qwen2Config(
        use_sliding_window=True, sliding_window=5, max_window_layers=1,
        **{k: v for k, v in LLAMA.items() if k != "head_dim"})),
    "qwen3_window": hf.Qwen3ForCausalLM(hf.Qwen3Config(
        use_sliding_window=True, sliding_window=4, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        **{**LLAMA, "num_hidden_layers": 3})),
    "ministral": hf.MinistralForCausalLM(hf.MinistralConfig(
        sliding_window=5, layer_types=["sliding_attention", "full_attention"], **LLAMA)),
    "olmo2": hf.Olmo2ForCausalLM(hf.Olmo2Config(**PADDED)),
    "granite": hf.GraniteForCausalLM(hf.GraniteConfig(
        embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.6, logits_scaling=2.5, attention_bias=True,
        mlp_bias=True, **PADDED)),
    # The second layer has no positions, and a window.
    "smollm3": hf.SmolLM3ForCausalLM(hf.SmolLM3Config(
        no_rope_layer_interval=2, use_sliding_window=True, sliding_window=5, **PADDED)),
    "phi3": hf.Phi3ForCausalLM(hf.Phi3Config(sliding_window=5, **PHI)),
    "phi3_long": hf.Phi3ForCausalLM(hf.Phi3Config(
        partial_rotary_factor=0.5, original_max_position_embeddings=12, tie_word_embeddings=True,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.2], "long_factor": [1.5, 4.0]},
        **PHI)),
    "gemma2": hf.Gemma2ForCausalLM(hf.Gemma2Config(
        query_pre_attn_scalar=6, sliding_window=5, attn_logit_softcapping=3.0, final_logit_softcapping=2.0, **PADDED)),
    "gemma3": hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(
        query_pre_attn_scalar=6, sliding_window=5, layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}, **PADDED)),
    "glm4": hf.Glm4ForCausalLM(hf.Glm4Config(**{**WIDE, "pad_token_id": 0})),
}
BERTS = {
    "bert": hf.BertForPreTraining(hf.BertConfig(**BERT)),
    "bert_masked": hf.BertForMaskedLM(hf.BertConfig(**BERT)),
    "bert_classes": hf.BertForSequenceClassification(hf.BertConfig(num_labels=5, classifier_dropout=0.0, **BERT)),
}
CLASSIFIERS = {"gpt2_classes": hf.GPT2ForSequenceClassification(hf.GPT2Config(num_labels=5, pad_token_id=0, **GPT))}


def randomize(model: torch.nn.Module, folder: pathlib.Path, seed: int) -> torch.nn.Module:
    """Weights larger than at initialisation, so that every part of the model matters; eager attention, float32."""
    torch.manual_seed(seed)
    model = model.float().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale_of_norm = name.endswith("weight") and parameter.dim() == 1
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if scale_of_norm else 0.0))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return model


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.flatten(), reduction="sum")


def write(folder: pathlib.Path, model: torch.nn.Module, loss: torch.Tensor, expected: dict) -> None:
    loss.backward()
    expected["loss"] = loss.detach().reshape(1)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            expected["grad/" + name] = parameter.grad.contiguous()
    save_file({name: tensor.detach().contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors")
    print(folder.name, json.dumps({"loss": loss.item(), "bytes": sum(f.stat().st_size for f in folder.iterdir())}))


def make_decoder(folder: pathlib.Path, model: torch.nn.Module, seed: int) -> None:
    model = randomize(model, folder, seed)
    input_ids, labels = torch.randint(3, VOCAB, (2, 17)), torch.randint(3, VOCAB, (2, 17))
    labels[1, :5] = -100
    logits = model(input_ids).logits  # before generation: transformers' dynamic angles stay those of the longest sequence
    generated = model.generate(input_ids[:1], max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    write(folder, model, cross_entropy(logits, labels), {
        "input_ids": input_ids, "labels": labels, "logits": logits, "generated": generated[0, 17:]})


def make_bert(folder: pathlib.Path, model: torch.nn.Module, seed: int) -> None:
    """Two rows of 17 tokens: the second has 11, then padding. One in three tokens is masked."""
    model = randomize(model, folder, seed)
    input_ids, labels = torch.randint(3, VOCAB, (2, 17)), torch.randint(3, VOCAB, (2, 17))
    labels[torch.rand(2, 17) > 0.35] = -100
    labels[1, 11:] = -100
    segments = torch.tensor([[0] * 9 + [1] * 8, [0] * 4 + [1] * 7 + [0] * 6])
    mask = torch.ones(2, 17, dtype=torch.long)
    mask[1, 11:] = 0
    expected = {"input_ids": input_ids, "labels": labels, "token_type_ids": segments,
                "documents": torch.tensor([0, 17, 28, 34], dtype=torch.int32), "plain_logits": None}
    plain = model(input_ids)
    out = model(input_ids, attention_mask=mask, token_type_ids=segments)
    if isinstance(model, hf.BertForPreTraining):
        row_labels = torch.tensor([1, 0])
        expected["plain_logits"] = plain.prediction_logits
        loss = cross_entropy(out.prediction_logits, labels) + 2.5 * cross_entropy(out.seq_relationship_logits, row_labels)
    elif isinstance(model, hf.BertForMaskedLM):
        row_labels = torch.tensor([-100, -100])
        expected["plain_logits"] = plain.logits
        loss = cross_entropy(out.logits, labels)
    else:
        row_labels = torch.tensor([4, 2])
        expected["plain_logits"] = plain.logits
        loss = 2.5 * cross_entropy(out.logits, row_labels)
    expected["logits"] = expected.pop("plain_logits")
    write(folder, model, loss, expected | {"row_labels": row_labels})


def class_logits(model: torch.nn.Module, input_ids: torch.Tensor) -> torch.Tensor:
    """Returns the logits of rows that have no padding: a row is judged by its last token."""
    pad, model.config.pad_token_id = model.config.pad_token_id, None
    logits = torch.cat([model(row[None]).logits for row in input_ids])
    model.config.pad_token_id = pad
    return logits


def make_classifier(folder: pathlib.Path, model: torch.nn.Module, seed: int) -> None:
    """Two rows of 17 tokens: the second has 11, then padding, which transformers knows by its token."""
    model = randomize(model, folder, seed)
    input_ids, row_labels = torch.randint(3, VOCAB, (2, 17)), torch.tensor([4, 2])
    input_ids[1, 11:] = model.config.pad_token_id
    write(folder, model, 2.5 * cross_entropy(model(input_ids).logits, row_labels), {
        "input_ids": input_ids, "labels": torch.full((2, 17), -100), "row_labels": row_labels,
        "documents": torch.tensor([0, 17, 28, 34], dtype=torch.int32), "logits": class_logits(model, input_ids)})


out, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
for number, (name, model) in enumerate(DECODERS.items()):
    if not names or name in names:
        make_decoder(out / name, model, 40 + number)
for number, (name, model) in enumerate(BERTS.items()):
    if not names or name in names:
        make_bert(out / name, model, 60 + number)
for number, (name, model) in enumerate(CLASSIFIERS.items()):
    if not names or name in names:
        make_classifier(out / name, model, 70 + number)
