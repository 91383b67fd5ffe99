# The guide makes its own endpoint. What it names besides is put there once the endpoint is: see the function's call.
squad() { printf '{"version": "1.1", "data": [{"title": "A river"}, {"title": "A mill"}]}'; }
pile() { for n in 1 2 3; do echo "{\"text\": \"Text number $n of the pile.\"}"; done | zstd -q; }
my_dataset() {
  mkdir -p my_dataset
  for n in $(seq 50); do echo "{\"text\": \"Row number $n of a data set.\"}"; done >my_dataset/train.jsonl
  cp my_dataset/train.jsonl my_dataset/test.jsonl
}
millrace() {
  command millrace "$@"
  # The first bucket is there: so is the endpoint.
  if [ "$*" = "mb s3://corpus" ]; then
    squad | command millrace pipe s3://corpus/squad.json
    command millrace mb s3://pile
    [ -z "$(command -v zstd)" ] || pile | command millrace pipe s3://pile/00.jsonl.zst
    my_dataset
  fi
}
