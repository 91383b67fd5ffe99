# The guide speaks of a run, and of models of other programs: small ones of the same forms.
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
data: {sources: [{url: "s3://corpus/texts.jsonl"}], tokenizer: "s3://corpus/tokenizer.model", sequence_length: 32}
train: {steps: 2}
checkpoint: {url: "s3://runs/two-steps"}
JOB
millrace train job.yaml
sed -i -e '/^model:/d' -e 's|two-steps|tuned|' job.yaml  # the guide gives it a model to start from
for to in hf torch dcp; do millrace ckpt export s3://runs/two-steps ./to-$to --to $to; done
mv to-hf Llama-2-7b-hf
cp "$SOURCE/millrace/train/testdata/tokenizer.model" Llama-2-7b-hf/
mv to-torch checkpoint.pt
mkdir -p dcp && mv to-dcp dcp/step-2000
for step in 1000 1500; do millrace ckpt import ./Llama-2-7b-hf s3://runs/llama-demo --step $step; done
python3 "$SOURCE/tests/docs/make_adapter.py" lora-adapter
