// Stored attributes in the bucket: which entries have any, what they are, how they change.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "millrace/object/store.h"
#include "millrace/vfs/listing/listing.h"
#include "millrace/vfs/metadata/attributes.h"
#include "millrace/vfs/metadata/metadata_cache.h"
#include "millrace/vfs/staging/upload_ledger.h"
#include "millrace/vfs/types/options.h"

namespace millrace::vfs {

/// Reads and changes stored attributes. A listing does not show them, and a Head for every entry must not become the
/// rule: so a directory any of whose entries has some is **marked**: its marker object `dir/` has a body, which its
/// listing shows as a size. Entries of other directories have none. The mark comes before the attributes, so that a
/// change that is cut off costs needless Heads at most.
///
/// A directory's own attributes are those of its marker, and it is an entry of its parent like any other. Directories
/// are named by their keys ("" or ending with '/'). Thread-safe; calls block.
class AttributeStore {
 public:
  /// `root`: of the tree. The others must outlive this.
  AttributeStore(object::Store& store, MetadataCache& cache, const Clock& clock, std::string root,
                 StoredAttributesPolicy policy, bool buckets_at_top = false, UploadLedger* ledger = nullptr)
      : store_(store),
        cache_(cache),
        clock_(clock),
        root_(std::move(root)),
        buckets_at_top_(buckets_at_top),
        ledger_(ledger),
        policy_(policy) {}

  /// What a Head says about a file.
  Metadata FromHead(const object::ObjectInfo& info, TimePoint as_of) const;

  /// Finds out the attributes where they are not known yet, many at a time; remembers them.
  Status Complete(const std::string& path, Metadata& state, const object::Call& call);
  Status Complete(const std::string& directory, std::span<ListedName> entries, const object::Call& call);

  /// Has entries of `directory` asked for their attributes from now on.
  Status Mark(const std::string& directory, const object::Call& call);
  /// Makes a directory that has no marker, and so exists only while something is below it, one that stays.
  Status Keep(const std::string& directory, const object::Call& call);
  /// A new directory. kAlreadyExists when it has a marker.
  Result<Metadata> MakeDirectory(const std::string& directory, const StoredAttributes& attributes,
                                 const object::Call& call);

  /// Changes attributes; kNotFound when there is no such file. Bytes stay, ETags may change.
  using Change = std::function<Status(StoredAttributes&)>;
  /// `told`: what callers know of the file; its time is exact where a Head tells whole seconds.
  Result<Metadata> ChangeFile(const std::string& path, const Metadata& reported, const Change& change,
                              const object::Call& call);
  Result<Metadata> ChangeDirectory(const std::string& directory, const Change& change, const object::Call& call);

  bool stores() const { return policy_ != StoredAttributesPolicy::kNever; }

  /// What the marker of a marked directory holds.
  static constexpr std::string_view kMarkBody = "{\"millrace\":\"directory\",\"entries\":\"have attributes\"}\n";
  /// The object that stands for a directory.
  bool IsWholeBucket(const std::string& directory) const;
  std::string MarkerKey(const std::string& directory) const;

 private:
  Result<bool> IsMarked(const std::string& directory, const object::Call& call);
  Result<std::optional<object::ObjectInfo>> HeadMarker(const std::string& directory, const object::Call& call);
  Status MarkFor(const std::string& path, const StoredAttributes& attributes, const object::Call& call);

  object::Store& store_;
  MetadataCache& cache_;
  const Clock& clock_;
  const std::string root_;
  const bool buckets_at_top_;
  UploadLedger* const ledger_;  ///< none where nothing is changed
  const StoredAttributesPolicy policy_;
};

}  // namespace millrace::vfs
