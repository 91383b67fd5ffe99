// The records that a mounter keeps on disk of its mounts, so that the next mounter knows them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::csi {

/// The record of a mount. Has no secrets.
struct MountRecord {
  std::string volume, target, fingerprint;
  bool driver_identity = false;
  std::uint64_t memory = 0;  ///< of its daemon; bytes
};

/// One folder for each mount, with its record and other files of it. Has no state in memory. Thread-safe for different
/// mounts.
class MountRecords {
 public:
  /// `folder` is made by the first Write().
  explicit MountRecords(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::vector<MountRecord> All() const;
  /// Returns nothing if the mount at `target` has no record that can be read.
  std::optional<MountRecord> Read(const std::string& target) const;
  Status Write(const MountRecord& record) const;
  /// Removes the record, and leaves the mount's other files.
  void RemoveRecord(const std::string& target) const;
  /// Removes the mount's folder.
  void Remove(const std::string& target) const;
  /// Returns the folder with the files of the mount at `target`. Exists if the mount has, or had, a record.
  std::filesystem::path FolderOf(const std::string& target) const;

 private:
  const std::filesystem::path folder_;
};

}  // namespace millrace::csi
