// What is at a path, and the same in little room.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/object/object_info.h"
#include "millrace/vfs/metadata/attributes.h"

namespace millrace::vfs {

/// What is at a path, as of a moment.
struct Metadata {
  enum class State : std::uint8_t { kAbsent, kFile, kDirectory };
  State state = State::kAbsent;
  std::uint64_t size = 0;
  WallTime modified;
  std::string etag;
  TimePoint as_of;  ///< true at this moment or later: when the request began, or when our own change was done

  /// What is stored of attributes, for a directory in its marker; nothing when there are none, or not known yet.
  std::shared_ptr<const StoredAttributes> attributes;
  bool complete = false;  ///< `attributes` are known; a listing does not tell them
  bool settled = false;   ///< no later version can have this one's ETag and `modified`

  bool absent() const { return state == State::kAbsent; }
  bool is_file() const { return state == State::kFile; }
  bool is_directory() const { return state == State::kDirectory; }
  bool is_symlink() const { return is_file() && attributes && attributes->is_symlink(); }
  /// True when both tell of the same version of an object. Its attributes are then the same, too.
  bool SameVersion(const Metadata& other) const;
};

/// What a listing says about a file.
Metadata FileMetadata(const object::ObjectInfo& info, TimePoint as_of);

/// Bytes that do not change, behind one pointer; none cost nothing.
class SmallBytes {
 public:
  SmallBytes() = default;
  explicit SmallBytes(std::string_view bytes);
  std::string_view view() const;

 private:
  std::unique_ptr<char[]> bytes_;  ///< their number, then they
};

/// A Metadata for tables of many: 51 bytes, and one allocation for what most lack (stored attributes, an ETag that is
/// neither the MD5 of an upload nor short).
class PackedMetadata {
 public:
  PackedMetadata() = default;
  explicit PackedMetadata(const Metadata& metadata);
  Metadata Unpack() const;
  Metadata::State state() const { return static_cast<Metadata::State>(bits_ & kState); }
  TimePoint as_of() const { return as_of_; }
  bool settled() const { return bits_ & kSettled; }

 private:
  static constexpr std::uint8_t kState = 3, kComplete = 4, kSettled = 8, kDigest = 16;  ///< kDigest: as of an upload
  std::uint64_t size_ = 0;
  WallTime modified_;
  TimePoint as_of_;
  SmallBytes rest_;
  /// The ETag: 16 bytes for its hexadecimal digits, two for the number behind them ("-12"; 0: none); or a short text,
  /// zeros behind it; or zeros, when `rest_` has it.
  std::array<char, 18> etag_{};
  std::uint8_t bits_ = 0;
};

}  // namespace millrace::vfs
