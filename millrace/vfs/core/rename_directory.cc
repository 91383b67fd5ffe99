// Renames of directories: copies all objects, commits the rename, then deletes the sources.
#include <algorithm>
#include <map>
#include <set>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/blocking.h"
#include "millrace/object/rules.h"
#include "millrace/transfer/stream/window.h"
#include "millrace/vfs/attributes/copy.h"
#include "millrace/vfs/core/rename.h"
#include "millrace/vfs/rename/rename_cleanup.h"
#include "millrace/vfs/rename/rename_recovery.h"
#include "millrace/vfs/types/names.h"

namespace millrace::vfs {
namespace {

/// Objects of one rename. Bounds the memory, and the record (kMaxRenameRecordBytes), which hold names and versions.
constexpr std::size_t kMaxObjects = 250'000;
constexpr int kParallelCopies = 32;  ///< a guess: hides the latency of a copy
/// Rounds of copying. Each round after the first copies what others changed meanwhile. 5: a guess.
constexpr int kMaxRounds = 5;

/// Returns an id that no other rename has: `owner` names one process, which counts its renames.
std::string NewId(TreeCore& core) {
  const std::string text =
      fmt::format("{} {} {}", core.options.owner, core.clock.Wall().time_since_epoch().count(), ++core.renames);
  return HexEncode(ByteSpan(Sha256(AsBytes(text))).first(8));
}

class DirectoryRename {
 public:
  DirectoryRename(TreeCore& core, const NamedPath& from, const NamedPath& to, bool replaces, const object::Call& call)
      : core_(core),
        from_(from),
        to_(to),
        call_(call),
        copying_{.stop = stop_copying_.get_token(), .deadline = call.deadline},
        on_caller_(call.stop, [this] { stop_copying_.request_stop(); }) {
    record_.id = NewId(core);
    record_.owner = core.options.owner;
    record_.from = from.path + "/";
    record_.to = to.path + "/";
    record_.replaced_empty = replaces;
  }

  /// `names_lock` covers both names. The settler gets it if the store does not confirm the end.
  Status Run(PathLock::ExclusiveLock& names_lock) {
    const RenameRoot root = RenameRootOf(core_.options, record_.from);
    for (const std::string& path : {record_.from, record_.to}) {
      if (core_.options.buckets_at_top && path == RenameRootOf(core_.options, path).key) {
        return Fail(Code::kPermissionDenied,
                    "{} is a bucket, or would be one: buckets keep their names; move what is in it instead", path);
      }
    }
    MR_TRY(PublishBelow());
    MR_TRY(List(listed_));
    MR_TRY(CheckNames());
    MR_TRY(CheckTargetEmpty());
    MR_TRY(core_.attributes.Keep(std::string(DirectoryOf(from_.path)), call_));
    MR_TRY(MarkParent());
    lease_ = RenameLease::Prepare(core_.store, *core_.options.clock, root, record_);
    if (Status created = lease_->Create(call_); !created) return GiveUp(created.error(), names_lock);
    {
      const std::stop_callback on_lost(lease_->lost(), [this] { stop_copying_.request_stop(); });
      Status copied = CopyAll();
      if (copied) copied = Commit();
      if (!copied) return RollBack(copied.error(), names_lock);
    }
    MoveInodes();
    Status deleted = DeleteSources(core_.store, *lease_, call_);
    if (deleted) deleted = lease_->Remove(call_);
    // The new name is complete. The settler deletes the remaining sources later.
    if (!deleted) core_.settler.Add(std::move(lease_), std::move(names_lock), deleted.error());
    return {};
  }

 private:
  using Versions = std::map<std::string, RenameRecord::Source>;  ///< by name below the directory
  struct CopiedObject {
    RenameRecord::Source source;
    Metadata state;  ///< of the copy
  };

  Status PublishBelow() {
    for (const InodePtr& inode : core_.table.InUse()) {
      auto writer = core_.WriterOf(*inode);
      auto path = core_.table.PathOf(*inode);
      if (!writer || !path || !path->starts_with(record_.from)) continue;
      turns_.emplace(inode->id, MR_TRY(core_.write_back.PublishAndHold(inode, writer, call_)));
    }
    return {};
  }

