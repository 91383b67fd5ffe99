# The guide serves a run: a small one.
export MILLRACE_S3D_ACCESS_KEY=docs MILLRACE_S3D_SECRET_KEY=docs-secret
export AWS_ACCESS_KEY_ID=docs AWS_SECRET_ACCESS_KEY=docs-secret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:9000
millrace s3d --root /tmp/buckets --listen 127.0.0.1:9000 &
millrace mb s3://corpus s3://runs
python3 examples/first/texts.py docs | millrace pipe s3://corpus/texts.jsonl
millrace cp "$SOURCE/millrace/train/testdata/tokenizer.model" s3://corpus/tokenizer.model
cat >job.yaml <<JOB
name: llama-demo
model: {config: {hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48}}
data: {sources: [{url: "s3://corpus/texts.jsonl"}], tokenizer: "s3://corpus/tokenizer.model", sequence_length: 64}
train: {steps: 2}
checkpoint: {url: "s3://runs/llama-demo"}
JOB
millrace train job.yaml
