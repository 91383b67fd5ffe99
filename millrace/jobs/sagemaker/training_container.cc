#include "millrace/jobs/sagemaker/training_container.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

constexpr std::uint64_t kMaxConfig = 4 * kMiB;
constexpr std::string_view kReservedPrefix = "sagemaker_";
constexpr int kInfoLevel = 20;  // of Python's logging

/// Returns the object in a file below input/config; an empty one if there is no file.
Result<Json> ReadConfig(const std::filesystem::path& base, std::string_view name) {
  const std::filesystem::path path = base / "input" / "config" / name;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Json::object();
  Json json = MR_TRY(ParseJson(MR_TRY(ReadFile(path, kMaxConfig)), path.string()));
  if (!json.is_object()) return Fail(Code::kInvalidArgument, "{} should hold an object", path.string());
  return json;
}

/// SageMaker makes a text of each hyperparameter; the SDK makes JSON before.
Json Decoded(const Json& value) {
  if (!value.is_string()) return value;
  auto decoded = ParseJson(value.get<std::string>(), "a hyperparameter");
  return decoded ? *decoded : value;
}

/// Returns a copy whose objects have sorted members, as the toolkit writes them.
Json Sorted(const Json& value) {
  if (value.is_array()) {
    Json sorted = Json::array();
    for (const Json& each : value) sorted.push_back(Sorted(each));
    return sorted;
  }
  if (!value.is_object()) return value;
  std::map<std::string, Json> members;
  for (const auto& [key, each] : value.items()) members[key] = Sorted(each);
  Json sorted = Json::object();
  for (auto& [key, each] : members) sorted[key] = std::move(each);
  return sorted;
}

Json ObjectOf(const std::map<std::string, Json>& members) {
  Json object = Json::object();
  for (const auto& [key, value] : members) object[key] = Sorted(value);
  return object;
}

/// Returns the value of a variable.
std::string VariableText(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : DumpJson(Sorted(value));
}

/// Returns what Python's str() makes of a value; `nested`, what repr() makes.
std::string PythonText(const Json& value, bool nested = false) {
  if (value.is_null()) return nested ? "None" : "";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) {
    std::string text = value.get<std::string>();
    if (!nested) return text;
    const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
    std::string quoted(1, quote);
    for (const char c : text) {
      if (c == quote || c == '\\') quoted += '\\';
      quoted += c;
    }
    return quoted + quote;
  }
  if (value.is_array() || value.is_object()) {
    std::string text;
    for (const auto& [key, each] : value.items()) {
      if (!text.empty()) text += ", ";
      if (value.is_object()) text += PythonText(Json(key), true) + ": ";
      text += PythonText(each, true);
    }
    return value.is_array() ? "[" + text + "]" : "{" + text + "}";
  }
  return DumpJson(value);
}

std::string TextIn(const Json& object, std::string_view key) { return JsonString(object, key).value_or(""); }

/// Returns whether a hyperparameter is for SageMaker's containers rather than for the user's program.
bool IsReserved(std::string_view name) {
  return name.starts_with(kReservedPrefix) || name == "default_user_module_name" || name == "_tuning_objective_metric";
}

/// Returns what steers the ways to distribute a script: what is reserved, but for what every container has.
Json FrameworkParameters(const TrainingContainer& container) {
  constexpr std::string_view kEveryContainers[] = {
      "sagemaker_program",   "sagemaker_submit_directory", "sagemaker_enable_cloudwatch_metrics",
      "sagemaker_region",    "sagemaker_job_name",         "sagemaker_container_log_level",
      "sagemaker_s3_output", "default_user_module_name",   "_tuning_objective_metric"};
  Json parameters = Json::object();
  for (const auto& [name, value] : container.reserved) {
    if (std::ranges::find(kEveryContainers, name) == std::end(kEveryContainers)) parameters[name] = value;
  }
  return parameters;
}

/// The groups of machines by their names. SageMaker names none for jobs with one type of machine in some regions.
struct InstanceGroups {
  std::vector<std::string> names;
  Json by_name = Json::object();
  std::string current;
  Json current_hosts = Json::array();
  Json distributed = Json::array();        ///< names of those that run the script together
  Json distributed_hosts = Json::array();  ///< theirs
};

InstanceGroups GroupsOf(const TrainingContainer& container) {
  InstanceGroups groups;
  groups.current = TextIn(container.resources, "current_group_name");
  const Json* list = JsonFind(container.resources, "instance_groups");
  if (list == nullptr || !list->is_array()) {
    groups.distributed_hosts = container.hosts;
    return groups;
  }
  for (const Json& group : *list) {
    const std::string name = TextIn(group, "instance_group_name");
    groups.names.push_back(name);
    groups.by_name[name] = group;
    const Json* hosts = JsonFind(group, "hosts");
    if (name == groups.current && hosts != nullptr) groups.current_hosts = *hosts;
  }
  if (const auto named = container.reserved.find("sagemaker_distribution_instance_groups");
      named != container.reserved.end() && named->second.is_array()) {
    groups.distributed = named->second;
  } else if (container.is_distributed()) {
    groups.distributed.push_back(groups.current);
  }
  for (const Json& group : *list) {
    const Json* hosts = JsonFind(group, "hosts");
    const Json name = TextIn(group, "instance_group_name");
    const bool takes_part = std::ranges::any_of(groups.distributed, [&](const Json& each) { return each == name; });
    if (!takes_part || hosts == nullptr) continue;
    for (const Json& host : *hosts) groups.distributed_hosts.push_back(host);
  }
  return groups;
}