  Status List(Versions& versions) {
    versions.clear();
    bool too_many = false;
    MR_TRY(object::ListAll(
        core_.store, {.prefix = record_.from},
        [&](const object::ListPage& page) {
          for (const auto& info : page.objects) {
            std::string name = info.key.substr(record_.from.size());
            versions[name] = {name, info.etag, info.modified};
          }
          too_many = versions.size() > kMaxObjects;
          return !too_many;
        },
        call_));
    if (too_many) {
      return Fail(Code::kResourceExhausted,
                  "{} has more than {} objects; rename what is in it, or copy it with `millrace mv`", record_.from,
                  kMaxObjects);
    }
    return {};
  }

  Status CheckNames() const {
    for (const auto& [name, source] : listed_) {
      if (record_.to.size() + name.size() > kMaxKeyBytes) {
        return Fail(Code::kNameTooLong, "keys have at most {} bytes; {}{} is longer", kMaxKeyBytes, record_.to, name);
      }
    }
    return {};
  }

  Status CheckTargetEmpty() {
    // Local names first, then the store's: a file that is published meanwhile is found in one of them.
    InodePtr inode = core_.table.FindChild(to_.parent, to_.name);
    const bool local_names =
        inode && inode->kind == NodeKind::kDirectory && !core_.table.LocalChildren(inode->id).empty();
    auto page = MR_TRY(object::List(core_.store, {.prefix = record_.to, .max_keys = 2}, call_));
    const bool has_marker = !page.objects.empty() && page.objects.front().key == record_.to;
    if (local_names || page.objects.size() > (has_marker ? 1u : 0u)) {
      return Fail(Code::kNotEmpty, "{} is not empty; remove what is in it first", to_.path);
    }
    return {};
  }

  /// If the directory stores attributes, marks its new parent: see AttributeStore.
  Status MarkParent() {
    auto marker = MR_TRY(object::Head(core_.store, record_.from, call_));
    if (!marker || FromMetadata(marker->metadata).empty()) return {};
    return core_.attributes.Mark(std::string(DirectoryOf(to_.path)), call_);
  }

  /// Copies until a listing shows no version that has not been copied.
  Status CopyAll() {
    MR_TRY(MakeMarkers());
    Versions wanted = listed_;
    for (int round = 1;; ++round) {
      MR_TRY(CopyThese(wanted));
      Versions now;
      MR_TRY(List(now));
      wanted.clear();
      for (const auto& [name, source] : now) {
        auto copied = copied_.find(name);
        if (copied == copied_.end() || copied->second.source != source) wanted.emplace(name, source);
      }
      for (auto at = copied_.begin(); at != copied_.end();) {  // copies whose sources others have deleted
        if (now.contains(at->first) || at->first.empty()) {
          ++at;
          continue;
        }
        MR_TRY(DeleteCopy(record_.to + at->first, at->second.state.etag));
        at = copied_.erase(at);
      }
      if (wanted.empty()) return {};
      if (round == kMaxRounds)
        return Fail(Code::kBusy, "others keep changing what is in {}; stop them, then move it again", record_.from);
    }
  }

  /// Deletes a copy, unless the key has another version now.
  Status DeleteCopy(const std::string& key, const std::string& etag) {
    auto info = MR_TRY(object::Head(core_.store, key, call_));
    if (!info || info->etag != etag) return {};
    return object::Delete(core_.store, key, MR_TRY(lease_->Guard(call_)));
  }

  /// Makes markers for the new directory, and marks directories before files with stored attributes are copied there.
  Status MakeMarkers() {
    if (core_.attributes.stores()) {
      for (const auto& [name, source] : listed_) {
        if (!name.ends_with('/')) to_mark_.insert(std::string(DirectoryOf(name)));
      }
    }
    std::set<std::string> wanted = to_mark_;
    wanted.insert("");
    transfer::Window window(kParallelCopies, copying_);
    for (const std::string& directory : wanted) {
      if (listed_.contains(directory)) continue;  // CopyThese() copies its marker
      if (!window.Enter()) break;
      PutMarker(directory, window);
    }
    return window.Finish();
  }

  void PutMarker(const std::string& directory, transfer::Window& window) {
    object::PutOptions options;
    options.metadata[kRenameKey] = record_.id;
    const ByteSpan body = to_mark_.contains(directory) ? core_.attributes.MarkOf(options.metadata) : ByteSpan();
    core_.store.Put(record_.to + directory, body, std::move(options), window.call(),
                    [this, directory, had_body = !body.empty(), &window](auto put) {
                      if (put) return window.Leave({});
                      const bool again = had_body && core_.attributes.ForgoBodies(put.error());
                      if (again) return PutMarker(directory, window);
                      window.Leave(Fail(put.error()));
                    });
  }

