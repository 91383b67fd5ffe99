#include "millrace/vfs/rename/rename_recovery.h"

#include "millrace/object/blocking.h"
#include "millrace/vfs/rename/rename_cleanup.h"

namespace millrace::vfs {
namespace {

bool IsAbandoned(const RenameRecord& record, const object::ObjectInfo& info, const TreeOptions& options) {
  if (auto alive = options.owner_alive ? options.owner_alive(record.owner) : std::nullopt) return !*alive;
  return options.clock->Wall() - info.modified > kLeaseExpired;
}

/// An undo deletes copies below `to`, so `to` must be below the root. The writer of the record may write below the
/// root. Whether it may write elsewhere is not known.
bool MayUndo(const RenameRecord& record, const RenameRoot& root) { return record.to.starts_with(root.key); }

}  // namespace

Status RecoverRename(object::Store& store, const RenameRoot& root, const std::string& key, const TreeOptions& options,
                     RecoveredRenames& counts, const object::Call& call) {
  auto content = MR_TRY(object::GetAll(store, key, kMaxRenameRecordBytes, call));
  if (!content) return {};  // the rename has just ended
  auto record = DecodeRename(content->bytes, key, root);
  if (record && RenameRecordKey(root, record->id) != key) {
    record = Fail(Code::kCorrupt, "{}: the record is of another rename, {}", key, record->id);
  }
  if (!record) {
    ++counts.left;
    counts.refused.push_back(record.error().ToString());
    return {};
  }
  if (!IsAbandoned(*record, content->info, options)) {
    ++counts.left;
    return {};
  }
  const bool committed = record->committed;
  if (!committed && !MayUndo(*record, root)) {
    counts.refused.push_back(
        fmt::format("{}: the rename to {} was cut off; what it copied there stays, remove it by "
                    "hand",
                    key, record->to));
    ++counts.rolled_back;
    return object::Delete(store, key, call);
  }
  auto lease =
      RenameLease::TakeOver(store, *options.clock, root, *std::move(record), content->info.etag, options.owner, call);
  if (!lease) {  // kBusy: the owner is alive, or another mount recovers the rename
    if (lease.error().code() != Code::kBusy) return Fail(lease.error());
    ++counts.left;
    return {};
  }
  MR_TRY(committed ? DeleteSources(store, **lease, call) : DeleteCopies(store, **lease, call));
  MR_TRY((*lease)->Remove(call));
  ++(committed ? counts.finished : counts.rolled_back);
  return {};
}

Result<RecoveredRenames> RecoverRenames(object::Store& store, const RenameRoot& root, const TreeOptions& options,
                                        const object::Call& call) {
  std::vector<std::string> keys;
  MR_TRY(object::ListAll(
      store, {.prefix = RenameRecordPrefix(root)},
      [&](const object::ListPage& page) {
        for (const auto& info : page.objects) keys.push_back(info.key);
        return true;
      },
      call));
  RecoveredRenames counts;
  for (const std::string& key : keys) MR_TRY(RecoverRename(store, root, key, options, counts, call));
  return counts;
}

Result<RecoveredRenames> RecoverAllRenames(object::Store& store, const TreeOptions& options, const object::Call& call) {
  std::vector<std::string> roots = {options.prefix};
  if (options.buckets_at_top) {
    roots.clear();
    auto collect = [&](const object::ListPage& page) {
      roots.insert(roots.end(), page.common_prefixes.begin(), page.common_prefixes.end());
      return true;
    };
    MR_TRY(object::ListAll(store, {.prefix = options.prefix, .delimiter = "/"}, collect, call));
  }
  RecoveredRenames sum;
  for (const std::string& root : roots) {
    auto done = RecoverRenames(store, {.key = root, .other_buckets = options.buckets_at_top}, options, call);
    if (!done && roots.size() == 1) return done;
    if (!done) {  // one of many buckets; the user may have no access to it
      options.log.Debug("renames in a bucket could not be looked for", {{"bucket", root}, {"reason", done.error()}});
      continue;
    }
    sum.finished += done->finished;
    sum.rolled_back += done->rolled_back;
    sum.left += done->left;
    for (std::string& reason : done->refused) {
      options.log.Warning("the record of a rename is not used; look at it, and delete it if it is not yours",
                          {{"reason", reason}});
      sum.refused.push_back(std::move(reason));
    }
  }
  return sum;
}

RenameRoot RenameRootOf(const TreeOptions& options, std::string_view path) {
  if (!options.buckets_at_top) return {.key = options.prefix};
  return {.key = std::string(path.substr(0, path.find('/', options.prefix.size()) + 1)), .other_buckets = true};
}

}  // namespace millrace::vfs