/// Returns what a script is imported as: train for "train.py", in any folder.
std::string ModuleName(std::string_view program) {
  constexpr std::string_view kPython = ".py";
  if (program.ends_with(kPython)) program.remove_suffix(kPython.size());
  return std::string(program);
}

/// Returns the values of the script's environment that describe the machine, the program and the folders.
Json MachineValues(const TrainingContainer& container, const ContainerHardware& hardware,
                   const InstanceGroups& groups) {
  const std::filesystem::path input = container.base / "input", output = container.base / "output";
  const std::string program = container.Reserved("sagemaker_program");
  const auto level = container.reserved.find("sagemaker_container_log_level");
  const auto code = container.reserved.find("sagemaker_submit_directory");
  return {
      {"hosts", container.hosts},
      {"network_interface_name", TextIn(container.resources, "network_interface_name")},
      {"user_entry_point", program},
      {"resource_config", container.resources},
      {"input_data_config", container.inputs},
      {"output_data_dir", (output / "data").string()},
      {"current_host", container.current_host},
      {"current_instance_type", TextIn(container.resources, "current_instance_type")},
      {"current_instance_group", groups.current},
      {"current_instance_group_hosts", groups.current_hosts},
      {"instance_groups", groups.names},
      {"instance_groups_dict", groups.by_name},
      {"distribution_instance_groups", groups.distributed},
      {"is_hetero", groups.names.size() > 1},
      {"module_name", ModuleName(program)},
      {"log_level", level == container.reserved.end() ? Json(kInfoLevel) : level->second},
      {"framework_module", nullptr},
      {"input_dir", input.string()},
      {"input_config_dir", (input / "config").string()},
      {"output_dir", output.string()},
      {"num_cpus", hardware.cpus},
      {"num_gpus", hardware.gpus},
      {"num_neurons", hardware.neurons},
      {"model_dir", (container.base / "model").string()},
      {"module_dir", code == container.reserved.end() ? Json((container.base / "code").string()) : code->second},
      {"output_intermediate_dir", (output / "intermediate").string()},
  };
}

/// "model_dir" becomes "SM_MODEL_DIR".
std::string VariableName(std::string_view key) {
  std::string name = fmt::format("SM_{}", key);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

/// Returns SageMaker's name of the job in the letters that a job's name has.
std::string JobName(const TrainingContainer& container, std::string name) {
  if (name.empty()) name = container.Reserved("sagemaker_job_name");
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_'; });
  return name.empty() ? "training" : name;
}

}  // namespace

std::string TrainingContainer::Reserved(std::string_view name) const {
  const auto found = reserved.find(std::string(name));
  return found == reserved.end() ? "" : VariableText(found->second);
}

bool TrainingContainer::is_distributed() const {
  for (const char* way : {"mpi", "parameter_server", "distributed_dataparallel", "pytorch_ddp",
                          "pytorch_xla_multi_worker", "multi_worker_mirrored_strategy", "torch_distributed"}) {
    if (Reserved(fmt::format("sagemaker_{}_enabled", way)) == "true") return true;
  }
  return false;
}

int TrainingContainer::host_index() const {
  return static_cast<int>(std::ranges::find(hosts, current_host) - hosts.begin());
}

Result<TrainingContainer> ReadTrainingContainer(const std::filesystem::path& base) {
  TrainingContainer container{.base = base};
  const Json hyperparameters = MR_TRY(ReadConfig(base, "hyperparameters.json"));
  for (const auto& [name, value] : hyperparameters.items()) {
    (IsReserved(name) ? container.reserved : container.hyperparameters)[name] = Decoded(value);
  }
  container.inputs = MR_TRY(ReadConfig(base, "inputdataconfig.json"));
  for (const auto& [name, input] : container.inputs.items()) {
    const bool is_name = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
    });
    if (!is_name || name.starts_with('.') || !input.is_object()) {
      return Fail(Code::kInvalidArgument, "inputdataconfig.json: {} should be a channel", DumpJson(name));
    }
    container.channels.push_back({.name = name,
                                  .content_type = TextIn(input, "ContentType"),
                                  .is_pipe = TextIn(input, "TrainingInputMode") == "Pipe",
                                  .is_sharded = TextIn(input, "S3DistributionType") == "ShardedByS3Key",
                                  .has_record_io = TextIn(input, "RecordWrapperType") == "RecordIO"});
  }
  std::ranges::sort(container.channels, {}, &TrainingChannel::name);
  container.resources = MR_TRY(ReadConfig(base, "resourceconfig.json"));
  if (const Json* hosts = JsonFind(container.resources, "hosts")) {
    if (!hosts->is_array()) return Fail(Code::kInvalidArgument, "resourceconfig.json: hosts should be a list");
    for (const Json& host : *hosts) container.hosts.push_back(VariableText(host));
  } else {
    container.hosts = {"localhost"};
  }
  std::ranges::sort(container.hosts);
  container.current_host = TextIn(container.resources, "current_host");
  if (container.current_host.empty() && container.hosts.size() == 1) container.current_host = container.hosts.front();
  if (std::ranges::find(container.hosts, container.current_host) == container.hosts.end()) {
    return Fail(Code::kInvalidArgument, "resourceconfig.json: the current_host \"{}\" is not one of hosts",
                container.current_host);
  }
  return container;
}

