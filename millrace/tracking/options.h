// The trackers of experiments that a run reports to. Plain data.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace::tracking {

/// Weights & Biases (log.wandb). An empty text: the variable of W&B's own decides, or else W&B; but an empty project is
/// the job's name.
struct WandbOptions {
  std::string project, entity, name, group;
  std::vector<std::string> tags;
  /// "online", "offline", or "auto": WANDB_MODE, or else online if there is a key.
  std::string mode = "auto";
  std::string folder;  ///< of its files on this machine; empty: WANDB_DIR, or else the caller's
  bool operator==(const WandbOptions&) const = default;
};

/// MLflow (log.mlflow).
struct MlflowOptions {
  std::string url;         ///< of the tracking server; empty: MLFLOW_TRACKING_URI
  std::string experiment;  ///< empty: MLFLOW_EXPERIMENT_NAME, or else the job's name
  std::string run_name;    ///< empty: the job's name
  std::map<std::string, std::string> tags;
  bool operator==(const MlflowOptions&) const = default;
};

/// Returns the value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const char*)>;

/// The trackers of a run, and the programs and certificates that they need.
struct TrackingOptions {
  std::optional<WandbOptions> wandb;
  std::optional<MlflowOptions> mlflow;
  std::string python = "python3";          ///< runs sidecars; a name is looked up in PATH
  std::string ca_bundle;                   ///< path; empty: the system's certificates
  std::string folder;                      ///< where W&B's files go if nobody names a folder; empty: working directory
  std::map<std::string, std::string> env;  ///< variables that count before those of this process
  bool any() const { return wandb || mlflow; }
};

}  // namespace millrace::tracking
