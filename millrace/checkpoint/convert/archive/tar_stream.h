// Reads a tar archive while its bytes arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// Takes the files of an archive, one after the other.
class TarVisitor {
 public:
  virtual ~TarVisitor() = default;
  /// A file begins. `name` stays below the archive's root: CheckConfined() holds. An error ends the reading with it.
  virtual Status Begin(const std::string& name, std::uint64_t size) = 0;
  /// The next bytes of the file.
  virtual Status Data(ByteSpan bytes) = 0;
  /// The file is complete.
  virtual Status End() = 0;
};

/// Reads ustar, GNU and pax archives. Passes over directories. Keeps one block and at most kMaxExtensionBytes of long
/// names in memory. One owner, no locking.
class TarStream {
 public:
  static constexpr std::uint64_t kMaxExtensionBytes = 1 * kMiB;
  /// `what` names the archive in errors. REQUIRES: `visitor` outlives this object.
  TarStream(std::string what, TarVisitor& visitor) : what_(std::move(what)), visitor_(visitor) {}

  /// Errors: kCorrupt for what is no archive, and for names that leave it; kUnsupported for links, devices and sparse
  /// files; those of the visitor.
  Status Add(ByteSpan bytes);
  /// Call it behind the last byte. Errors: kCorrupt if the archive is cut off.
  Status Finish() const;
  /// Whether the archive's end was there. What follows is padding.
  bool ended() const { return ended_; }

 private:
  enum class Part { kHeader, kFile, kExtension, kPassedOver };
  Status TakeHeader();
  Status TakePart(char type, std::uint64_t size, std::string name);
  Status EndPart();
  Status TakePax();

  const std::string what_;
  TarVisitor& visitor_;
  Part part_ = Part::kHeader;
  std::string block_;           ///< a header that is not complete
  std::string extension_;       ///< the content of an extension header
  char extension_type_ = 0;     ///< 'L': a long name; 'x': pax records; others mean nothing here
  std::string long_name_;       ///< of the next file; empty: as its header says
  std::int64_t pax_size_ = -1;  ///< of the next file; negative: as its header says
  std::uint64_t left_ = 0;      ///< bytes of the part
  std::uint64_t padding_ = 0;   ///< bytes behind the part
  int zero_blocks_ = 0;
  bool ended_ = false;
};

}  // namespace millrace::checkpoint
