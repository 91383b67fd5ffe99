// Reads a tar archive while its bytes arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// Gets the files of an archive, one after the other.
class TarVisitor {
 public:
  virtual ~TarVisitor() = default;
  /// Called when a file begins. `name` stays below the archive's root: CheckConfined() holds. If the function fails,
  /// reading ends with its error.
  virtual Status Begin(const std::string& name, std::uint64_t size) = 0;
  /// Called with the next bytes of the file.
  virtual Status Data(ByteSpan bytes) = 0;
  /// Called when the file is complete.
  virtual Status End() = 0;
};

/// Reads ustar, GNU and pax archives, and calls a visitor for each file. Skips directories. Keeps in memory one block
/// and at most kMaxExtensionBytes of long names. One owner, no locking.
class TarStream {
 public:
  static constexpr std::uint64_t kMaxExtensionBytes = 1 * kMiB;
  /// `what` names the archive in errors. REQUIRES: `visitor` outlives this object.
  TarStream(std::string what, TarVisitor& visitor) : what_(std::move(what)), visitor_(visitor) {}

  /// Reads the next bytes of the archive. Errors: kCorrupt if the bytes are not an archive, or if a name leads out of
  /// the archive; kUnsupported for links, devices and sparse files; those of the visitor.
  Status Add(ByteSpan bytes);
  /// Call it after the last byte. Errors: kCorrupt if the archive is incomplete.
  Status Finish() const;
  /// Returns whether the end of the archive has been read. All later bytes are padding.
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
  std::string block_;           ///< an incomplete header
  std::string extension_;       ///< the content of an extension header
  char extension_type_ = 0;     ///< 'L': a long name; 'x': pax records; other types are ignored
  std::string long_name_;       ///< the name of the next file; empty: the name in its header
  std::int64_t pax_size_ = -1;  ///< the size of the next file; negative: the size in its header
  std::uint64_t left_ = 0;      ///< bytes of the part that have not been read
  std::uint64_t padding_ = 0;   ///< bytes between the part and the next header
  int zero_blocks_ = 0;
  bool ended_ = false;
};

}  // namespace millrace::checkpoint
