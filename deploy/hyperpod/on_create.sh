#!/bin/bash
# HyperPod runs this as root when it creates or replaces a node. What it prints is in the log below and in CloudWatch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
log=/var/log/provision/millrace.log
mkdir -p "${log%/*}"
exec > >(tee -a "$log") 2>&1
tee=$!
trap 'status=$?; exec >&- 2>&-; wait "$tee"; exit $status' EXIT  # the log is whole when this script has ended

resource_config=${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}
if [[ ! -f $resource_config ]]; then
  echo "millrace: $resource_config is not there: this is no node of a HyperPod cluster, and nothing was done"
  exit 0
fi
python3 lifecycle_script.py --resource_config "$resource_config" --provisioning_parameters "${MILLRACE_PROVISIONING_PARAMETERS:-provisioning_parameters.json}"
