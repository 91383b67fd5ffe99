"""Runs a script in two pods by an Estimator: fit.py IMAGE FOLDER"""
import sys

import millrace

image, folder = sys.argv[1:]
estimator = millrace.Estimator(
    entry_point="train.py",
    source_dir=folder,
    launcher="kubernetes",
    image_uri=image,
    instance_count=2,
    hyperparameters={"lr": 0.5, "run.mounts_secret": "bucket-keys", "run.env_from": ["bucket-keys"], "run.namespace": "default",
                     "run.image_pull_policy": "Never"},
    metric_definitions=[{"Name": "loss", "Regex": "loss ([0-9.]+)"}],
    output_path="s3://runs/fitted",
    checkpoint_s3_uri="s3://runs/fitted-checkpoints",
)
estimator.fit({"train": "s3://corpus/texts/"})
print("loss was", list(estimator.metrics()["loss"])[-1], "model in", estimator.model_data)
