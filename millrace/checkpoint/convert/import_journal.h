// The notes by which the shares of one import coordinate: small objects beside the files that they write.
// docs/formats/checkpoint.md, "Imports by shares", describes them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/process/work_share.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// The notes of one import. A note is put after the file that it is about. One thread.
class ImportJournal {
 public:
  /// `folder` is the key of the step's files. `identity` is the same for all shares. `fence` is what ExpectedFence
  /// returned: an attempt that began before a collector's fence has another name than one that begins after it, so the
  /// collector removes no file of the newer one.
  ImportJournal(std::string folder, std::string_view identity, std::string_view fence);

  /// The name of the attempt that the shares make together.
  const std::string& attempt() const { return attempt_; }
  /// Returns whether imports with this identity make attempts of this name, whatever the fence is.
  static bool IsAttemptOf(std::string_view identity, std::string_view attempt);

  /// Reads the notes that were put since the last call. Blocks.
  Status Read(object::Store& store, const object::Call& call);
  /// Notes that a file is complete. Blocks.
  Status Add(object::Store& store, std::size_t file, const FileMeta& meta, const object::Call& call);
  /// Notes that a share compared its part of the checksums that belong to no file. Blocks.
  Status AddVerified(object::Store& store, const WorkShare& share, const object::Call& call);

  bool Has(std::size_t file) const { return files_.contains(file); }
  /// REQUIRES: Has(file).
  const FileMeta& Meta(std::size_t file) const { return files_.at(file); }
  bool IsVerified(const WorkShare& share) const { return known_.contains(VerifiedKey(share)); }
  /// Returns how many of `count` shares have not compared their checksums.
  std::uint32_t Unverified(std::uint32_t count) const;
  /// Returns whether the step's folder has files of other attempts.
  bool has_strangers() const { return has_strangers_; }
  /// The keys of all notes that were read or put.
  std::vector<std::string> Keys() const { return {known_.begin(), known_.end()}; }

 private:
  std::string FileKey(std::size_t file) const;
  std::string VerifiedKey(const WorkShare& share) const;

  std::string folder_, attempt_;
  std::string prefix_;  ///< of the notes' keys
  std::set<std::string> known_;
  std::map<std::size_t, FileMeta> files_;
  bool has_strangers_ = false;
};

}  // namespace millrace::checkpoint
