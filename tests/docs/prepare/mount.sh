# The guide speaks of a mount that is there.
export MILLRACE_S3D_ACCESS_KEY=docs MILLRACE_S3D_SECRET_KEY=docs-secret
export AWS_ACCESS_KEY_ID=docs AWS_SECRET_ACCESS_KEY=docs-secret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:9000
millrace s3d --root /tmp/buckets --listen 127.0.0.1:9000 &
millrace mb s3://corpus
mkdir -p /mnt/corpus
millrace mount s3://corpus /mnt/corpus
ls /mnt/corpus
