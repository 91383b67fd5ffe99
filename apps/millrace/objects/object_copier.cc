#include "apps/millrace/objects/object_copier.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/vfs/attributes/attribute_store.h"
#include "millrace/vfs/metadata/attributes.h"

namespace millrace::cli {
namespace {

using transfer::Item;
using transfer::LocalRemover;

/// Returns the key of `name` below a folder of the destination.
Result<std::string> KeyBeneath(const ObjectPlace& to, const std::string& folder, const std::string& name) {
  if (!to.local()) return folder + name;
  return MR_TRY(transfer::LocalPath("/" + folder, name)).substr(1);
}

/// Returns the item with the ETag of its version. Some stores list none: then what has been listed is compared.
Result<Item> Identified(const ObjectPlace& place, Item item, const object::Call& call) {
  if (place.local() || !item.info.etag.empty()) return item;
  auto now = MR_TRY(object::Head(*place.store, item.info.key, call));
  if (!now || now->size != item.info.size) {
    return Fail(Code::kStale, "{} was replaced or deleted meanwhile", place.Name(item.info.key));
  }
  item.info = *std::move(now);
  return item;
}

/// Deletes the object that was copied, not one that has replaced it.
Status DeleteCopied(const ObjectPlace& from, const object::ObjectInfo& info, const object::Call& call) {
  auto now = MR_TRY(object::Head(*from.store, info.key, call));
  if (!now) return {};
  if (now->etag != info.etag) {
    return Fail(Code::kStale, "{} was copied, but replaced since; the new object stays", from.Name(info.key));
  }
  return object::Delete(*from.store, info.key, call);
}

WallTime TimeOf(const timespec& time) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::seconds(time.tv_sec) +
                                                                 std::chrono::nanoseconds(time.tv_nsec)));
}

timespec SpecOf(WallTime time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return {.tv_sec = seconds.count(),
          .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count()};
}

/// Gives a downloaded file the permissions and the time that its object stores. Bits that give a file's users the
/// rights of its owner are left out: the object may be a stranger's.
Status GiveAttributes(const vfs::StoredAttributes& stored, const std::string& path) {
  constexpr mode_t kPermissions = 0777;
  if (stored.is_symlink() || stored.is_special()) return {};
  if (stored.mode && ::chmod(path.c_str(), *stored.mode & kPermissions) != 0) {
    return Fail(ErrnoError(errno, "setting the mode of " + path));
  }
  if (!stored.modified) return {};
  const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, SpecOf(*stored.modified)};
  if (::utimensat(AT_FDCWD, path.c_str(), times, 0) != 0) return Fail(ErrnoError(errno, "setting the time of " + path));
  return {};
}

Result<std::vector<transfer::Region>> RegionsOf(const ObjectPlace& place) {
  if (place.local()) return transfer::RegionsOf("/" + place.key);
  return std::vector<transfer::Region>{transfer::RegionOf(*place.store, place.key)};
}

}  // namespace

Status CheckWritable(const ObjectPlace& place) {
  if (place.url.scheme != object::Url::Scheme::kHub) return {};
  return Fail(Code::kReadOnly, "{}: the hub is only read from; write to a bucket (s3://bucket/…) or to a folder",
              place.Name());
}

Status CheckApart(const ObjectPlace& from, const ObjectPlace& to, const transfer::NameFilter& filter, bool deletes) {
  const auto source = MR_TRY(RegionsOf(from)), destination = MR_TRY(RegionsOf(to));
  const transfer::Overlap overlap = transfer::Compare(source, destination);
  const bool source_inside = overlap == transfer::Overlap::kFirstInSecond;
  if (overlap == transfer::Overlap::kNone || (source_inside && !deletes)) return {};
  if (overlap == transfer::Overlap::kSame) {
    return Fail(Code::kInvalidArgument, "source and destination are the same: {} is {}; choose another destination",
                from.Name(), to.Name());
  }
  const std::string& inner = (source_inside ? source : destination).front().path;
  const std::string& outer = (source_inside ? destination : source).front().path;
  const bool below = inner.size() > outer.size() && inner.starts_with(outer);
  const std::string name = below ? inner.substr(outer.empty() ? 0 : outer.size() + 1) : "";
  if (!name.empty() && filter.ExcludesFolder(name)) return {};
  return Fail(Code::kInvalidArgument,
              "{} is inside {}, or one of them holds a mount of the other{}; choose another destination",
              source_inside ? from.Name() : to.Name(), source_inside ? to.Name() : from.Name(),
              name.empty() ? "" : fmt::format("; leave it out with --exclude '{}/*'", name));
}

