#include "apps/millrace/objects/object_versions.h"

#include <map>
#include <optional>

#include "millrace/object/blocking.h"

namespace millrace::cli {
namespace {

/// Returns the outcome of each version from the failures of a request.
std::vector<Status> OutcomesOf(const std::vector<object::VersionName>& versions,
                               Result<std::vector<object::DeleteFailure>> failures) {
  if (!failures) return std::vector<Status>(versions.size(), Status(std::unexpected(failures.error())));
  std::map<object::VersionName, Error> failed;
  for (object::DeleteFailure& failure : *failures) {
    failed.emplace(object::VersionName{std::move(failure.key), std::move(failure.version)}, std::move(failure.error));
  }
  std::vector<Status> outcomes(versions.size());
  for (std::size_t i = 0; i < versions.size(); ++i) {
    if (auto found = failed.find(versions[i]); found != failed.end()) outcomes[i] = std::unexpected(found->second);
  }
  return outcomes;
}

struct UndeleteFlags {
  std::vector<std::string> urls;
  SelectFlags select;
};

/// The delete markers above the latest content of one key.
struct DeletedKey {
  std::string key;
  std::vector<object::VersionName> markers;
  bool has_content = false;
};

void AddUndeletion(TransferRun& run, const ObjectPlace& place, DeletedKey deleted) {
  if (deleted.markers.empty()) return run.Skip();
  const std::string name = place.Name(deleted.key);
  if (!deleted.has_content) {
    return run.AddFailure(name, "", Error(Code::kNotFound, "only delete markers are left of it, and no content"));
  }
  run.Add(name, "", 0,
          [store = place.store, markers = std::move(deleted.markers)](const object::Call& call) -> Result<bool> {
            const auto failures = MR_TRY(object::DeleteVersions(*store, markers, call));
            if (!failures.empty()) return Fail(failures.front().error);
            return true;
          });
}

Result<int> Undelete(const Context& context, object::Connection& connection, const UndeleteFlags& flags) {
  TransferRun run(context, "undelete");
  Status planned;
  for (const std::string& url : MR_TRY(flags.select.Sources(flags.urls))) {
    const Selection selection = MR_TRY(Select(connection, url, flags.select));
    std::optional<DeletedKey> current;
    planned = ForEachVersion(selection, run.call(), [&](object::VersionInfo version) -> Status {
      if (current && current->key != version.info.key) {
        AddUndeletion(run, selection.place, *std::exchange(current, std::nullopt));
      }
      if (!current) current = DeletedKey{.key = version.info.key, .markers = {}};
      if (!version.deletion) current->has_content = true;
      if (!current->has_content) current->markers.push_back({version.info.key, std::move(version.id)});
      return {};
    });
    if (planned && !current)
      planned = Fail(Code::kNotFound, "nothing is or was at {}; `millrace ls --versions` shows what there is",
                     selection.place.Name());
    if (!planned) break;
    AddUndeletion(run, selection.place, *std::move(current));
  }
  return run.Finish(planned);
}

}  // namespace

Status ForEachVersion(const Selection& selection, const object::Call& call,
                      const std::function<Status(object::VersionInfo)>& visit) {
  const ObjectPlace& place = selection.place;
  if (place.local()) {
    return Fail(Code::kInvalidArgument, "{} is a local path, which keeps no versions: give an s3:// URL", place.Name());
  }
  object::VersionsRequest request{.prefix = selection.single ? place.key : selection.prefix};
  for (;;) {
    object::VersionsPage page = MR_TRY(object::ListVersions(*place.store, request, call));
    for (object::VersionInfo& version : page.versions) {
      const std::string& key = version.info.key;
      if (selection.single ? key != place.key : !selection.Wants(key)) continue;
      MR_TRY(visit(std::move(version)));
    }
    request.key_marker = std::move(page.next_key);
    request.version_marker = std::move(page.next_version);
    // The versions of a key come before those of longer keys.
    if (request.key_marker.empty() || (selection.single && request.key_marker != place.key)) return {};
  }
}

void VersionDeletions::Add(object::VersionName version) {
  versions_.push_back(std::move(version));
  if (versions_.size() == kMostInRequest) Flush();
}

void VersionDeletions::Flush() {
  if (versions_.empty()) return;
  std::vector<std::string> names;
  for (const object::VersionName& version : versions_) {
    const bool only = version.id.empty() || version.id == "null";  // of a bucket that keeps no versions
    names.push_back(place_.Name(version.key) + (only ? "" : " (version " + version.id + ")"));
  }
  run_.AddMany(std::move(names), false,
               [store = place_.store, versions = std::exchange(versions_, {})](const object::Call& call) {
                 return OutcomesOf(versions, object::DeleteVersions(*store, versions, call));
               });
}

void AddUndeleteCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<UndeleteFlags>();
  CLI::App* command = AddCommand(app, context, "undelete", "Bring back deleted objects of a bucket that keeps versions",
                                 "  millrace undelete s3://bucket/key\n"
                                 "  millrace undelete -r --dry-run s3://bucket/data/\n",
                                 [&context, flags] {
                                   return WithConnection(context, [&](object::Connection& connection) {
                                     return Undelete(context, connection, *flags);
                                   });
                                 });
  command->add_option("URL", flags->urls, "s3://bucket/key; wildcards * ? [a-z]");
  flags->select.bookkeeping = true;
  flags->select.AddTo(*command);
}

}  // namespace millrace::cli
