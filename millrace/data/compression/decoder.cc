#include "millrace/data/compression/decoder.h"

#include <algorithm>
#include <cstring>

#include "millrace/data/compression/gzip.h"
#include "millrace/data/compression/zstd.h"

namespace millrace::data {
namespace {

/// Passes uncompressed bytes on. Every position is a seek point.
class PlainDecoder final : public Decoder {
 public:
  PlainDecoder(InputStream& input, std::uint64_t position) : Decoder(input, position) {}

  Result<DecodeResult> Decode(MutableByteSpan into, bool stop_at_seek_point) override {
    if (stop_at_seek_point) return DecodeResult{.at_seek_point = true};
    DecodeResult step;
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

  SeekPoint seek_point() const override { return {.offset = position()}; }
};

std::string ShellQuoted(std::string_view text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeDecoder(Compression compression, InputStream& input, const SeekPoint& start) {
  switch (compression) {
    case Compression::kGzip:
      return MakeGzipDecoder(input, start);
    case Compression::kZstd:
      return MakeZstdDecoder(input, start);
    case Compression::kNone:
      break;
  }
  return std::make_unique<PlainDecoder>(input, start.offset);
}

std::string CureForDistantSeekPoints(Compression compression, std::string_view url) {
  // The new object is beside the old one: a.parts.jsonl.zst for a.jsonl.zst.
  std::string beside(url);
  beside.insert(std::min(url.find('.', url.rfind('/') + 1), url.size()), ".parts");
  const std::string from = ShellQuoted(url), to = ShellQuoted(beside);
  switch (compression) {
    case Compression::kGzip:
      return fmt::format(
          "it is one huge deflate block. Compress it again: millrace cat {} | gzip -dc | gzip | "
          "millrace pipe {}",
          from, to);
    case Compression::kZstd:
      return fmt::format(
          "a zstd frame with a window of more than 8 MiB can only be read from its start. Store the data as many "
          "frames: millrace cat "
          "{} | zstd -dc | split -C 16M --filter='zstd -c' | millrace pipe {}",
          from, to);
    case Compression::kNone:
      break;
  }
  return "";
}

}  // namespace millrace::data