void CopyFlags::AddCommon(CLI::App& command) {
  write.AddTo(command);
  source.AddTo(command);
  command.add_flag("--preserve", preserve,
                   "Keep permissions and times of files: objects store them as `millrace mount` does");
  command.add_flag("--no-follow-symlinks", select.skips_links, "Leave out symbolic links");
  command.add_flag("--no-verify", no_verify, "Skip checksum verification of downloads");
}

void CopyFlags::AddWatch(CLI::App& command) {
  auto* again = command.add_flag("--watch", watch,
                                 "Go on until a signal: copy again whenever the source has changed. Files that are "
                                 "being written wait");
  command
      .add_option_function<std::string>(
          "--interval",
          [this](const std::string& text) {
            auto parsed = ParseDuration(text);
            if (!parsed || *parsed <= Duration::zero()) {
              throw CLI::ValidationError("--interval: " + text + " is not a duration such as 30s");
            }
            interval = *parsed;
          },
          "With --watch: how often to look at a store, which does not tell of changes (default: 10s)")
      ->type_name("DURATION")
      ->needs(again);
}

std::string AsFolder(const std::string& key) { return key.empty() || key.ends_with('/') ? key : key + "/"; }

Result<CopySource> CopySource::Of(Selection selection, bool move) {
  CopySource source{.selection = std::move(selection), .remover = nullptr};
  if (move && source.selection.place.local()) {
    source.remover = std::make_unique<LocalRemover>(MR_TRY(LocalRemover::Open("/" + source.selection.Folder())));
  }
  return source;
}

Copier::Copier(TransferRun& run, const CopyFlags& flags, bool move, ObjectPlace to, Relay relay)
    : run_(run),
      flags_(flags),
      move_(move),
      to_(std::move(to)),
      settings_(run.Settings(flags.write.part_bytes)),
      always_relays_(relay.always),
      relay_(relay.bytes) {
  settings_.verify = !flags.no_verify;
}

/// Returns whether the copy is refused, and reports why: it is onto itself, or onto a file that the same move wrote.
bool Copier::Refused(const ObjectPlace& from, const std::string& source_key, const std::string& key) {
  auto refuse = [&](std::string_view why) {
    run_.AddFailure(from.Name(source_key), to_.Name(key), Error(Code::kInvalidArgument, std::string(why)));
    return true;
  };
  if (same_.Same({*from.store, from.local(), source_key}, {*to_.store, to_.local(), key})) {
    return refuse("source and destination are the same");
  }
  const bool clashes = flags_.flatten || (move_ && flags_.sources().size() > 1);  // two may have one name
  const bool first = !clashes || written_.insert(std::hash<std::string>()(key)).second;
  return first ? false : refuse("another source of this command has this destination; it is not overwritten");
}

void Copier::Add(const CopySource& from, Item item, const std::string& key) {
  const ObjectPlace& place = from.selection.place;
  if (Refused(place, item.info.key, key)) return;
  const std::uint64_t size = item.info.size;
  std::string source = place.Name(item.info.key);
  run_.Add(
      std::move(source), to_.Name(key), size,
      [this, &from, item = std::move(item), key](const object::Call& call) { return Move(from, item, key, call); });
}

void Copier::AddBeneath(const CopySource& from, const std::string& folder, Item item) {
  const bool marks = item.info.size == 0 || item.info.size == vfs::AttributeStore::kMarkBody.size();
  if (to_.local() && marks && (item.name.empty() || item.name.ends_with('/'))) {
    const bool makes = flags_.empty_folders && !flags_.flatten && !item.name.empty();
    return makes ? AddFolder(from, folder, item) : run_.Skip();
  }
  const std::string name = flags_.flatten ? item.name.substr(item.name.rfind('/') + 1) : item.name;
  auto key = KeyBeneath(to_, folder, name);
  if (!key) return run_.AddFailure(from.selection.place.Name(item.info.key), to_.Name(folder), key.error());
  Add(from, std::move(item), *key);
}

void Copier::AddFolder(const CopySource& from, const std::string& folder, const Item& item) {
  const std::string source = from.selection.place.Name(item.info.key);
  const auto key = KeyBeneath(to_, folder, item.name.substr(0, item.name.size() - 1));
  if (!key) return run_.AddFailure(source, to_.Name(folder), key.error());
  run_.Add(source, to_.Name(*key + "/"), 0, [this, key = *key](const object::Call& call) -> Result<bool> {
    if (to_.local()) {
      std::error_code error;
      const bool made = std::filesystem::create_directories("/" + key, error);
      if (error) return Fail(ErrnoError(error.value(), "making the folder /" + key));
      return made;
    }
    const auto put = object::Put(*to_.store, key + "/", {}, {.if_none_match = true}, call);
    if (!put && put.error().code() == Code::kPreconditionFailed) return false;
    if (!put) return Fail(put.error());
    return true;
  });
}

