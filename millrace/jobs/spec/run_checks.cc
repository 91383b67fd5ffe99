#include "millrace/jobs/spec/spec_checks.h"

#include <algorithm>
#include <regex>
#include <set>
#include <string_view>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/jobs/spec/foreign_checks.h"
#include "millrace/jobs/spec/hostfile.h"
#include "millrace/object/url.h"

namespace millrace::jobs {
namespace {

using config::Node;

/// Values become lines of a batch script.
bool HasControlCharacter(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

Status CheckSlurm(const Node& node, const SlurmSpec& slurm) {
  for (const auto& [key, value] : {std::pair("partition", &slurm.partition), std::pair("account", &slurm.account),
                                   std::pair("qos", &slurm.qos), std::pair("constraint", &slurm.constraint)}) {
    if (HasControlCharacter(*value)) return Fail(node[key].Invalid("should be one line"));
  }
  for (const auto& [key, values] : {std::pair("exclude", &slurm.exclude), std::pair("slurm_options", &slurm.options)}) {
    if (std::ranges::any_of(*values, HasControlCharacter)) return Fail(node[key].Invalid("should have one line each"));
  }
  const bool are_options = std::ranges::all_of(slurm.options, [](const auto& o) { return o.starts_with("-"); });
  if (!are_options) return Fail(node["slurm_options"].Invalid("should be options of sbatch, such as --reservation=x"));
  return {};
}

Status CheckSsh(const Node& node, const SshSpec& ssh) {
  for (const std::string& option : ssh.options) {
    if (HasControlCharacter(option) || !option.starts_with("-") || option == "-" || option == "--") {
      return Fail(node["ssh_options"].Invalid(
          fmt::format("{} should be an option of ssh in one word, such as -p2222 or -oUser=me", option)));
    }
  }
  if (HasControlCharacter(ssh.millrace_path)) return Fail(node["millrace_path"].Invalid("should be one line"));
  return {};
}

/// Returns the hosts of run.hosts, with the slots that run.hostfile gives them; without run.hosts, all of the file.
Result<std::vector<HostSlots>> NamedHosts(const Node& node, const SshSpec& ssh) {
  std::vector<HostSlots> hosts;
  std::set<std::string_view> names;
  for (const std::string& host : ssh.hosts) {
    if (const std::string why = WhyNotAHost(host); !why.empty()) return Fail(node["hosts"].Invalid(why));
    if (!names.insert(host).second) {
      return Fail(node["hosts"].Invalid(fmt::format("has {} twice: processes_per_node says how many ranks", host)));
    }
    hosts.push_back({.host = host});
  }
  if (ssh.hostfile.empty()) return hosts;
  constexpr std::uint64_t kMaxHostfileBytes = 4 * kMiB;
  const auto text = ReadFile(ssh.hostfile, kMaxHostfileBytes);
  if (!text) return Fail(node["hostfile"].Invalid(text.error().message()).WithCode(text.error().code()));
  const auto in_file = ParseHostfile(*text, ssh.hostfile);
  if (!in_file) return Fail(node["hostfile"].Invalid(in_file.error().message()));
  if (hosts.empty()) return *in_file;
  for (HostSlots& host : hosts) {
    const auto found = std::ranges::find(*in_file, host.host, &HostSlots::host);
    if (found == in_file->end()) {
      return Fail(node["hosts"].Invalid(fmt::format("{} is not in {}", host.host, ssh.hostfile)));
    }
    host.slots = found->slots;
  }
  return hosts;
}

/// Returns whether Kubernetes takes a text as a name (RFC 1123): of an object, or a part of one.
bool IsLabel(std::string_view text, std::size_t most) {
  const auto is_good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !text.empty() && text.size() <= most && std::ranges::all_of(text, is_good) && text.front() != '-' &&
         text.back() != '-';
}

/// Returns whether Kubernetes takes a text as an amount: "8", "0.5", "500m", "64Gi", "1e3".
bool IsQuantity(std::string_view text) {
  static const std::regex form(R"([0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|e[0-9]+)?)");
  return text.size() <= 64 && std::regex_match(text.begin(), text.end(), form);
}

/// A volume has one of claim, bucket and source.
Status CheckVolumeSource(const Node& volume) {
  const auto claim = static_cast<bool>(volume["claim"]);
  const auto bucket = static_cast<bool>(volume["bucket"]);
  const auto source = static_cast<bool>(volume["source"]);
  if (static_cast<int>(claim) + static_cast<int>(bucket) + static_cast<int>(source) != 1) {
    return Fail(
        volume.Invalid("needs one of claim (the name of a PersistentVolumeClaim), bucket, and source (a volume "
                       "as Kubernetes writes it, such as {hostPath: {path: /data}})"));
  }
  if (source && (!volume["source"].IsMap() || volume["source"].Keys().size() != 1)) {
    return Fail(
        volume["source"].Invalid("should be one volume as Kubernetes writes it, such as {hostPath: {path: /data}}"));
  }
  constexpr std::size_t kMaxName = 253;
  auto is_name = [](const std::string& text) {
    return std::ranges::all_of(Split(text, '.'), [](std::string_view part) { return IsLabel(part, kMaxName); });
  };
  if (claim && !is_name(MR_TRY(volume["claim"].String()))) {
    return Fail(volume["claim"].Invalid("cannot be the name of a PersistentVolumeClaim"));
  }
  if (!bucket) {
    for (const char* key : {"prefix", "secret"}) {
      if (volume[key]) return Fail(volume[key].Invalid("is for a volume with bucket"));
    }
    return {};
  }
  const std::string name = MR_TRY(volume["bucket"].String());
  const auto url = object::ParseUrl("s3://" + name);
  if (!url || url->bucket != name) {
    return Fail(volume["bucket"].Invalid("should be the name of a bucket, or the ARN of an access point"));
  }
  if (volume["prefix"] && MR_TRY(volume["prefix"].String()).starts_with('/')) {
    return Fail(volume["prefix"].Invalid("should not begin with a slash"));
  }
  if (!volume["secret"] || !is_name(MR_TRY(volume["secret"].String()))) {
    return Fail(
        volume.Invalid("needs secret, the name of a Secret with the keys for the bucket; without keys of your "
                       "own, use the claim of a volume that your administrator has made"));
  }
  return {};
}

Status CheckVolumes(const Node& list) {
  for (const Node& volume : list.Elements()) {
    MR_TRY(
        volume.RejectUnknown({"mount_path", "sub_path", "read_only", "source", "claim", "bucket", "prefix", "secret"}));
    const auto path = volume["mount_path"].String();
    if (!path || !path->starts_with('/')) {
      return Fail(volume.Invalid("needs mount_path, the absolute path of a folder in the container"));
    }
    MR_TRY(CheckVolumeSource(volume));
    if (volume["read_only"]) MR_TRY(volume["read_only"].Bool());
    if (volume["sub_path"]) MR_TRY(volume["sub_path"].String());
  }
  return {};
}

Status CheckElastic(const Node& node, const RunSpec& run) {
  if (!run.elastic) return {};
  const int ranks = run.nodes * run.processes_per_node, max = run.elastic->max.value_or(ranks);
  if (run.elastic->min > ranks) {
    return Fail(node["elastic"]["min"].Invalid(
        fmt::format("{} should not be above nodes × processes_per_node ({})", run.elastic->min, ranks)));
  }
  if (max < ranks) {
    return Fail(node["elastic"]["max"].Invalid(
        fmt::format("{} should not be below nodes × processes_per_node ({})", max, ranks)));
  }
  return {};
}

Status CheckPods(const Node& node, const RunSpec& run) {
  const KubernetesSpec& pods = run.kubernetes;
  constexpr std::size_t kMaxLabel = 63, kMaxName = 253;
  if (pods.image.empty()) {
    return Fail(node["image"].Invalid("is required: a container image with Millrace (docs/guide/kubernetes.md)"));
  }
  constexpr std::string_view kPolicies[] = {"", "Always", "IfNotPresent", "Never"};
  if (std::ranges::find(kPolicies, pods.image_pull_policy) == std::end(kPolicies)) {
    return Fail(node["image_pull_policy"].Invalid("should be one of Always, IfNotPresent, Never"));
  }
  if (!pods.space.empty() && !IsLabel(pods.space, kMaxLabel)) {
    return Fail(node["namespace"].Invalid("should be lower-case letters, digits and '-'"));
  }
  for (const auto& [name, amount] : pods.resources) {
    if (!IsQuantity(amount)) {
      return Fail(node["resources"][name].Invalid(
          fmt::format("should be an amount of Kubernetes, such as 8, 500m or 64Gi, not {}", amount)));
    }
  }
  const auto check_secret = [&](const char* key, const std::string& name) -> Status {
    if (std::ranges::all_of(Split(name, '.'), [](std::string_view part) { return IsLabel(part, kMaxName); })) return {};
    return Fail(node[key].Invalid(fmt::format("{} cannot be the name of a Secret", name)));
  };
  for (const std::string& name : pods.env_from) MR_TRY(check_secret("env_from", name));
  for (const std::string& name : pods.image_pull_secrets) MR_TRY(check_secret("image_pull_secrets", name));
  if (!pods.mounts_secret.empty()) MR_TRY(check_secret("mounts_secret", pods.mounts_secret));
  return CheckVolumes(node["volumes"]);
}

}  // namespace

Status CompleteHosts(const Node& node, RunSpec& run, SpecPurpose purpose) {
  if (run.launcher != "ssh") return {};
  std::vector<HostSlots> hosts = MR_TRY(NamedHosts(node, run.ssh));
  if (hosts.empty()) {
    if (purpose == SpecPurpose::kPlan) return {};
    return Fail(node["hosts"].Invalid("names no machine: give run.hosts, such as [n1, n2], or run.hostfile"));
  }
  const int named = static_cast<int>(hosts.size());
  if (!node["nodes"]) run.nodes = named - run.spares;
  if (run.nodes < 1 || run.nodes + run.spares > named) {
    return Fail(node["nodes"].Invalid(
        run.spares == 0 ? fmt::format("is {}, but {} hosts are named", run.nodes, named)
                        : fmt::format("is {} and spares is {}, but {} hosts are named", run.nodes, run.spares, named)));
  }
  // An elastic job may use all.
  if (!run.elastic) hosts.resize(static_cast<std::size_t>(run.nodes) + static_cast<std::size_t>(run.spares));
  if (!node["processes_per_node"]) {
    for (const HostSlots& host : hosts) {
      if (host.slots == hosts.front().slots) continue;
      return Fail(node["hostfile"].Invalid(
          fmt::format("{} has {} slots and {} has {}: every host should have as many, or set processes_per_node",
                      hosts.front().host, hosts.front().slots, host.host, host.slots)));
    }
    constexpr int kMaxProcesses = 256;
    const int slots = hosts.front().slots;
    if (slots > kMaxProcesses) {
      return Fail(
          node["hostfile"].Invalid(fmt::format("{} slots on a host; at most {} are possible", slots, kMaxProcesses)));
    }
    if (slots > 0) run.processes_per_node = slots;
  }
  run.ssh.hosts.clear();
  for (HostSlots& host : hosts) run.ssh.hosts.push_back(std::move(host.host));
  run.ssh.hostfile.clear();
  return {};
}

Status CheckPodName(const Node& root, const Spec& spec) {
  // Pods are named after the job; their names are host names, of at most 63 characters.
  constexpr std::size_t kMax = 50;
  if (!spec.run.in_pods() || IsLabel(spec.name, kMax)) return {};
  return Fail(root["name"].Invalid(
      fmt::format("should be at most {} lower-case letters, digits and '-' with launcher: {}, because pods are named "
                  "after the job",
                  kMax, spec.run.launcher)));
}

Status CheckCost(const Node& node, const CostSpec& cost) {
  if (cost.cap && cost.price_per_hour <= 0) {
    return Fail(node["price_per_hour"].Invalid("is required with cap: the price of one machine"));
  }
  return {};
}

Status CheckRun(const Node& node, const RunSpec& run, SpecPurpose purpose) {
  MR_TRY(CheckEnvironment(node, run));
  MR_TRY(CheckSlurm(node, run.slurm));
  MR_TRY(CheckSsh(node, run.ssh));
  if (run.in_pods()) MR_TRY(CheckPods(node, run));
  MR_TRY(CheckElastic(node, run));
  if (purpose == SpecPurpose::kPlan || run.nodes == 1 || run.launcher != "local") return {};
  return Fail(node["nodes"].Invalid("should be 1: the launcher local starts ranks on this machine only"));
}

}  // namespace millrace::jobs
