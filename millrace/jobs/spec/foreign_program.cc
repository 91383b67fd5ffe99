#include "millrace/jobs/spec/foreign_program.h"

#include <filesystem>
#include <utility>

#include "millrace/object/url.h"

namespace millrace::jobs {
namespace {

constexpr std::string_view kPodCheckpoints = "/mnt/checkpoints";  // without checkpoint.path

}  // namespace

FolderMount MountOf(std::string_view url, std::string_view value) {
  constexpr std::string_view kReadOnly = ":ro";
  const bool read_only = value.ends_with(kReadOnly);
  if (read_only) value.remove_suffix(kReadOnly.size());
  while (value.size() > 1 && value.ends_with('/')) value.remove_suffix(1);
  return {.url = std::string(url), .path = std::string(value), .read_only = read_only};
}

bool IsMounted(std::string_view url) {
  const auto parsed = object::ParseUrl(url);
  return parsed && parsed->scheme != object::Url::Scheme::kFile;
}

std::vector<FolderMount> PodMounts(const Spec& spec) {
  if (spec.run.command.empty() || !spec.run.in_pods()) return {};
  std::vector<FolderMount> mounts;
  for (const auto& [url, value] : spec.run.mounts) mounts.push_back(MountOf(url, value));
  if (IsMounted(spec.checkpoint.url)) {
    mounts.push_back({.url = spec.checkpoint.url,
                      .path = spec.checkpoint.path.empty() ? std::string(kPodCheckpoints) : spec.checkpoint.path});
  }
  return mounts;
}

bool StartsRanks(const ForeignProgram& program) {
  const std::string name = std::filesystem::path(program.command.front()).filename().string();
  return name == "millrace" || name == "millrace-train";
}

std::optional<ForeignProgram> ForeignProgramOf(const Spec& spec) {
  if (spec.run.command.empty()) return std::nullopt;
  ForeignProgram program{.command = spec.run.command,
                         .directory = spec.run.directory,
                         .source = spec.run.source,
                         .checkpoint_folder = spec.checkpoint.path};
  const std::vector<FolderMount> there = PodMounts(spec);
  if (there.empty()) {
    for (const auto& [url, value] : spec.run.mounts) program.mounts.push_back(MountOf(url, value));
  }
  if (spec.checkpoint.url.empty()) return program;
  if (IsMounted(spec.checkpoint.url)) {
    if (there.empty()) {
      program.checkpoint_url = spec.checkpoint.url;
    } else {
      program.checkpoint_folder = there.back().path;
    }
  } else if (const auto folder = object::ParseUrl(spec.checkpoint.url)) {
    program.checkpoint_folder = std::filesystem::absolute(folder->key).lexically_normal().string();
  }
  return program;
}

Json ForeignProgram::ToJson() const {
  Json folders = Json::array();
  for (const FolderMount& mount : mounts) {
    folders.push_back({{"url", mount.url}, {"path", mount.path}, {"read_only", mount.read_only}});
  }
  return {{"command", command},
          {"directory", directory},
          {"source", source},
          {"mounts", std::move(folders)},
          {"checkpoint_folder", checkpoint_folder},
          {"checkpoint_url", checkpoint_url}};
}

Result<ForeignProgram> ForeignProgram::FromJson(const Json& json) {
  ForeignProgram program;
  const Json* words = JsonFind(json, "command");
  const Json* mounts = JsonFind(json, "mounts");
  if (words == nullptr || !words->is_array() || words->empty() || mounts == nullptr || !mounts->is_array()) {
    return Fail(Code::kInvalidArgument, "a program needs a command or mounts");
  }
  for (const Json& word : *words) {
    if (!word.is_string()) return Fail(Code::kInvalidArgument, "the words of a command must be texts");
    program.command.push_back(word.get<std::string>());
  }
  for (const Json& mount : *mounts) {
    const Json* read_only = JsonFind(mount, "read_only");
    std::string url = MR_TRY(JsonString(mount, "url")), path = MR_TRY(JsonString(mount, "path"));
    program.mounts.push_back({.url = std::move(url),
                              .path = std::move(path),
                              .read_only = read_only != nullptr && read_only->is_boolean() && read_only->get<bool>()});
  }
  program.directory = MR_TRY(JsonString(json, "directory"));
  program.source = MR_TRY(JsonString(json, "source"));
  program.checkpoint_folder = MR_TRY(JsonString(json, "checkpoint_folder"));
  program.checkpoint_url = MR_TRY(JsonString(json, "checkpoint_url"));
  return program;
}

}  // namespace millrace::jobs
