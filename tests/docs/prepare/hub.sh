# The guide speaks of repositories of the hub: small ones of the same names, on the hub server of the tests.
export MILLRACE_S3D_ACCESS_KEY=docs MILLRACE_S3D_SECRET_KEY=docs-secret
export AWS_ACCESS_KEY_ID=docs AWS_SECRET_ACCESS_KEY=docs-secret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:9000
millrace s3d --root /tmp/buckets --listen 127.0.0.1:9000 &
millrace mb s3://made
model=$SCRATCH/hub/models/meta-llama/Llama-2-7b-hf
data=$SCRATCH/hub/datasets/togethercomputer/RedPajama-Data-1T-Sample
mkdir -p "$(dirname "$model")" "$data"
python3 examples/first/texts.py docs >"$data/arxiv_sample.jsonl"
cat >made.yaml <<JOB
name: made
model: {config: {hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48}}
data: {sources: [{url: "$data/arxiv_sample.jsonl"}], tokenizer: "$SOURCE/millrace/train/testdata/tokenizer.model", sequence_length: 32}
train: {steps: 1}
checkpoint: {url: "s3://made/run"}
JOB
millrace train made.yaml
millrace ckpt export s3://made/run "$model" --to hf
cp "$SOURCE/millrace/train/testdata/tokenizer.model" "$model/"
rm -rf "$data/.millrace"
unset HF_HOME HF_TOKEN_PATH HF_TOKEN
coproc HUB { hub_server "$SCRATCH/hub" --listen 127.0.0.1:0 --token hf_your_token; }
read -r HF_ENDPOINT <&"${HUB[0]}"
export HF_ENDPOINT
