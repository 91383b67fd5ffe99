#!/usr/bin/env python3
"""Trains a tiny Llama with transformers' Trainer on JSON-lines records of a bucket, in padded samples, one a record.

The recipe is the usual one for streamed data (load_dataset(..., streaming=True), shuffle(10000), map(tokenize and pad), a
step count worked out by hand); three lines of it are other ones here, marked with "here:". What that gives: exact shuffling
over the whole data, a known length, no tokenizing in Python, and a resume that starts at once.

    python train.py 's3://corpus/wiki/*.jsonl' s3://models/tokenizer.model
    python train.py 's3://corpus/wiki/*.jsonl' s3://models/tokenizer.model --resume out/checkpoint-50
"""

import argparse

import transformers

import millrace  # here: instead of datasets


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("data", help="object, prefix or glob of JSON-lines records")
    flags.add_argument("tokenizer", help="URL of the tokenizer's model")
    flags.add_argument("--template", default="{title}\n\t\t{text}\n\n", help="fields in braces")
    flags.add_argument("--sequence-length", type=int, default=256)
    flags.add_argument("--epochs", type=float, default=1)
    flags.add_argument("--output", default="out")
    flags.add_argument("--resume", help="a checkpoint folder")
    options = flags.parse_args()

    # here: instead of load_dataset, shuffle, map, and the count of steps
    data = millrace.Dataset(
        options.data,
        tokenizer=options.tokenizer,
        template=options.template.replace("\\n", "\n").replace("\\t", "\t"),
        sequence_length=options.sequence_length,
        mode="pad",
    )
    print(f"{data.records:,} records, {len(data):,} samples an epoch, {data.broken_records:,} broken records")

    transformers.set_seed(1)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(data.tokenizer),
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=options.sequence_length,
        )
    )
    arguments = transformers.TrainingArguments(
        output_dir=options.output,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=10,
        save_steps=50,
        report_to=[],
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=data,
        callbacks=[millrace.StateCallback(data)],  # here: keeps the data's position in each checkpoint
    )
    checkpoint = millrace.StateCallback.restore(data, options.resume) if options.resume else None
    trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main()