  Status CopyThese(const Versions& wanted) {
    std::vector<object::ObjectInfo> in_parts;
    transfer::Window window(kParallelCopies, copying_);
    for (const auto& [name, source] : wanted) {
      if (!window.Enter()) break;
      core_.store.Head(record_.from + name, window.call(), [&, source](auto info) {
        if (!info) return window.Leave(Fail(info.error()));
        if (!*info) return window.Leave({});  // deleted: the next round notices
        if ((*info)->size > core_.store.limits().max_put) {
          MutexLock lock(mutex_);
          in_parts.push_back(**info);
          return window.Leave({});
        }
        StartCopy(std::move(**info), source, window);
      });
    }
    MR_TRY(window.Finish());
    for (const object::ObjectInfo& info : in_parts) {
      const auto& source = wanted.at(info.key.substr(record_.from.size()));
      UserMetadata metadata = MR_TRY(CopyMetadata(info));
      auto copied =
          CopyVersion(core_.store, core_.uploads_begun(), info, record_.to + source.name,
                      {.if_none_match = !MayReplace(source.name), .metadata = metadata, .unique = true}, copying_);
      if (!copied && copied.error().code() == Code::kStale) continue;
      MR_TRY(Remember(source, info, metadata, MR_TRY(std::move(copied)).etag));
    }
    return {};
  }

  void StartCopy(object::ObjectInfo info, const RenameRecord::Source& source, transfer::Window& window) {
    auto metadata = CopyMetadata(info);
    if (!metadata) return window.Leave(Fail(metadata.error()));
    const std::string to = record_.to + source.name;
    const bool marks = info.size == 0 && to_mark_.contains(source.name);
    auto done = [this, info, source, metadata = *metadata, &window](Result<object::PutResult> copied) {
      if (!copied) return Examine(info, source, metadata, copied.error(), window);
      window.Leave(Remember(source, info, metadata, copied->etag));
    };
    if (marks) {  // the copy of an empty marker gets the body that marks the directory
      object::PutOptions options{.if_match = {}, .content_type = info.content_type, .metadata = *std::move(metadata)};
      const ByteSpan body = core_.attributes.MarkOf(options.metadata);
      core_.store.Put(
          to, body, std::move(options), window.call(),
          [this, info, source, &window, had_body = !body.empty(), done = std::move(done)](auto put) mutable {
            if (!put && had_body && core_.attributes.ForgoBodies(put.error()))
              return StartCopy(std::move(info), source, window);
            done(std::move(put));
          });
      return;
    }
    object::CopyOptions options;
    options.source_if_match = info.etag;
    options.if_none_match = !MayReplace(source.name);
    options.content_type = info.content_type;
    options.metadata = *std::move(metadata);
    options.attributes = object::KeptAttributes(info);
    core_.store.Copy(info.key, to, std::move(options), window.call(), std::move(done));
  }

  /// Returns true if a copy may replace the object under the new name: a marker, or an earlier copy of this rename.
  bool MayReplace(const std::string& name) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return name.empty() || name.ends_with('/') || ours_.contains(name);
  }

  /// Decides what a failed copy means. The copy may exist, if the store's answer was lost. The store refuses a copy if
  /// the source has changed, or if others have made an object under the new name.
  void Examine(const object::ObjectInfo& info, const RenameRecord::Source& source, const UserMetadata& metadata,
               const Error& error, transfer::Window& window) {
    const bool refused = error.code() == Code::kPreconditionFailed;
    core_.store.Head(record_.to + source.name, window.call(), [=, this, &window](auto found) {
      if (!found || (!*found && !refused)) return window.Leave(Fail(error));
      if (!*found) return window.Leave({});  // the source has changed: the next round copies it
      auto is = [&](const char* name, const std::string& value) {
        auto entry = (*found)->metadata.find(name);
        return entry != (*found)->metadata.end() && entry->second == value;
      };
      if (!is(kRenameKey, record_.id)) {
        return window.Leave(
            refused ? Fail(Code::kNotEmpty, "others put {} into the new place; choose another name", source.name)
                    : Fail(error));
      }
      if (is(kRenameSourceKey, info.etag)) return window.Leave(Remember(source, info, metadata, (*found)->etag));
      if (!refused) return window.Leave(Fail(error));
      MutexLock lock(mutex_);
      ours_.insert(source.name);
      lock.Unlock();
      window.Leave({});
    });
  }

