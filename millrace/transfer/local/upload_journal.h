// Records which multipart upload a transfer has begun, so that a later process can resume it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/result.h"

namespace millrace::transfer {

/// A small file for one destination (docs/formats/transfer-journals.md). A process locks it while it uploads. One
/// owner.
class UploadJournal {
 public:
  /// A part of an upload whose bytes only passed through a process. The store may have it or not.
  struct HashedPart {
    std::uint32_t crc32c = 0;
    std::string hash_state;  ///< the state of the whole object's hash behind this part (Digester::SaveState)
  };
  /// A multipart upload that is not complete.
  struct PendingUpload {
    std::string source;  ///< the name of the source, with its version
    std::uint64_t part_bytes = 0;
    std::string upload_id;
    std::vector<HashedPart> hashed = {};  ///< the first parts of the object, in order
  };
  /// Returns a journal that records nothing if `folder` is empty, if other users may write to it, or while another
  /// process transfers to the same destination.
  static Result<UploadJournal> Open(const std::string& folder, const std::string& destination);

  /// Returns the upload that the journal names: the one that an earlier process left, or the one that was written
  /// since.
  const std::optional<PendingUpload>& entry() const { return entry_; }
  /// Returns whether this journal records uploads (see Open).
  bool remembers() const { return static_cast<bool>(fd_); }
  /// Replaces the journal's content.
  Status Write(PendingUpload entry);
  /// Adds a part to the end of entry()->hashed. REQUIRES: entry() has a value.
  Status Append(HashedPart part);
  /// Removes the journal's file.
  void Forget();

 private:
  std::optional<ManagedFolder> folder_;
  std::string name_;
  UniqueFd fd_;
  std::optional<PendingUpload> entry_;
  std::uint64_t bytes_ = 0;  ///< of the file, without damaged lines at its end
};

}  // namespace millrace::transfer