void Copier::AddUnseen(const CopySource& from, const std::string& folder) {
  const ObjectPlace& place = from.selection.place;
  auto key = KeyBeneath(to_, folder, place.key.substr(place.key.rfind('/') + 1));
  if (!key) return run_.AddFailure(place.Name(), to_.Name(folder), key.error());
  if (Refused(place, place.key, *key)) return;
  run_.Add(place.Name(), to_.Name(*key), 0, [this, &from, key = *key](const object::Call& call) -> Result<bool> {
    const ObjectPlace& source = from.selection.place;
    auto info = MR_TRY(object::Head(*source.store, source.key, call));
    if (!info) return Fail(Code::kNotFound, "{} does not exist; check the name with `millrace ls`", source.Name());
    return Move(from, {"", *std::move(info)}, key, call);
  });
}

/// Returns the item with the metadata of its object, if the copy needs them. Errors: kStale if it was replaced.
Result<Item> Copier::WithAttributes(const ObjectPlace& from, const Item& item, const object::Call& call) const {
  if (!flags_.preserve || !to_.local() || from.local()) return item;
  auto head = MR_TRY(object::Head(*from.store, item.info.key, call));
  if (!head || head->etag != item.info.etag) {
    return Fail(Code::kStale, "{} was replaced or deleted meanwhile", from.Name(item.info.key));
  }
  return Item{item.name, *std::move(head)};
}

/// Returns whether the file that the item would become has its size and the time that the item's object stores.
bool Copier::IsSameFile(const Item& item, const std::string& key) const {
  const auto modified = vfs::FromMetadata(item.info.metadata).modified;
  struct stat file = {};
  return modified && ::stat(("/" + key).c_str(), &file) == 0 &&
         static_cast<std::uint64_t>(file.st_size) == item.info.size && TimeOf(file.st_mtim) == *modified;
}

Result<bool> Copier::Move(const CopySource& from, const Item& listed, const std::string& key,
                          const object::Call& call) {
  if (from.remover) return MoveFile(from, listed, key, call);
  const ObjectPlace& place = from.selection.place;
  const Item identified = MR_TRY(Identified(place, listed, call));
  const Item item = MR_TRY(WithAttributes(place, identified, call));
  if (flags_.is_sync && flags_.preserve && to_.local() && !flags_.when.checksum && IsSameFile(item, key)) return false;
  if (!MR_TRY(Needed(place, item.info, key, call))) return false;
  if (!MR_TRY(Written(CopyOne(place, item, key, call)))) return false;
  if (!move_) return true;
  MR_TRY(CheckArrived(item.info.size, key, call));
  MR_TRY(DeleteCopied(place, item.info, call));
  return true;
}

Result<bool> Copier::MoveFile(const CopySource& from, const Item& item, const std::string& key,
                              const object::Call& call) {
  const std::string name = item.info.key.substr(from.selection.Folder().size());
  bool removed = false;
  auto move = [&]() -> Result<bool> {
    if (!MR_TRY(Needed(from.selection.place, item.info, key, call))) return false;
    const transfer::LocalFile file = MR_TRY(transfer::LocalFile::Open("/" + item.info.key));
    if (!MR_TRY(Written(SendFile(file, key, call)))) return false;
    MR_TRY(CheckArrived(file.size(), key, call));
    removed = MR_TRY(from.remover->RemoveSent(name, file)) != LocalRemover::Outcome::kBehindLink;
    return true;
  };
  Result<bool> moved = move();
  if (removed) return moved;
  if (auto link = from.remover->LinkOn(name)) NoteLink(from, *link, moved.value_or(false));
  return moved;
}

/// Returns false if --no-clobber kept an object that another writer made during the copy.
Result<bool> Copier::Written(const Status& copied) const {
  if (copied) return true;
  if (flags_.no_clobber && copied.error().code() == Code::kPreconditionFailed) return false;
  return std::unexpected(copied.error());
}

/// Checks that the destination of a move has all bytes, before the source goes. The bytes of a local file were counted
/// when they were written. If the credentials may not look at the destination, the store's answer to the copy counts.
Status Copier::CheckArrived(std::uint64_t size, const std::string& key, const object::Call& call) const {
  if (to_.local()) return {};
  const auto there = object::Head(*to_.store, key, call);
  if (!there && there.error().code() == Code::kPermissionDenied) return {};
  if (!there) return Fail(there.error().Context("looking at the copy; the source stays"));
  if (*there && (*there)->size == size) return {};
  return Fail(Code::kStale, "{} {} after the copy of {} bytes; the source stays", to_.Name(key),
              *there ? fmt::format("has {} bytes", (*there)->size) : "is not there", size);
}

