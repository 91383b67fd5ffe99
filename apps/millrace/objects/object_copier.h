// The copies or moves of one command line, for cp, mv and sync.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "apps/millrace/objects/metadata_check.h"
#include "apps/millrace/objects/object_commands.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/base/threads/sync.h"
#include "millrace/transfer/copy/compare.h"
#include "millrace/transfer/local/local_removal.h"
#include "millrace/transfer/plan/region.h"

namespace millrace::cli {

struct CopyFlags {
  std::vector<std::string> places;  ///< sources, then the destination
  SelectFlags select;
  WriteFlags write;
  SourceFlags source;
  transfer::CopyWhen when;
  bool no_verify = false, no_clobber = false, flatten = false;
  bool delete_extra = false, size_only = false, exact_timestamps = false, allow_empty_source = false;
  bool empty_folders = false;                    ///< copies them too: in a bucket, they are marker objects
  bool preserve = false;                         ///< modes and times are stored with objects, and given back to files
  bool watch = false;                            ///< syncs again whenever the source has changed
  Duration interval = std::chrono::seconds(10);  ///< between two looks at a store that is watched
  bool is_sync = false;                          ///< files that have the time of their object are equal to it
  std::optional<std::uint64_t> max_delete;
  std::string share;  ///< as --share

  void AddCommon(CLI::App& command);
  void AddWatch(CLI::App& command);
  std::span<const std::string> sources() const { return std::span(places).first(places.size() - 1); }
  const std::string& destination() const { return places.back(); }
};

/// Returns "a/b/" for "a/b". The root stays empty.
std::string AsFolder(const std::string& key);

/// Refuses places that this command would write to and that can only be read: the destination, and the source of a
/// move.
Status CheckWritable(const ObjectPlace& place);

/// Refuses a source and a destination that are the same tree or overlap, also under different names. A copy would find
/// its own results, and a deletion in one tree would delete from the other. Allowed are an inner tree that the filter
/// excludes, and a source inside the destination if nothing is deleted.
Status CheckApart(const ObjectPlace& from, const ObjectPlace& to, const transfer::NameFilter& filter, bool deletes);

/// A selection whose items are copied, or moved.
struct CopySource {
  Selection selection;
  /// Set if the selection is local and is moved.
  std::unique_ptr<const transfer::LocalRemover> remover;
  static Result<CopySource> Of(Selection selection, bool move);
};

/// Adds copies to a run. A move removes a source only if its name still has exactly the bytes that were sent, and the
/// destination has as many. One thread calls the Add functions. Sources must outlive the run.
class Copier {
 public:
  /// The limits of copies whose bytes pass through this process from one store to another.
  struct Relay {
    bool always = false;      ///< also between stores of one kind: they have different endpoints or accounts
    std::uint64_t bytes = 0;  ///< the memory for them all
  };
  Copier(TransferRun& run, const CopyFlags& flags, bool move, ObjectPlace to, Relay relay);

  /// Adds an item. `key` is its destination.
  void Add(const CopySource& from, transfer::Item item, const std::string& key);
  /// Adds an item below a folder. Objects that stand for folders ("a/", empty or with the mark of a mount) do not
  /// become files.
  void AddBeneath(const CopySource& from, const std::string& folder, transfer::Item item);
  /// Adds a folder, "a/b/": makes it if it does not exist.
  void AddFolder(const CopySource& from, const std::string& folder, const transfer::Item& item);
  /// Adds one object or file whose size and ETag are not known yet.
  void AddUnseen(const CopySource& from, const std::string& folder);
  /// Removes symbolic links to folders whose files were all moved. REQUIRES: the run has ended.
  void RemoveLinks() MR_EXCLUDES(mutex_);

 private:
  struct Link {
    const CopySource* from;
    bool all_moved = true;
  };
  bool Refused(const ObjectPlace& from, const std::string& source_key, const std::string& key);
  Result<bool> Move(const CopySource& from, const transfer::Item& item, const std::string& key,
                    const object::Call& call);
  Result<bool> MoveFile(const CopySource& from, const transfer::Item& item, const std::string& key,
                        const object::Call& call);
  Result<bool> Written(const Status& copied) const;
  Result<transfer::Item> WithAttributes(const ObjectPlace& from, const transfer::Item& item,
                                        const object::Call& call) const;
  bool IsSameFile(const transfer::Item& item, const std::string& key) const;
  Status CheckArrived(std::uint64_t size, const std::string& key, const object::Call& call) const;
  Status CopyOne(const ObjectPlace& from, const transfer::Item& item, const std::string& key, const object::Call& call);
  Result<object::PutOptions> RelayOptions(const ObjectPlace& from, const object::ObjectInfo& info,
                                          const std::string& key, const object::Call& call) const;
  void CheckKept(const std::string& key, object::PutOptions sent, const object::Call& call);
  Status SendFile(const transfer::LocalFile& file, const std::string& key, const object::Call& call);
  Result<bool> Needed(const ObjectPlace& from, const object::ObjectInfo& source, const std::string& key,
                      const object::Call& call);
  void NoteLink(const CopySource& from, const std::string& link, bool moved) MR_EXCLUDES(mutex_);

  TransferRun& run_;
  const CopyFlags& flags_;
  const bool move_;
  const ObjectPlace to_;
  transfer::CopySettings settings_;
  const bool always_relays_;
  MemoryBudget relay_;
  MetadataCheck kept_;
  transfer::SameFileCheck same_;
  std::unordered_set<std::size_t> written_;  ///< hashes of the keys that have a source, where two might have one
  Mutex mutex_;
  std::map<std::string, Link> links_ MR_GUARDED_BY(mutex_);  ///< by path
};

}  // namespace millrace::cli
