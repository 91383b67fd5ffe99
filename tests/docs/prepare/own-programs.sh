# The script needs numbers in a bucket, and a Python that has PyTorch.
export MILLRACE_S3D_ACCESS_KEY=docs MILLRACE_S3D_SECRET_KEY=docs-secret
export AWS_ACCESS_KEY_ID=docs AWS_SECRET_ACCESS_KEY=docs-secret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:9000
millrace s3d --root /tmp/buckets --listen 127.0.0.1:9000 &
millrace mb s3://corpus s3://runs
seq 640 | awk '{ print ($1 * 7919 % 101) / 100 }' | millrace pipe s3://corpus/numbers/numbers.txt
python3 "$SOURCE/tests/docs/printed_files.py" "$SOURCE/docs/guide/own-programs.md" "$PWD"
sed -i "s|/tmp/|$SCRATCH/tmp/|" train.py job.yaml travels.yaml
[[ -z ${MILLRACE_PEERS:-} ]] || PATH=$MILLRACE_PEERS/venv/bin:$PATH
