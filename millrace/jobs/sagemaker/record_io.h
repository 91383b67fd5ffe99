// MXNet's RecordIO framing, in which SageMaker's pipes carry objects if a channel says RecordWrapperType: RecordIO.
//
// A record is one part or several. A part is the magic number 0xced7230a, a word with the part's kind in its upper 3
// bits and its length in the others, the bytes, and zeros up to a multiple of 4 bytes. Words are little-endian. A
// writer cuts a record where its bytes are the magic number, and leaves these four bytes out. Source: dmlc-core,
// include/dmlc/recordio.h.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// Takes the framing from a stream. The bytes come in runs of any size. One thread.
class RecordIoDecoder {
 public:
  /// `on_bytes` gets the bytes of a record, in order; `on_end` is called behind its last byte. Their errors end Add().
  RecordIoDecoder(std::function<Status(ByteSpan)> on_bytes, std::function<Status()> on_end);

  /// Takes the next bytes of the stream. Errors: kCorrupt if they are no RecordIO.
  Status Add(ByteSpan bytes);
  /// Call it at the end of the stream. Errors: kCorrupt if a record is cut off.
  Status Finish() const;
  /// The records that are complete.
  std::uint64_t records() const { return records_; }

 private:
  Status BeginPart();
  Status EndPart();

  const std::function<Status(ByteSpan)> on_bytes_;
  const std::function<Status()> on_end_;
  std::array<std::byte, 8> header_ = {};
  std::size_t header_size_ = 0;  ///< bytes of the next part's header that are there
  std::uint32_t length_ = 0;     ///< bytes of the part that are to come
  std::uint32_t padding_ = 0;    ///< zeros behind them that are to come
  std::uint64_t position_ = 0;   ///< in the stream
  std::uint64_t records_ = 0;
  bool in_part_ = false, in_record_ = false, is_last_ = false;
};

}  // namespace millrace::jobs
