// Records which multipart upload a transfer has begun, so that a later process can resume it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/result.h"

namespace millrace::transfer {

/// A small file for one destination (docs/formats/transfer-journals.md). A process locks it while it uploads. One
/// owner.
class UploadJournal {
 public:
  /// A multipart upload that is not complete.
  struct PendingUpload {
    std::string source;  ///< the name of the source, with its version
    std::uint64_t part_bytes = 0;
    std::string upload_id;
  };
  /// Returns a journal that records nothing if `folder` is empty, if other users may write to it, or while another
  /// process transfers to the same destination.
  static Result<UploadJournal> Open(const std::string& folder, const std::string& destination);

  /// Returns the upload that an earlier process left, if any.
  const std::optional<PendingUpload>& found() const { return found_; }
  /// Returns whether this journal records uploads (see Open).
  bool remembers() const { return static_cast<bool>(fd_); }
  /// Replaces the journal's content.
  Status Write(const PendingUpload& entry);
  /// Removes the journal's file.
  void Forget();

 private:
  std::optional<ManagedFolder> folder_;
  std::string name_;
  UniqueFd fd_;
  std::optional<PendingUpload> found_;
};

}  // namespace millrace::transfer
