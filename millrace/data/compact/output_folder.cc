#include "millrace/data/compact/output_folder.h"

#include <algorithm>
#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/threads/parallel_for.h"
#include "millrace/data/compact/shard_builder.h"
#include "millrace/object/blocking.h"

namespace millrace::data {
namespace {

constexpr int kCopies = 8;                       ///< inside the store at a time; a guess
constexpr std::uint64_t kMaxReportBytes = kGiB;  ///< bounds the memory that a damaged report can take

}  // namespace

Result<OutputFolder> OutputFolder::Open(object::Connection& connection, std::string_view url) {
  object::Location location = MR_TRY(object::Locate(connection, url));
  if (location.key.empty()) {
    return Fail(Code::kInvalidArgument, "{}: name a folder in the bucket for the shards, such as {}{}compacted/", url,
                url, url.ends_with('/') ? "" : "/");
  }
  if (!location.key.ends_with('/')) location.key += '/';
  return OutputFolder(std::move(location));
}

bool OutputFolder::Holds(const object::Store& store, std::string_view key) const {
  return store.Identity() == location_.store->Identity() && key.starts_with(location_.key);
}

void OutputFolder::SetIdentity(std::string_view identity) { identity_ = ShortHash(identity); }

Result<std::optional<std::string>> OutputFolder::FindStagedReport(const object::Call& call) {
  auto report = MR_TRY(object::GetAll(*location_.store, Staged(kReportName), kMaxReportBytes, call));
  if (!report) return std::optional<std::string>();
  return std::optional<std::string>(std::move(report->bytes));
}

Result<bool> OutputFolder::IsPublished(std::string_view report, const object::Call& call) const {
  auto published =
      MR_TRY(object::GetAll(*location_.store, location_.key + std::string(kReportName), kMaxReportBytes, call));
  return published && published->bytes == report;
}

Result<std::vector<std::string>> OutputFolder::List(const object::Call& call) const {
  std::vector<std::string> names;
  auto visit = [&](const object::ListPage& page) {
    for (const object::ObjectInfo& info : page.objects) {
      std::string name = info.key.substr(location_.key.size());
      // An empty name is the marker that some programs keep for a folder.
      if (!name.empty() && !name.starts_with('.') && name.find("/.") == std::string::npos) {
        names.push_back(std::move(name));
      }
    }
    return true;
  };
  MR_TRY(object::ListAll(*location_.store, {.prefix = location_.key}, visit, call));
  return names;
}

Status OutputFolder::CheckFree(std::span<const std::string> own, bool force, const object::Call& call) const {
  const std::vector<std::string> names = MR_TRY(List(call));
  for (const std::string& name : names) {
    const bool of_compaction = IsShardName(name) || name == kReportName;
    if (std::ranges::find(own, name) != own.end() || (force && of_compaction)) continue;
    if (of_compaction) {
      return Fail(Code::kNotEmpty,
                  "{}/{} holds {} of an earlier run; choose another folder, or replace that result (--force)",
                  location_.store->Describe(), location_.key, name);
    }
    return Fail(Code::kNotEmpty, "{}/{} is not empty: it holds {}, which is no shard; choose another folder",
                location_.store->Describe(), location_.key, name);
  }
  return {};
}

Status OutputFolder::RemoveStaged(const object::Call& call) const {
  std::vector<std::string> keys;
  auto visit = [&](const object::ListPage& page) {
    for (const object::ObjectInfo& info : page.objects) keys.push_back(info.key);
    return true;
  };
  MR_TRY(object::ListAll(*location_.store, {.prefix = AllStaged()}, visit, call));
  return Delete(std::move(keys), call);
}

Status OutputFolder::Stage(std::string_view name, std::string_view bytes, const object::Call& call) const {
  MR_TRY(object::Put(*location_.store, Staged(name), AsBytes(bytes), {}, call));
  return {};
}

Status OutputFolder::Publish(std::span<const std::string> names, std::string_view report,
                             const object::Call& call) const {
  // Without its report, the earlier result does not count as whole any more.
  MR_TRY(object::Delete(*location_.store, location_.key + std::string(kReportName), call));
  const std::vector<std::string> present = MR_TRY(List(call));
  std::vector<std::string> stale;
  for (const std::string& name : present) {
    if (IsShardName(name)) stale.push_back(location_.key + name);
  }
  MR_TRY(Delete(std::move(stale), call));
  MR_TRY(ParallelFor("compact-publish", names.size(), kCopies, call.stop, [&] {
    return [&](std::uint64_t i, std::stop_token stop) -> Status {
      const object::Call one{.stop = std::move(stop), .deadline = call.deadline};
      MR_TRY(object::Copy(*location_.store, Staged(names[i]), location_.key + names[i], {}, one));
      return {};
    };
  }));
  MR_TRY(object::Put(*location_.store, location_.key + std::string(kReportName), AsBytes(report), {}, call));
  return RemoveStaged(call);
}

Status OutputFolder::Delete(std::vector<std::string> keys, const object::Call& call) const {
  if (keys.empty()) return {};
  auto failed = MR_TRY(object::DeleteMany(*location_.store, std::move(keys), call));
  if (failed.empty()) return {};
  return Fail(failed[0].error.Context(fmt::format("cannot delete {} objects of an earlier run, such as {}/{}",
                                                  failed.size(), location_.store->Describe(), failed[0].key)));
}

}  // namespace millrace::data
