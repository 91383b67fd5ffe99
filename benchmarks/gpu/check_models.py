#!/usr/bin/env python3
"""Compares the models of torch_models.py with transformers', at small sizes on the CPU: the same weights, loss and gradients.

    check_models.py         # python3 has torch and transformers
"""
import re

import torch
import transformers

import torch_decode
import torch_models

SMALL = {
    "llama": torch_models.Config("llama", 32, 88, 2, 4, 101, 24, kv_heads=2),
    "gpt2": torch_models.Config("gpt2", 32, 128, 2, 4, 101, 24, positions=32),
    "gptj": torch_models.Config("gptj", 32, 128, 2, 4, 101, 24, rotary=4),
    "bert": torch_models.Config("bert", 32, 128, 2, 4, 101, 24, positions=32),
}


def theirs(c):
    common = {"vocab_size": c.vocab}
    if c.family == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=c.hidden, intermediate_size=c.intermediate, num_hidden_layers=c.layers, num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads, rms_norm_eps=1e-5, **common))
    if c.family == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=c.hidden, n_layer=c.layers, n_head=c.heads, n_positions=c.positions, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0, **common))
    if c.family == "gptj":
        return transformers.GPTJForCausalLM(transformers.GPTJConfig(
            n_embd=c.hidden, n_layer=c.layers, n_head=c.heads, rotary_dim=c.rotary, n_positions=64, **common))
    return transformers.BertForPreTraining(transformers.BertConfig(
        hidden_size=c.hidden, intermediate_size=c.intermediate, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        max_position_embeddings=c.positions, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **common))


def pairs(c, w):
    """Yields our parameter's name and its tensor, made of transformers' `w`."""
    def linear(ours, names, transposed=False):
        yield ours + ".weight", torch.cat([w[n + ".weight"].T if transposed else w[n + ".weight"] for n in names])
        if names[0] + ".bias" in w:
            yield ours + ".bias", torch.cat([w[n + ".bias"] for n in names])

    for i in range(c.layers):
        if c.family == "llama":
            at = f"model.layers.{i}."
            parts = {"norm1": ["input_layernorm"], "norm2": ["post_attention_layernorm"],
                     "qkv": [f"self_attn.{x}_proj" for x in "qkv"], "o": ["self_attn.o_proj"],
                     "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}
        elif c.family == "gpt2":
            at = f"transformer.h.{i}."
            parts = {"norm1": ["ln_1"], "norm2": ["ln_2"], "qkv": ["attn.c_attn"], "o": ["attn.c_proj"], "up": ["mlp.c_fc"],
                     "down": ["mlp.c_proj"]}
        elif c.family == "gptj":
            at = f"transformer.h.{i}."
            parts = {"norm": ["ln_1"], "qkv": [f"attn.{x}_proj" for x in "qkv"], "o": ["attn.out_proj"], "up": ["mlp.fc_in"],
                     "down": ["mlp.fc_out"]}
        else:
            at = f"bert.encoder.layer.{i}."
            parts = {"qkv": [f"attention.self.{x}" for x in ("query", "key", "value")], "o": ["attention.output.dense"],
                     "norm1": ["attention.output.LayerNorm"], "up": ["intermediate.dense"], "down": ["output.dense"],
                     "norm2": ["output.LayerNorm"]}
        for ours, names in parts.items():
            transposed = c.family == "gpt2" and "norm" not in ours  # Conv1D
            yield from linear(f"blocks.{i}.{ours}", [at + name for name in names], transposed)
    whole = {"llama": {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
             "gpt2": {"embed": "transformer.wte", "positions": "transformer.wpe", "norm": "transformer.ln_f"},
             "gptj": {"embed": "transformer.wte", "norm": "transformer.ln_f", "head": "lm_head"},
             "bert": {"embed": "bert.embeddings.word_embeddings", "positions": "bert.embeddings.position_embeddings",
                      "segments": "bert.embeddings.token_type_embeddings", "norm": "bert.embeddings.LayerNorm",
                      "transform": "cls.predictions.transform.dense", "transform_norm": "cls.predictions.transform.LayerNorm",
                      "pooler": "bert.pooler.dense", "next": "cls.seq_relationship"}}[c.family]
    for ours, name in whole.items():
        yield from linear(ours, [name])
    if c.family == "bert":
        yield "head.bias", w["cls.predictions.bias"]


def compare(c, recompute, chunks):
    torch.manual_seed(3)
    peer = theirs(c)
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model = torch_models.make_model(c, c.length, torch.float32, recompute, chunks)
    own = dict(model.named_parameters())
    seen = {id(parameter) for parameter in own.values()}
    with torch.no_grad():
        for name, value in pairs(c, peer.state_dict()):
            own[name][:len(value)] = value
            seen.discard(id(own[name]))
    assert not seen, "some parameters have no counterpart"
    batch = torch_models.random_batch(c, 2, c.length, "cpu")
    loss = model(*batch)
    if c.family == "bert":
        ids, segments, where, labels, follows = batch
        all_labels = torch.full((ids.numel(),), -100)
        all_labels[where] = labels
        other = peer(input_ids=ids, token_type_ids=segments, labels=all_labels.view_as(ids), next_sentence_label=follows).loss
    else:
        ids, labels = batch
        logits = peer(input_ids=ids).logits
        other = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, other, rtol=2e-6, atol=0)
    loss.backward()
    other.backward()
    for name, gradient in pairs(c, {n: p.grad for n, p in peer.named_parameters()}):
        torch.testing.assert_close(own[name].grad[:len(gradient)], gradient, rtol=1e-4, atol=2e-5, msg=lambda m: f"{name}: {m}")
    print(f"{c.family}, recompute {recompute}, chunks {chunks}: loss {loss.item():.6f}, as transformers; gradients agree")


def compare_decoding(c):
    torch.manual_seed(4)
    peer = theirs(c).eval()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    decoder = torch_decode.Decoder(c, 3, 20, torch.float32)
    own = dict(decoder.named_parameters())
    with torch.no_grad():
        for name, value in pairs(c, peer.state_dict()):
            own[re.sub(r"^(blocks\.\d+)", r"\1.block", name)].copy_(value)
        prompt = torch.randint(c.vocab, (3, 8))
        ids, _, _ = torch_decode.decode(decoder, prompt, 12, None)
        other = peer.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, min_new_tokens=12, max_new_tokens=12,
                              pad_token_id=0)
    assert torch.equal(ids, other[:, 8:]), (ids, other)
    print("gptj: decodes the same 12 ids as generate()")


for config in SMALL.values():
    compare(config, 0, 1)
    compare(config, 1, 1 if config.family == "bert" else 3)
compare_decoding(SMALL["gptj"])
