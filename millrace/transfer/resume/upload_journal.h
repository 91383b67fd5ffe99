// Remembers which multipart upload a transfer has begun.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/result.h"

namespace millrace::transfer {

/// A small file for one destination (docs/formats/transfer-journals.md), locked while a process is at it. One owner.
class UploadJournal {
 public:
  struct Entry {
    std::string source;  ///< with its version
    std::uint64_t part_bytes = 0;
    std::string upload_id;
  };
  /// Nothing is remembered without a folder, in one that other users may have filled, nor while another process
  /// transfers to the same destination.
  static Result<UploadJournal> Open(const std::string& folder, const std::string& destination);

  /// What an earlier process left.
  const std::optional<Entry>& found() const { return found_; }
  bool remembers() const { return static_cast<bool>(fd_); }
  Status Write(const Entry& entry);
  void Forget();

 private:
  std::optional<ManagedFolder> folder_;
  std::string name_;
  UniqueFd fd_;
  std::optional<Entry> found_;
};

}  // namespace millrace::transfer
