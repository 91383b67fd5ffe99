# The recipes speak of models of the hub and of data in a bucket: small ones, on the hub server of the tests and on s3d.
export MILLRACE_S3D_ACCESS_KEY=docs MILLRACE_S3D_SECRET_KEY=docs-secret
export AWS_ACCESS_KEY_ID=docs AWS_SECRET_ACCESS_KEY=docs-secret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:9000
millrace s3d --root /tmp/buckets --listen 127.0.0.1:9000 &
millrace mb s3://training
python3 "$SOURCE/tests/e2e/recipes.py" --data "$SCRATCH/recipes"
millrace sync "$SCRATCH/recipes/training/" s3://training/
unset HF_HOME HF_TOKEN_PATH
export HF_TOKEN=hf_your_token
coproc HUB { hub_server "$SCRATCH/recipes/hub" --listen 127.0.0.1:0 --token hf_your_token; }
read -r HF_ENDPOINT <&"${HUB[0]}"
export HF_ENDPOINT
