// The files below /opt/ml that SageMaker gives a training container. Source:
// https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// A set of data, which is in a folder before the training starts or comes through a named pipe.
struct TrainingChannel {
  std::string name;
  std::string content_type;    ///< of its objects, such as "application/jsonlines"; may be empty
  bool is_pipe = false;        ///< TrainingInputMode Pipe
  bool is_sharded = false;     ///< S3DistributionType ShardedByS3Key: each host has other objects
  bool has_record_io = false;  ///< RecordWrapperType RecordIO
};

/// One host's view of a training job. Plain data.
struct TrainingContainer {
  std::filesystem::path base;                   ///< /opt/ml
  std::map<std::string, Json> hyperparameters;  ///< of the user
  std::map<std::string, Json> reserved;         ///< those of SageMaker: sagemaker_program, …
  std::vector<TrainingChannel> channels;        ///< sorted by name
  Json resources = Json::object();              ///< resourceconfig.json
  Json inputs = Json::object();                 ///< inputdataconfig.json
  std::vector<std::string> hosts;               ///< sorted; each host has the same list
  std::string current_host;

  /// Returns the folder of a channel of mode File or FastFile.
  std::filesystem::path FolderOf(std::string_view channel) const { return base / "input" / "data" / channel; }
  /// The pipe that carries a channel's data for the first epoch.
  std::filesystem::path PipeOf(const TrainingChannel& channel) const {
    return base / "input" / "data" / (channel.name + "_0");
  }
  /// Returns a text of `reserved`, "" if it is not there.
  std::string Reserved(std::string_view name) const;
  /// Returns whether the SDK asked for one of its ways to distribute a script.
  bool is_distributed() const;
  /// The place of this host in `hosts`.
  int host_index() const;
};

/// Reads the files below `base`. Missing ones stand for nothing: one host, no channels, no hyperparameters.
/// Errors: those of reading; kInvalidArgument that names the file, and what in it has another form.
Result<TrainingContainer> ReadTrainingContainer(const std::filesystem::path& base);

/// Returns the assignments ("train.steps=100") that hyperparameters with a dot, or with the name of a section, make.
/// Errors: kInvalidArgument for another name, except those in `others`.
Result<std::vector<std::string>> AssignmentsOf(const TrainingContainer& container,
                                               const std::vector<std::string_view>& others);

/// Returns the assignments of a job's name and its place in SageMaker. Only the first host reports the job.
/// `sagemaker_name`: $TRAINING_JOB_NAME; empty: the name is a reserved hyperparameter.
std::vector<std::string> PlacementAssignments(const TrainingContainer& container, std::string sagemaker_name);

/// Returns the words that the toolkit gives to a script: {"--lr", "0.1", "--name", "abc"}, sorted by name.
std::vector<std::string> CommandLineOf(const std::map<std::string, Json>& hyperparameters);

/// The hardware of a container, which SageMaker does not describe.
struct ContainerHardware {
  int cpus = 1, gpus = 0, neurons = 0;
};
/// Returns the variables SM_HOSTS, SM_CHANNEL_TRAIN, … of a script.
std::map<std::string, std::string> ScriptEnvironment(const TrainingContainer& container,
                                                     const ContainerHardware& hardware);

}  // namespace millrace::jobs
