// Decodes the bytes of an object, from its start or from a seek point in the middle.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/compression/compression.h"
#include "millrace/data/compression/input_stream.h"

namespace millrace::data {

/// A position in an object where decoding can begin. The default is the start of the object.
struct SeekPoint {
  std::uint64_t offset = 0;  ///< in the object: the first byte that the decoder needs
  std::string state;         ///< what the decoder must know there; see gzip.h and zstd.h. Empty: nothing
};

/// Decodes an input front to back. One thread.
class Decoder {
 public:
  struct DecodeResult {
    std::size_t bytes = 0;       ///< decoded
    bool at_seek_point = false;  ///< seek_point() returns this position
    bool at_end = false;
  };
  virtual ~Decoder() = default;
  /// Decodes into `into` until it is full or the input ends. With `stop_at_seek_point` also stops at the next seek
  /// point. Blocks as the input does.
  /// Errors: kCorrupt, naming the byte of the object, if the data are damaged or cut off, or a checksum of the format
  /// is wrong; those of the input.
  virtual Result<DecodeResult> Decode(MutableByteSpan into, bool stop_at_seek_point) = 0;
  /// REQUIRES: the last Decode returned at_seek_point.
  virtual SeekPoint seek_point() const = 0;
  /// Returns the offset in the object of the first byte that the decoder has not looked at.
  std::uint64_t position() const { return position_; }

 protected:
  Decoder(InputStream& input, std::uint64_t position) : input_(input), position_(position) {}
  /// Returns the bytes that are read and not taken yet. Reads more if there are none. Empty: the input has ended.
  Result<ByteSpan> Available() {
    if (rest_.empty()) rest_ = MR_TRY(input_.Next());
    return rest_;
  }
  void Take(std::size_t bytes) {
    rest_ = rest_.subspan(bytes);
    position_ += bytes;
  }

 private:
  InputStream& input_;
  ByteSpan rest_;
  std::uint64_t position_;
};

/// Returns a decoder that begins at `start`. `input` begins at start.offset and must outlive the decoder.
/// Errors: kCorrupt if `start.state` is not one that a decoder wrote.
Result<std::unique_ptr<Decoder>> MakeDecoder(Compression compression, InputStream& input, const SeekPoint& start);

/// Says why the seek points of the object at `url` are too far apart, with a shell command that stores it anew.
std::string CureForDistantSeekPoints(Compression compression, std::string_view url);

}  // namespace millrace::data
