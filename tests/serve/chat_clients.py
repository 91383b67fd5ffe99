#!/usr/bin/env python3
"""Talks to `millrace serve` with OpenAI's own client, and compares the answers with transformers'.

    chat_clients.py --millrace build/release/bin/millrace

The model is a small random one with a chat template. Prompts must have the tokens that transformers' apply_chat_template
gives, and greedy answers its text. Embeddings of decoders and of a BERT are those of transformers' hidden states.

Exit status: 0 all agree, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PEERS = pathlib.Path(os.environ.get("MILLRACE_PEERS", ""))
TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\\nTools: ' + tools | tojson + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
TALK = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "The mill, the race: größer?"},
        {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "And the water"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "a \"b\"", "parameters": {"type": "object", "properties": {}}}}]


def into_peers():
    python = PEERS / "venv/bin/python"
    if not os.environ.get("MILLRACE_PEERS") or not python.exists():
        print("skipped: MILLRACE_PEERS has no venv with openai, torch and transformers")
        sys.exit(77)
    if pathlib.Path(sys.executable) != python:
        os.execv(python, [str(python), *sys.argv])


into_peers()
try:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import openai
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def make_tokenizer():
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([m["content"] for m in TALK] * 20, trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                                additional_special_tokens=["<|im_start|>", "<|im_end|>"])
    fast.chat_template = TEMPLATE
    return fast


def make_model(family, vocab):
    torch.manual_seed(7)
    common = dict(vocab_size=vocab, bos_token_id=0, eos_token_id=1)
    gpt = dict(n_embd=64, n_layer=2, n_head=4, n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common)
    model = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, initializer_range=0.3, **common)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(initializer_range=0.2, **gpt)),
        "gptj": lambda: transformers.GPTJForCausalLM(transformers.GPTJConfig(rotary_dim=8, initializer_range=0.2, **gpt)),
    }[family]().eval()
    model.generation_config.eos_token_id = [1, 3]  # </s> and <|im_end|>
    return model


class Server:
    def __init__(self, program, model, folder, *flags):
        self.port_file = folder / "port"
        self.port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen([program, "serve", str(model), "--name", "small", "--listen", "127.0.0.1:0", "--port-file",
                                         str(self.port_file), "--threads", "1", "--device", "cpu", *flags])

    def __enter__(self):
        deadline = time.monotonic() + 60
        while not self.port_file.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, "millrace serve did not start"
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(60) == 0

    def client(self, key="none"):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port_file.read_text().strip()}/v1", api_key=key, max_retries=0)


def refused(error, call, says):
    try:
        call()
    except error as refusal:
        assert says in str(refusal), refusal
        return
    raise AssertionError(f"no {error.__name__}")


def check_conversations(client, model, tokenizer, rounds):
    for length in range(2, 2 + rounds):
        talk, tools = TALK[-length:], TOOLS if length == 2 else None
        prompt = tokenizer.apply_chat_template(talk, tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**prompt, do_sample=False, max_new_tokens=40, pad_token_id=0)[0, prompt["input_ids"].shape[1]:]
        expected = tokenizer.decode(made, skip_special_tokens=True)
        ended = made[-1].item() in (1, 3)
        extra = {"tools": tools} if tools else {}
        answer = client.chat.completions.create(model="small", messages=talk, temperature=0, max_tokens=40, logprobs=True, top_logprobs=2, **extra)
        choice = answer.choices[0]
        assert choice.message.content == expected, (choice.message.content, expected)
        assert choice.message.role == "assistant" and choice.finish_reason == ("stop" if ended else "length"), choice
        assert answer.usage.prompt_tokens == prompt["input_ids"].shape[1], answer.usage
        with torch.no_grad():
            logits = model(prompt["input_ids"]).logits[0, -1].log_softmax(-1)
        assert abs(choice.logprobs.content[0].logprob - logits.max().item()) < 1e-4, choice.logprobs.content[0]
        assert [round(each.logprob, 3) for each in choice.logprobs.content[0].top_logprobs] == [round(x, 3) for x in logits.topk(2).values.tolist()]
        pieces, finish, usage = [], None, None
        for chunk in client.chat.completions.create(model="small", messages=talk, temperature=0, max_completion_tokens=40, stream=True,
                                                    stream_options={"include_usage": True}, **extra):
            usage = chunk.usage or usage
            for each in chunk.choices:
                pieces.append(each.delta.content or "")
                finish = each.finish_reason or finish
        assert "".join(pieces) == expected and finish == choice.finish_reason, (pieces, finish)
        assert usage.total_tokens == answer.usage.total_tokens and usage.prompt_tokens_details.cached_tokens > 0, usage
        # The same conversation as a response, and its prompt as a completion.
        response = client.responses.create(model="small", input=talk, temperature=0, max_output_tokens=40,
                                           tools=[{"type": "function", **tool["function"]} for tool in tools or []])
        assert response.output_text == expected and response.usage.total_tokens == answer.usage.total_tokens, response
        events = list(client.responses.create(model="small", input=talk, temperature=0, max_output_tokens=40, stream=True))
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == events[-1].response.output_text
        assert events[-1].type in ("response.completed", "response.incomplete"), events[-1]
        text = tokenizer.apply_chat_template(talk, tools=tools, add_generation_prompt=True, tokenize=False)
        completion = client.completions.create(model="small", prompt=text, temperature=0, max_tokens=40)
        assert completion.choices[0].text == expected and completion.usage.prompt_tokens == answer.usage.prompt_tokens, completion
        echoed = client.completions.create(model="small", prompt=prompt["input_ids"][0].tolist(), max_tokens=0, echo=True, logprobs=1)
        with torch.no_grad():
            scores = model(prompt["input_ids"]).logits[0, :-1].log_softmax(-1).gather(1, prompt["input_ids"][0, 1:, None])[:, 0].tolist()
        told = echoed.choices[0].logprobs.token_logprobs
        assert told[0] is None and all(abs(a - b) < 1e-3 for a, b in zip(told[1:], scores, strict=True)), (told, scores)


def make_bert(folder):
    from tokenizers import models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "mill", "race", "water", "##s", "runs"]
    tokenizer = tokenizers.Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                                                     pad_token="[PAD]")
    torch.manual_seed(3)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                                                           intermediate_size=64, max_position_embeddings=64, initializer_range=0.3)).eval()
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return model, tokenizer


def expected_vector(model, tokenizer, text, pool):
    encoder = getattr(model, "base_model", model)
    with torch.no_grad():
        hidden = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden.mean(0), dim=0) if pool == "mean" else hidden[0]


def check_embeddings(client, model, tokenizer, pool="mean"):
    texts = ["the mill race", "water", "the waters of the mill " * 3]
    answer = client.embeddings.create(model="small", input=texts)
    floats = client.embeddings.create(model="small", input=texts, encoding_format="float")
    for text, each, same in zip(texts, answer.data, floats.data):
        expected = expected_vector(model, tokenizer, text, pool)
        assert torch.allclose(torch.tensor(each.embedding), expected, atol=2e-5), (text, each.embedding[:4], expected[:4])
        assert torch.equal(torch.tensor(each.embedding), torch.tensor(same.embedding)), text
    assert answer.usage.prompt_tokens == sum(len(tokenizer(text)["input_ids"]) for text in texts), answer.usage
    ids = tokenizer(texts[0])["input_ids"]
    assert torch.equal(torch.tensor(client.embeddings.create(model="small", input=ids).data[0].embedding), torch.tensor(answer.data[0].embedding))
    short = torch.tensor(client.embeddings.create(model="small", input=texts[0], dimensions=16).data[0].embedding)
    assert torch.allclose(short, torch.nn.functional.normalize(torch.tensor(answer.data[0].embedding)[:16], dim=0), atol=1e-6)
    refused(openai.BadRequestError, lambda: client.embeddings.create(model="small", input="a", dimensions=4096), "elements")


def check_bert(millrace, folder):
    model, tokenizer = make_bert(folder / "bert")
    with Server(millrace, folder / "bert", folder) as server:
        check_embeddings(server.client(), model, tokenizer)
        refused(openai.BadRequestError, lambda: server.client().completions.create(model="small", prompt="the"), "embeddings")
    (folder / "bert/1_Pooling").mkdir()
    (folder / "bert/1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 48, "pooling_mode_cls_token": True,
                                                                   "pooling_mode_mean_tokens": False}))
    (folder / "bert/modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    with Server(millrace, folder / "bert", folder) as server:
        check_embeddings(server.client(), model, tokenizer, pool="cls")
    print("bert: embeddings as transformers'")


def check_tools(client):
    """Calls that the server forces, with any model: their arguments follow the schema."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Bern", "Chur"]}, "days": {"type": "integer"}}, "required": ["city", "days"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}, {"type": "function", "function": {"name": "time"}}]
    ask = lambda **options: client.chat.completions.create(model="small", messages=TALK[-1:], tools=tools, max_tokens=200, seed=3, **options)
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        made = ask(tool_choice=choice).choices[0]
        call = made.message.tool_calls[0]
        assert made.finish_reason == ("tool_calls" if choice == "required" else "stop") and made.message.content is None, made
        assert call.function.name in ("weather", "time") and call.type == "function" and call.id, call
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "time" or arguments["city"] in ("Bern", "Chur"), arguments
        name, text, ids = "", "", []
        for chunk in ask(tool_choice=choice, stream=True):
            for part in chunk.choices[0].delta.tool_calls or []:
                ids += [part.id] if part.id else []
                name += part.function.name or ""
                text += part.function.arguments
        assert (name, text, len(ids)) == (call.function.name, call.function.arguments, 1), (name, text, ids)
    # The answer to a call goes on.
    talk = [TALK[-1], {"role": "assistant", "content": "", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "cold"}]
    assert client.chat.completions.create(model="small", messages=talk, tools=tools, max_tokens=4).choices
    texts = {}
    for chunk in client.chat.completions.create(model="small", messages=TALK, n=3, max_tokens=6, stream=True, temperature=1.5):
        for each in chunk.choices:
            texts[each.index] = texts.get(each.index, "") + (each.delta.content or "")
    assert sorted(texts) == [0, 1, 2], texts
    best = client.completions.create(model="small", prompt="the mill", max_tokens=4, n=2, best_of=5, logprobs=0)
    scores = [sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs) for choice in best.choices]
    assert len(scores) == 2 and scores[0] >= scores[1], scores


