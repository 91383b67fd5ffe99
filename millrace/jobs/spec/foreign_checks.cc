#include "millrace/jobs/spec/foreign_checks.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/jobs/source/source_archive.h"
#include "millrace/jobs/spec/foreign_program.h"
#include "millrace/object/url.h"

namespace millrace::jobs {
namespace {

using config::Node;

/// Returns whether one path is the other, or below it.
bool Overlap(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.starts_with(a) && (a.size() == b.size() || a.ends_with('/') || b[a.size()] == '/');
}

Status CheckMounts(const Node& root, const Spec& spec) {
  const Node node = root["run"]["mounts"];
  std::vector<std::string> paths;
  if (!spec.checkpoint.path.empty()) paths.push_back(spec.checkpoint.path);
  for (const auto& [url, value] : spec.run.mounts) {
    const auto parsed = object::ParseUrl(url);
    if (!parsed) return Fail(node[url].Invalid(parsed.error().ToString()));
    const std::string path = MountOf(url, value).path;
    if (!path.starts_with('/') || path == "/") {
      return Fail(node[url].Invalid(
          fmt::format("should be an absolute path, such as /data, or /data:ro for reading only, not {}", value)));
    }
    for (const std::string& other : paths) {
      if (Overlap(path, other)) return Fail(node[url].Invalid(fmt::format("{} and {} overlap", path, other)));
    }
    paths.push_back(path);
  }
  return {};
}

/// Checks what the CSI driver mounts in pods.
Status CheckPodMounts(const Node& root, const Spec& spec) {
  for (const FolderMount& mount : PodMounts(spec)) {
    const bool is_checkpoint = !spec.run.mounts.contains(mount.url);
    const Node node = is_checkpoint ? root["checkpoint"]["url"] : root["run"]["mounts"][mount.url];
    const auto url = object::ParseUrl(mount.url);
    if (!url || url->scheme != object::Url::Scheme::kS3) {
      return Fail(node.Invalid("should be a folder of a bucket, s3://…: the CSI driver mounts it in pods"));
    }
    if (spec.run.kubernetes.mounts_secret.empty()) {
      return Fail(node.Invalid(
          "containers have no /dev/fuse, so the CSI driver mounts it: name the Secret with the bucket's keys in "
          "run.mounts_secret; or use run.volumes, or the bucket by URL"));
    }
  }
  return {};
}

Status CheckSource(const Node& run, const Spec& spec) {
  if (spec.run.source.empty() || SourceDigest(spec.run.source)) return {};
  if (IsMounted(spec.run.source)) {
    return Fail(run["source"].Invalid(fmt::format(
        "should be a folder of this machine, or the sha256-DIGEST.tar of an earlier run, not {}", spec.run.source)));
  }
  if (spec.run.launcher == "local" || spec.run.launcher == "sagemaker") return {};
  if (spec.log.url.empty() && spec.checkpoint.url.empty()) {
    return Fail(run["source"].Invalid("needs a bucket from which all machines get the code: set log.url"));
  }
  return {};
}

}  // namespace

Status CheckEnvironment(const Node& node, const RunSpec& run) {
  constexpr std::string_view kLaunchers[] = {"RANK",
                                             "LOCAL_RANK",
                                             "WORLD_SIZE",
                                             "LOCAL_WORLD_SIZE",
                                             "GROUP_RANK",
                                             "MASTER_ADDR",
                                             "MASTER_PORT",
                                             "MILLRACE_RANK_SECRET",
                                             "MILLRACE_ATTEMPT",
                                             "MILLRACE_RUN",
                                             "MILLRACE_LIFELINE",
                                             "MILLRACE_CHECKPOINTS",
                                             "MILLRACE_HEARTBEAT_FILE",
                                             "MILLRACE_HISTORY_FILE"};
  for (const auto& [name, value] : run.env) {
    const bool good = !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
                      std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (!good) return Fail(node["env"].Invalid(fmt::format("{} cannot be the name of an environment variable", name)));
    if (std::ranges::find(kLaunchers, name) != std::end(kLaunchers)) {
      return Fail(node["env"][name].Invalid("leave it out: the launcher sets it for each rank"));
    }
    if (value.find('\0') != std::string::npos) return Fail(node["env"][name].Invalid("has a zero byte"));
  }
  return {};
}

Status CheckForeign(const Node& root, const Spec& spec, SpecPurpose purpose) {
  const Node run = root["run"];
  if (purpose == SpecPurpose::kPlan) {
    return Fail(run["command"].Invalid("a plan is made of keys that this job does not have: model, data and train"));
  }
  if (spec.run.command.front().empty()) return Fail(run["command"].Invalid("should begin with a program"));
  for (const std::string& word : spec.run.command) {
    if (word.find('\0') != std::string::npos) return Fail(run["command"].Invalid("has a zero byte"));
  }
  MR_TRY(CheckSource(run, spec));
  const bool in_store = IsMounted(spec.checkpoint.url);
  if (!in_store && !spec.checkpoint.path.empty() && !spec.checkpoint.url.empty()) {
    return Fail(root["checkpoint"]["path"].Invalid(
        "leave it out: it says where a bucket of checkpoint.url is mounted, and that is no bucket"));
  }
  MR_TRY(CheckMounts(root, spec));
  return CheckPodMounts(root, spec);
}

}  // namespace millrace::jobs