  Result<UserMetadata> CopyMetadata(const object::ObjectInfo& info) const {
    UserMetadata metadata = MR_TRY(MetadataOfCopy(core_, info, info.modified)).value_or(info.metadata);
    metadata[kRenameKey] = record_.id;
    metadata[kRenameSourceKey] = info.etag;
    return metadata;
  }

  Status Remember(const RenameRecord::Source& source, object::ObjectInfo info, UserMetadata metadata, std::string etag)
      MR_EXCLUDES(mutex_) {
    info.etag = std::move(etag);
    info.modified = core_.clock.Wall();
    info.metadata = std::move(metadata);
    Metadata state = core_.attributes.FromHead(info, core_.clock.Now());
    state.modified = info.modified;
    MutexLock lock(mutex_);
    ours_.insert(source.name);
    copied_[source.name] = {source, std::move(state)};
    return {};
  }

  /// After an error other than kBusy, the commit may have reached the store. Nothing is deleted before a confirmed
  /// commit, so the rename can still be undone.
  Status Commit() {
    RenameRecord committed = record_;
    committed.committed = true;
    for (const auto& [name, copied] : copied_) {
      committed.sources.push_back(copied.source);
      committed.sources.back().copy_etag = copied.state.etag;
    }
    return lease_->Write(std::move(committed), call_);
  }

  /// Ends a rename whose record could not be created. If the record may exist, the settler removes it.
  Status GiveUp(const Error& reason, PathLock::ExclusiveLock& names_lock) {
    const bool open = IsRetryable(reason.code()) || reason.code() == Code::kCancelled;
    if (open) core_.settler.Add(std::move(lease_), std::move(names_lock), reason);
    return Fail(reason.Context(fmt::format("renaming {} to {}", record_.from, record_.to)));
  }

  Status RollBack(const Error& reason, PathLock::ExclusiveLock& names_lock) {
    Status undone = SettleRename(core_.store, *lease_, {});
    Forget();
    const bool lost = lease_->lost().stop_requested();
    const Error reported = !undone && lost ? undone.error() : reason;
    if (!undone) core_.settler.Add(std::move(lease_), std::move(names_lock), undone.error());
    return Fail(reported.Context(fmt::format("renaming {} to {}", record_.from, record_.to)));
  }

  void Forget() {
    core_.metadata.ForgetBelow(record_.from);
    core_.metadata.ForgetBelow(record_.to);
  }

  /// Moves inodes and open files to the new name.
  void MoveInodes() {
    const auto below = core_.table.FilesBelow(record_.from);
    if (InodePtr moved = core_.table.FindChild(from_.parent, from_.name)) {
      core_.table.Move(*moved, to_.parent, to_.name);
    } else if (InodePtr replaced = core_.table.FindChild(to_.parent, to_.name)) {
      core_.table.Unlink(*replaced);
    }
    Forget();
    core_.metadata.Put(from_.path, {.as_of = core_.clock.Now()});
    core_.metadata.Put(to_.path, {.state = Metadata::State::kDirectory, .as_of = core_.clock.Now()});
    for (const auto& [id, name] : below) {
      auto copied = copied_.find(name);
      auto inode = core_.table.Find(id);
      if (copied == copied_.end() || !inode) continue;
      auto turn = turns_.find(id);
      if (turn != turns_.end()) turn->second.SetStoredVersion(record_.to + name, copied->second.state.etag);
      MutexLock lock((*inode)->mutex);
      core_.ReportMoved(**inode, copied->second.state);
    }
  }

  TreeCore& core_;
  const NamedPath& from_;
  const NamedPath& to_;
  const object::Call& call_;
  std::stop_source stop_copying_;  ///< fires with the caller's stop, and when the lease is lost
  const object::Call copying_;
  const std::stop_callback<std::function<void()>> on_caller_;
  RenameRecord record_;
  std::unique_ptr<RenameLease> lease_;
  std::map<InodeId, Writer::PublicationLock>
      turns_;  ///< of open files with writers: their content cannot change before the rename ends
  Versions listed_;
  std::set<std::string> to_mark_;  ///< directories below `from` with files that will store attributes
  Mutex mutex_;
  std::map<std::string, CopiedObject> copied_;  ///< guarded by mutex_ while copies are under way
  std::set<std::string> ours_;                  ///< names of the copies; guarded in the same way
};

}  // namespace

Status RenameDirectory(TreeCore& core, const NamedPath& from, const NamedPath& to, bool replaces,
                       PathLock::ExclusiveLock& names_lock, const object::Call& call) {
  return DirectoryRename(core, from, to, replaces, call).Run(names_lock);
}

}  // namespace millrace::vfs