Status Copier::SendFile(const transfer::LocalFile& file, const std::string& key, const object::Call& call) {
  if (to_.local()) return transfer::CopyFile(file, "/" + key, settings_, call);
  object::PutOptions put = flags_.write.ForUpload(key);
  put.if_none_match = flags_.no_clobber;
  if (flags_.preserve) {
    const vfs::StoredAttributes stored{.mode = file.state().st_mode, .modified = TimeOf(file.modified())};
    MR_TRY(vfs::ToMetadata(stored, put.metadata));
  }
  MR_TRY(transfer::Upload(file, *to_.store, key, put, settings_, call));
  CheckKept(key, std::move(put), call);
  return {};
}

/// Looks whether the store has kept what the user gave. A content type that is only a guess from the name does not
/// count.
void Copier::CheckKept(const std::string& key, object::PutOptions sent, const object::Call& call) {
  sent.content_type = flags_.write.content_type;
  kept_.Look(*to_.store, key, to_.Name(key), sent, call);
}

/// Copies one item between any two places, local or not.
Status Copier::CopyOne(const ObjectPlace& from, const Item& item, const std::string& key, const object::Call& call) {
  if (from.local()) return SendFile(MR_TRY(transfer::LocalFile::Open("/" + item.info.key)), key, call);
  if (to_.local()) {
    MR_TRY(transfer::Download(*from.store, item.info, "/" + key, settings_, call));
    return flags_.preserve ? GiveAttributes(vfs::FromMetadata(item.info.metadata), "/" + key) : Status();
  }
  if (from.url.scheme != to_.url.scheme || always_relays_) {
    const object::PutOptions put = MR_TRY(RelayOptions(from, item.info, key, call));
    MR_TRY(transfer::RelayObject(*from.store, item.info, *to_.store, key, put, relay_, settings_, call));
    CheckKept(key, put, call);
    return {};
  }
  object::CopyOptions options = flags_.write.ForCopy();
  options.if_none_match = flags_.no_clobber;
  if (from.url.bucket != to_.url.bucket) options.source_bucket = from.url.bucket;
  const object::PutOptions given{.metadata = options.metadata.value_or(std::map<std::string, std::string>()),
                                 .attributes = options.attributes};
  MR_TRY(transfer::CopyObject(*from.store, item.info, *to_.store, key, std::move(options), settings_, call));
  CheckKept(key, given, call);
  return {};
}

/// Returns the options of a relayed copy. From a bucket, content type and metadata are kept as the server's own copies
/// keep them. Errors: kStale if the source has another version now.
Result<object::PutOptions> Copier::RelayOptions(const ObjectPlace& from, const object::ObjectInfo& info,
                                                const std::string& key, const object::Call& call) const {
  object::PutOptions put = flags_.write.ForUpload(key);
  if (from.url.scheme == to_.url.scheme) {
    const auto head = MR_TRY(object::Head(*from.store, info.key, call));
    if (!head || head->etag != info.etag) {
      return Fail(Code::kStale, "{} was replaced or deleted meanwhile", from.Name(info.key));
    }
    put = transfer::PutOptionsOfCopy(*head, flags_.write.ForCopy());
  }
  put.if_none_match = flags_.no_clobber;
  return put;
}

/// Returns whether --no-clobber, --if-newer, --if-size-differ and --checksum allow the copy.
Result<bool> Copier::Needed(const ObjectPlace& from, const object::ObjectInfo& source, const std::string& key,
                            const object::Call& call) {
  if (!flags_.when.conditional() && !flags_.no_clobber) return true;
  auto there = MR_TRY(object::Head(*to_.store, key, call));
  if (!there) return true;
  if (flags_.no_clobber) return false;
  transfer::ComparedItem ours{.store = from.store.get(), .local = from.local(), .info = source};
  transfer::ComparedItem theirs{.store = to_.store.get(), .local = to_.local(), .info = *std::move(there)};
  return transfer::NeedsCopy(ours, theirs, flags_.when, call);
}

void Copier::NoteLink(const CopySource& from, const std::string& link, bool moved) {
  MutexLock lock(mutex_);
  Link& known = links_.try_emplace(from.selection.Folder() + link, Link{&from}).first->second;
  known.all_moved = known.all_moved && moved;
}

void Copier::RemoveLinks() {
  MutexLock lock(mutex_);
  for (const auto& [path, link] : links_) {
    if (!link.all_moved) continue;
    const std::string name = path.substr(link.from->selection.Folder().size()) + "/";  // a link, or it stays
    if (auto removed = link.from->remover->Remove(name); !removed) {
      run_.AddFailure("/" + path, "", removed.error());
    }
  }
}

}  // namespace millrace::cli
