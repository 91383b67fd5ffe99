// How decompressed bytes are records, and those lines of JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/formats/format.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {

/// Files may start with it; it is no part of the first record.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
inline constexpr std::string_view kJsonBlank = " \t\r\n";
inline constexpr std::size_t kMaxJsonNesting = kMaxRecordBytes;  ///< what is deeper is longer than a record may be

/// Finds where records end. One pass over bytes that become known bit by bit. One thread.
class Cutter {
 public:
  virtual ~Cutter() = default;
  /// `bytes`, which start with a record, are all that is known yet: what the call before was given and more. The first
  /// end of a record at or behind `at_least` (more than 0), which may only grow; nothing when that lies further on.
  /// With `at_end` nothing follows, and the last record ends there. Fails with kCorrupt, naming the byte of the data,
  /// when the bytes are not what the format demands.
  virtual Result<std::optional<std::size_t>> Find(std::string_view bytes, std::size_t at_least, bool at_end) = 0;
  /// From now on bytes start with the record at `offset` of the data, which Find found the end before.
  virtual void Restart(std::uint64_t offset) = 0;
};

/// One of the layouts that are read as a stream. Immutable; any thread may call it.
class Syntax {
 public:
  virtual ~Syntax() = default;
  virtual std::unique_ptr<Cutter> NewCutter() const = 0;
  /// Whole records as lines of JSON. They start at `offset` of the data, or, when it is known that they can be read, at
  /// any other than its beginning. Fails with kCorrupt as a cutter does.
  virtual Result<Buffer> ToLines(Buffer records, std::uint64_t offset) const = 0;
};

/// Of kJsonLines, kJson, kObjects, kLines, kText and kTar.
std::unique_ptr<const Syntax> MakeSyntax(const Format& format);

/// A string's bytes as a buffer.
Buffer ToBuffer(std::string_view text);

}  // namespace millrace::data
