// From an object's bytes to what a compressor was given, front to back, from places where that can begin.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/data/formats/format.h"
#include "millrace/data/formats/input.h"

namespace millrace::data {

/// A place where decoding can begin. A default one is the beginning of every object.
struct Entry {
  std::uint64_t offset = 0;  ///< of the first byte needed, in the object
  std::string state;         ///< gzip, inside a member: see GzipDecoder; else empty
};

/// Decodes an input. One thread.
class Decoder {
 public:
  struct Step {
    std::size_t bytes = 0;  ///< decoded
    bool at_entry = false;  ///< entry() tells where this is
    bool at_end = false;
  };
  virtual ~Decoder() = default;
  /// Decodes into `into` until that is full, the input ends or, with `stop_at_entry`, the next entry is reached. Fails
  /// with kCorrupt, naming the byte of the object, on damaged or cut-off data, and where a checksum of the format does
  /// not hold. Blocks as the input does.
  virtual Result<Step> Decode(MutableByteSpan into, bool stop_at_entry) = 0;
  /// After a step that ended at one.
  virtual Entry entry() const = 0;
  /// In the object: nothing from here on has been looked at.
  std::uint64_t position() const { return position_; }

 protected:
  Decoder(Input& input, std::uint64_t position) : input_(input), position_(position) {}
  /// What has been read and not taken yet; reads more when there is none. Empty: the input has ended.
  Result<ByteSpan> Available() {
    if (rest_.empty()) rest_ = MR_TRY(input_.Next());
    return rest_;
  }
  void Take(std::size_t bytes) {
    rest_ = rest_.subspan(bytes);
    position_ += bytes;
  }

 private:
  Input& input_;
  ByteSpan rest_;
  std::uint64_t position_;
};

/// `input` starts at `entry` and must outlive the decoder. Fails with kCorrupt on an entry's state that none of these
/// decoders wrote.
Result<std::unique_ptr<Decoder>> MakeDecoder(Compression compression, Input& input, const Entry& entry);

/// What to do about an object in which entries are too far apart: why, and a shell command that stores it anew.
std::string CureForDistantEntries(Compression compression, std::string_view url);

}  // namespace millrace::data
