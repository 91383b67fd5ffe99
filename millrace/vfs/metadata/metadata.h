// The metadata of a path, and a packed form of it for large tables.
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

/// The metadata of a path, as of a moment.
struct Metadata {
  enum class State : std::uint8_t { kAbsent, kFile, kDirectory };
  State state = State::kAbsent;
  std::uint64_t size = 0;
  WallTime modified;
  std::string etag;
  TimePoint as_of;  ///< when the request began, or this tree's change ended; the state is of this time or later

  /// The stored attributes (of a directory: those of its marker). Null if there are none, or they are not known yet.
  std::shared_ptr<const StoredAttributes> attributes;
  bool complete = false;  ///< `attributes` are known (a listing does not show them)
  bool settled = false;   ///< no later version can have this one's ETag and `modified`

  bool absent() const { return state == State::kAbsent; }
  bool is_file() const { return state == State::kFile; }
  bool is_directory() const { return state == State::kDirectory; }
  bool is_symlink() const { return is_file() && attributes && attributes->is_symlink(); }
  /// Returns true if both are the same version of an object. Its attributes are then the same, too.
  bool SameVersion(const Metadata& other) const;
};

/// Returns the time without fractions of a second. A Head has no smaller unit.
inline WallTime WholeSeconds(WallTime time) { return std::chrono::floor<std::chrono::seconds>(time); }

/// Returns what a listing says about a file. `modified` is in whole seconds: some stores list milliseconds, but a Head
/// does not tell them, and a version must not have two times.
Metadata FileMetadata(const object::ObjectInfo& info, TimePoint as_of);

/// Immutable bytes behind one pointer. No bytes take no allocation.
class SmallBytes {
 public:
  SmallBytes() = default;
  explicit SmallBytes(std::string_view bytes);
  std::string_view view() const;

 private:
  std::unique_ptr<char[]> bytes_;  ///< the length, then the bytes
};

/// A Metadata in 51 bytes, for large tables. Stored attributes, and an ETag that is neither an MD5 nor short, take one
/// allocation; most files have neither.
class PackedMetadata {
 public:
  PackedMetadata() = default;
  explicit PackedMetadata(const Metadata& metadata);
  Metadata Unpack() const;
  Metadata::State state() const { return static_cast<Metadata::State>(bits_ & kState); }
  TimePoint as_of() const { return as_of_; }
  bool settled() const { return bits_ & kSettled; }

 private:
  static constexpr std::uint8_t kState = 3, kComplete = 4, kSettled = 8, kDigest = 16;  ///< see bits_
  std::uint64_t size_ = 0;
  WallTime modified_;
  TimePoint as_of_;
  SmallBytes rest_;
  /// The ETag in one of three forms. An MD5: its 16 bytes, then two bytes for the number of parts ("-12"; 0: none). A
  /// short text, padded with zeros. Zeros, if `rest_` has the ETag.
  std::array<char, 18> etag_{};
  std::uint8_t bits_ = 0;  ///< a Metadata::State (2 bits), complete, settled; kDigest: etag_ holds an MD5
};

}  // namespace millrace::vfs
