// Reads and changes the attributes that objects store.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>

#include "millrace/base/log.h"
#include "millrace/object/store.h"
#include "millrace/vfs/listing/listing.h"
#include "millrace/vfs/metadata/attributes.h"
#include "millrace/vfs/metadata/metadata_cache.h"
#include "millrace/vfs/staging/upload_ledger.h"
#include "millrace/vfs/types/options.h"

namespace millrace::vfs {

/// Reads and changes stored attributes. A listing does not show them, and a Head for every entry would be expensive. So
/// a directory with entries that store attributes is **marked**: its marker object `dir/` has a body, which its listing
/// shows as a size. Entries of other directories store none. The mark is written before the attributes, so a change
/// that is cut off costs needless Heads at most.
///
/// Some stores take no body in a marker. There, the mark is a note in the marker's metadata, which a listing does not
/// show: the directory is known to be marked until the mount ends.
///
/// Some stores drop metadata, those of markers (SeaweedFS) or all. So the first object with attributes is looked at
/// (Keeps).
///
/// A directory's own attributes are those of its marker, and it is an entry of its parent like any other. Directories
/// are named by their keys ("" or ending with '/'). Thread-safe. Calls block.
class AttributeStore {
 public:
  /// `root`: the key of the tree's root. `ledger`: null for a read-only tree. The references must outlive this.
  AttributeStore(object::Store& store, MetadataCache& cache, const Clock& clock, std::string root,
                 StoredAttributesPolicy policy, bool buckets_at_top = false, UploadLedger* ledger = nullptr,
                 Logger log = {})
      : store_(store),
        cache_(cache),
        clock_(clock),
        root_(std::move(root)),
        buckets_at_top_(buckets_at_top),
        ledger_(ledger),
        policy_(policy),
        log_(std::move(log)) {}

  /// Returns what a Head says about a file.
  Metadata FromHead(const object::ObjectInfo& info, TimePoint as_of) const;

  /// Asks the store for attributes that are not known yet, many at the same time. Puts them into the cache.
  Status Complete(const std::string& path, Metadata& state, const object::Call& call);
  Status Complete(const std::string& directory, std::span<ListedName> entries, const object::Call& call);

  /// Marks a directory: from now on, the store is asked for the attributes of its entries.
  Status Mark(const std::string& directory, const object::Call& call);
  /// Makes a marker for a directory that has none. Without a marker, a directory exists only while something is below
  /// it.
  Status Keep(const std::string& directory, const object::Call& call);
  /// Makes a directory. Errors: kAlreadyExists if it has a marker.
  Result<Metadata> MakeDirectory(const std::string& directory, const StoredAttributes& attributes,
                                 const object::Call& call);

  /// Returns whether the store keeps the metadata of objects like this one, a marker or a file. Until one of them had
  /// all metadata that were sent, asks the store for those of `key`, which was just written with `sent`. Logs the first
  /// loss. If the store does not answer or has another version than `etag` (empty: unknown), returns true.
  bool Keeps(const std::string& key, const std::string& etag, const UserMetadata& sent, const object::Call& call);
  /// Returns the error of a caller who asked for attributes that the store has not kept.
  static Error NotKept(const std::string& key);

  /// Changes attributes in place. If it fails, nothing is changed, and its error is returned. kUnsupported: the store
  /// keeps none.
  using Change = std::function<Status(StoredAttributes&)>;
  /// Changes the attributes of a file. The bytes stay, the ETag may change. `reported`: the state reported last, whose
  /// time is exact; the time of a Head is in whole seconds. Errors: kNotFound if there is no such file.
  Result<Metadata> ChangeFile(const std::string& path, const Metadata& reported, const Change& change,
                              const object::Call& call);
  Result<Metadata> ChangeDirectory(const std::string& directory, const Change& change, const object::Call& call);

  bool stores() const { return policy_ != StoredAttributesPolicy::kNever; }

  /// What the marker of a marked directory holds.
  static constexpr std::string_view kMarkBody = "{\"millrace\":\"directory\",\"entries\":\"have attributes\"}\n";
  /// Makes what marks a directory: sets the note in `metadata`, or returns the body of the marker.
  ByteSpan MarkOf(UserMetadata& metadata) const;
  /// Takes the `error` of a marker with a body. Returns whether the store takes no body there: then try again.
  bool ForgoBodies(const Error& error);
  bool IsWholeBucket(const std::string& directory) const;
  std::string MarkerKey(const std::string& directory) const;

 private:
  Result<bool> IsMarked(const std::string& directory, const object::Call& call);
  Result<std::optional<object::ObjectInfo>> HeadMarker(const std::string& directory, const object::Call& call);
  static bool Marks(const object::ObjectInfo& marker);
  Status MarkFor(const std::string& path, const StoredAttributes& attributes, const object::Call& call);

  object::Store& store_;
  MetadataCache& cache_;
  const Clock& clock_;
  const std::string root_;
  const bool buckets_at_top_;
  UploadLedger* const ledger_;  ///< null: a read-only tree
  const StoredAttributesPolicy policy_;
  const Logger log_;
  std::atomic<bool> markers_keep_ = false, files_keep_ = false, warned_ = false;
};

}  // namespace millrace::vfs