Result<std::vector<std::string>> AssignmentsOf(const TrainingContainer& container,
                                               const std::vector<std::string_view>& others) {
  constexpr std::string_view kSections[] = {"model",      "data", "train", "lora", "eval",
                                            "checkpoint", "run",  "log",   "cost", "name"};
  std::vector<std::string> assignments;
  for (const auto& [name, value] : container.hyperparameters) {
    if (std::ranges::find(others, name) != others.end()) continue;
    if (std::ranges::find(kSections, Split(name, '.').front()) == std::end(kSections)) {
      return Fail(Code::kInvalidArgument,
                  "the hyperparameter {} is not a key of a job file, such as train.steps; the job file's guide lists "
                  "them",
                  name);
    }
    assignments.push_back(name + "=" + DumpJson(value));  // JSON is YAML
  }
  return assignments;
}

std::vector<std::string> PlacementAssignments(const TrainingContainer& container, std::string sagemaker_name) {
  std::vector<std::string> assignments = {"name=" + DumpJson(JobName(container, std::move(sagemaker_name))),
                                          "run.launcher=sagemaker",
                                          fmt::format("run.nodes={}", container.hosts.size())};
  // Other hosts cannot be started again from here: SageMaker starts all of them again, or nobody does.
  if (container.hosts.size() > 1) assignments.emplace_back("run.max_restarts=0");
  if (container.host_index() == 0) return assignments;
  for (const char* key : {"log.url", "log.webhook", "log.tensorboard"}) {
    assignments.push_back(fmt::format("{}=\"\"", key));
  }
  return assignments;
}

std::vector<std::string> CommandLineOf(const std::map<std::string, Json>& hyperparameters) {
  std::vector<std::string> words;
  for (const auto& [name, value] : hyperparameters) {
    words.push_back((name.size() > 1 ? "--" : "-") + name);
    if (!value.is_object()) {
      words.push_back(PythonText(value));
      continue;
    }
    std::vector<std::string> pairs;
    const Json sorted = Sorted(value);
    for (const auto& [key, each] : sorted.items())
      pairs.push_back(key + "=" + (each.is_null() ? "None" : PythonText(each)));
    words.push_back(fmt::format("{}", fmt::join(pairs, ",")));
  }
  return words;
}

std::map<std::string, std::string> ScriptEnvironment(const TrainingContainer& container,
                                                     const ContainerHardware& hardware) {
  const InstanceGroups groups = GroupsOf(container);
  const std::string name = container.Reserved("sagemaker_job_name");
  Json folders = Json::object();
  std::vector<std::string> names;
  for (const TrainingChannel& channel : container.channels) {
    folders[channel.name] = container.FolderOf(channel.name).string();
    names.push_back(channel.name);
  }
  Json values = MachineValues(container, hardware, groups);
  const Json parameters = FrameworkParameters(container);
  const Json& together = groups.distributed_hosts;
  const std::string master = together.empty() ? container.hosts.front() : VariableText(together.front());
  Json whole = values;
  whole.update({{"additional_framework_parameters", parameters},
                {"channel_input_dirs", folders},
                {"distribution_hosts", together},
                {"hyperparameters", ObjectOf(container.hyperparameters)},
                {"is_master", container.current_host == master},
                {"job_name", name.empty() ? Json(nullptr) : Json(name)},
                {"master_hostname", master}});
  values.update({{"hps", ObjectOf(container.hyperparameters)},
                 {"framework_params", parameters},
                 {"channels", names},
                 {"user_args", CommandLineOf(container.hyperparameters)},
                 {"training_env", std::move(whole)}});
  for (const auto& [channel, folder] : folders.items()) values["channel_" + channel] = folder;
  for (const auto& [key, value] : container.hyperparameters) values["hp_" + key] = value;
  std::map<std::string, std::string> variables;
  for (const auto& [key, value] : values.items()) variables[VariableName(key)] = VariableText(value);
  return variables;
}

}  // namespace millrace::jobs
