#include "millrace/data/formats/decoder.h"

#include <algorithm>
#include <cstring>

#include "millrace/data/formats/gzip.h"
#include "millrace/data/formats/zstd.h"

namespace millrace::data {
namespace {

/// Bytes that are stored as they are: every place is an entry.
class PlainDecoder final : public Decoder {
 public:
  PlainDecoder(Input& input, std::uint64_t position) : Decoder(input, position) {}

  Result<Step> Decode(MutableByteSpan into, bool stop_at_entry) override {
    if (stop_at_entry) return Step{.at_entry = true};
    Step step;
    while (step.bytes < into.size()) {
      ByteSpan available = MR_TRY(Available());
      if (available.empty()) {
        step.at_end = true;
        break;
      }
      std::size_t bytes = std::min(available.size(), into.size() - step.bytes);
      std::memcpy(into.data() + step.bytes, available.data(), bytes);
      Take(bytes);
      step.bytes += bytes;
    }
    return step;
  }

  Entry entry() const override { return {.offset = position()}; }
};

}  // namespace

Result<std::unique_ptr<Decoder>> MakeDecoder(Compression compression, Input& input, const Entry& entry) {
  switch (compression) {
    case Compression::kGzip:
      return MakeGzipDecoder(input, entry);
    case Compression::kZstd:
      return MakeZstdDecoder(input, entry);
    case Compression::kNone:
      break;
  }
  return std::make_unique<PlainDecoder>(input, entry.offset);
}

std::string_view CureForDistantEntries(Compression compression) {
  switch (compression) {
    case Compression::kGzip:
      return "it is one huge deflate block; compress it again: gzip -dc OLD | gzip >NEW";
    case Compression::kZstd:
      return "a zstd frame can only be read from its start; store the data as several frames: "
             "zstd -dc OLD | split -C 16M --filter='zstd -c' >NEW";
    case Compression::kNone:
      break;
  }
  return "";
}

}  // namespace millrace::data