def check_options(client, tokenizer):
    ask = lambda **options: client.chat.completions.create(model="small", messages=TALK, max_tokens=12, **options)
    several = ask(n=3, seed=5, temperature=1.5)
    assert len({choice.message.content for choice in several.choices}) > 1, "each of them draws by itself"
    assert [c.message.content for c in ask(n=3, seed=5, temperature=1.5).choices] == [c.message.content for c in several.choices]
    likeliest = lambda **options: ask(temperature=0, logprobs=True, **options).choices[0].logprobs.content[0].token
    first = likeliest()
    ids = [id for id in range(len(tokenizer)) if tokenizer.decode([id]) == first]
    assert ids and likeliest(logit_bias={str(id): -100 for id in ids}) != first, first
    assert ask(temperature=0, presence_penalty=2, frequency_penalty=2, extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2})
    completion = client.completions.create(model="small", prompt=["the mill", [5, 6]], max_tokens=4, temperature=0, logprobs=2, n=2)
    assert len(completion.choices) == 4 and len(completion.choices[0].logprobs.tokens) == 4, completion
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"},
                                               "next": {"enum": ["a", None]}}, "required": ["ok", "next"]}
    for seed in range(5):
        made = client.chat.completions.create(model="small", messages=TALK, max_tokens=200, seed=seed, temperature=1.2, response_format={
            "type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}).choices[0]
        value = json.loads(made.message.content)
        assert made.finish_reason == "stop" and set(value) - {"name"} == {"ok", "next"}, made
    refused(openai.BadRequestError, lambda: ask(extra_body={"guided_json": {"not": {"const": 1}}}), '"not"')
    for seed in range(5):
        said = ask(seed=seed, temperature=1.2, extra_body={"guided_json": {"type": "integer", "minimum": 7, "maximum": 12}})
        assert 7 <= int(said.choices[0].message.content) <= 12, said
    assert ask(extra_body={"guided_choice": ["Zürich", "Basel"]}).choices[0].message.content in ("Zürich", "Basel")
    assert [model.id for model in client.models.list()] == ["small"]
    refused(openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-4", messages=TALK), "does not exist")
    refused(openai.BadRequestError, lambda: ask(extra_body={"temprature": 1}), "did you mean")
    refused(openai.BadRequestError, lambda: client.chat.completions.create(model="small", messages=[{"role": "user", "content": "x " * 2000}]),
            "context is 512 tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    tokenizer = make_tokenizer()
    with tempfile.TemporaryDirectory(prefix="millrace-chat-") as work:
        folder = pathlib.Path(work)
        for family in ("llama", "gpt2", "gptj"):
            model = make_model(family, len(tokenizer))
            tokenizer.save_pretrained(folder / family)
            model.save_pretrained(folder / family)
            with Server(arguments.millrace, folder / family, folder) as server:
                check_conversations(server.client(), model, tokenizer, rounds=3)
                check_embeddings(server.client(), model, tokenizer)
                if family == "llama":
                    check_options(server.client(), tokenizer)
                    check_tools(server.client())
            print(f"{family}: answers as transformers'")
        check_bert(arguments.millrace, folder)
        keys = folder / "keys"
        keys.write_text("0123456789abcdef0123456789abcdef\n")
        keys.chmod(0o600)
        with Server(arguments.millrace, folder / "llama", folder, "--api-key-file", str(keys)) as server:
            refused(openai.AuthenticationError, lambda: server.client().models.list(), "wants a key")
            assert server.client(keys.read_text().strip()).models.list().data
    print("keys: without one, nothing")


if __name__ == "__main__":
    main()
