// One command line's copies or moves: what cp, mv and sync share.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "apps/millrace/objects/object_commands.h"
#include "millrace/base/threads/sync.h"
#include "millrace/transfer/copy/compare.h"
#include "millrace/transfer/local/local_removal.h"
#include "millrace/transfer/plan/region.h"

namespace millrace::cli {

struct CopyFlags {
  std::vector<std::string> places;  ///< sources, then the destination
  SelectFlags select;
  WriteFlags write;
  transfer::CopyWhen when;
  bool no_verify = false, no_clobber = false;
  bool delete_extra = false, size_only = false, exact_timestamps = false, allow_empty_source = false;
  std::optional<std::uint64_t> max_delete;

  void AddCommon(CLI::App& command);
  std::span<const std::string> sources() const { return std::span(places).first(places.size() - 1); }
  const std::string& destination() const { return places.back(); }
};

/// "a/b" as "a/b/"; the root stays empty.
std::string AsFolder(const std::string& key);

/// Refuses trees that are one or overlap, by whatever names: a copy would find what it has just written, and a deletion
/// in one would be a loss of the other. The inner one may be excluded by the filter. A source inside the destination is
/// harmless where nothing is deleted.
Status CheckApart(const Place& from, const Place& to, const transfer::NameFilter& filter, bool deletes);

/// A selection whose items are copied, or moved.
struct CopySource {
  Selection selection;
  /// Set for a local selection that is moved.
  std::unique_ptr<const transfer::LocalRemover> remover;
  static Result<CopySource> Of(Selection selection, bool move);
};

/// Adds copies to a run. A source is never removed unless exactly what was sent still has its name. Add… are for one
/// thread; sources must outlive the run.
class Copier {
 public:
  Copier(Run& run, const CopyFlags& flags, bool move, Place to);

  /// `key`: where the item goes.
  void Add(const CopySource& from, transfer::Item item, const std::string& key);
  /// Beneath a folder. Objects that stand for folders ("a/", empty or with the mark of a mount) become no files.
  void AddBeneath(const CopySource& from, const std::string& folder, transfer::Item item);
  /// One object or file of which nothing is known yet.
  void AddUnseen(const CopySource& from, const std::string& folder);
  /// After the run: removes symbolic links to folders all of whose files were moved.
  void RemoveLinks() MR_EXCLUDES(mutex_);

 private:
  struct Link {
    const CopySource* from;
    bool all_moved = true;
  };
  bool Refused(const Place& from, const std::string& source_key, const std::string& key);
  Result<bool> Move(const CopySource& from, const transfer::Item& item, const std::string& key,
                    const object::Call& call);
  Result<bool> MoveFile(const CopySource& from, const transfer::Item& item, const std::string& key,
                        const object::Call& call);
  Result<bool> Written(const Status& copied) const;
  Status CopyOne(const Place& from, const transfer::Item& item, const std::string& key, const object::Call& call);
  Status SendFile(const transfer::LocalFile& file, const std::string& key, const object::Call& call);
  Result<bool> Needed(const Place& from, const object::ObjectInfo& source, const std::string& key,
                      const object::Call& call);
  void NoteLink(const CopySource& from, const std::string& link, bool moved) MR_EXCLUDES(mutex_);

  Run& run_;
  const CopyFlags& flags_;
  const bool move_;
  const Place to_;
  transfer::CopySettings settings_;
  transfer::SameFileCheck same_;
  std::unordered_set<std::size_t> written_;  ///< hashes of the keys that this move has written
  Mutex mutex_;
  std::map<std::string, Link> links_ MR_GUARDED_BY(mutex_);  ///< by path
};

}  // namespace millrace::cli
