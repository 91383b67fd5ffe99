# The example speaks of an environment with trl, which is that of the peers; and of repositories of the hub: small ones of
# the same names, on the hub server of the tests.
mkdir -p /tmp/llama2/venv/bin
cat >/tmp/llama2/venv/bin/python <<PYTHON
#!/bin/sh
PYTHONPATH=$MILLRACE_PEERS/trainers exec $MILLRACE_PEERS/venv/bin/python "\$@"
PYTHON
chmod +x /tmp/llama2/venv/bin/python
export HF_HUB_OFFLINE=1  # of Python's libraries
model=$SCRATCH/hub/models/meta-llama/Llama-2-7b-hf
data=$SCRATCH/hub/datasets/timdettmers/openassistant-guanaco
mkdir -p "$(dirname "$model")" "$data"
for n in $(seq 200); do
  echo "{\"text\": \"### Human: What is $n?### Assistant: It is the number behind $((n - 1)).\"}"
done >"$data/openassistant_best_replies_train.jsonl"
cat >made.yaml <<JOB
name: made
model: {config: {hidden_size: 64, num_layers: 2, num_heads: 4, intermediate_size: 128, max_position_embeddings: 512}}
data: {sources: [{url: "$data/openassistant_best_replies_train.jsonl"}], tokenizer: "$SOURCE/millrace/train/testdata/tokenizer.model", sequence_length: 32}
train: {steps: 1}
checkpoint: {url: "$SCRATCH/made"}
JOB
millrace train made.yaml
millrace ckpt export "$SCRATCH/made" "$model" --to hf
cp "$SOURCE/millrace/train/testdata/tokenizer.model" "$model/"
rm -rf "$data/.millrace"
unset HF_HOME HF_TOKEN_PATH HF_TOKEN
coproc HUB { hub_server "$SCRATCH/hub" --listen 127.0.0.1:0 --token hf_your_token; }
read -r HF_ENDPOINT <&"${HUB[0]}"
export HF_ENDPOINT
