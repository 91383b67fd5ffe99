#include "millrace/data/compression/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <climits>

namespace millrace::data {
namespace {

constexpr std::size_t kDeflateWindowBytes = 32 * kKiB;  ///< RFC 1951
/// windowBits of inflateInit2: the largest window, in a gzip member and in raw deflate blocks.
constexpr int kGzipFormat = 15 + 16, kRaw = -15;

class GzipDecoder final : public Decoder {
 public:
  GzipDecoder(InputStream& input, std::uint64_t position) : Decoder(input, position) {}
  ~GzipDecoder() override { inflateEnd(&zlib_); }

  Status Start(const SeekPoint& start) {
    const bool inside = !start.state.empty();
    if (inflateInit2(&zlib_, inside ? kRaw : kGzipFormat) != Z_OK) return Fail(Code::kResourceExhausted, "no memory");
    if (!inside) return {};
    at_ = At::kRawBlocks;
    const int bits = static_cast<unsigned char>(start.state[0]);
    if (bits > 7) return Fail(Code::kCorrupt, "an entry into gzip data with {} bits", bits);
    if (bits > 0) {
      ByteSpan available = MR_TRY(Available());
      if (available.empty()) return CutOff();
      inflatePrime(&zlib_, bits, std::to_integer<int>(available[0]) >> (8 - bits));
      Take(1);
    }
    std::array<Bytef, kDeflateWindowBytes> window;
    uLongf size = window.size();
    auto* packed = reinterpret_cast<const Bytef*>(start.state.data() + 1);
    if (uncompress(window.data(), &size, packed, start.state.size() - 1) != Z_OK) {
      return Fail(Code::kCorrupt, "an entry into gzip data with a damaged window");
    }
    if (size > 0) inflateSetDictionary(&zlib_, window.data(), static_cast<uInt>(size));
    return {};
  }

  Result<DecodeResult> Decode(MutableByteSpan into, bool stop_at_seek_point) override {
    DecodeResult step;
    while (step.bytes < into.size()) {
      ByteSpan available = MR_TRY(Available());
      if (available.empty()) {
        if (at_ != At::kBetweenMembers && at_ != At::kPadding) return CutOff();
        step.at_end = true;
        return step;
      }
      switch (at_) {
        case At::kBetweenMembers:
          MR_TRY(EnterMember(available[0]));
          break;
        case At::kPadding:
          MR_TRY(SkipPadding(available));
          break;
        case At::kTrailer: {  // not checked: decoding began in the middle of the member
          std::size_t bytes = std::min(available.size(), trailer_left_);
          Take(bytes);
          trailer_left_ -= bytes;
          if (trailer_left_ == 0) at_ = At::kBetweenMembers;
          step.at_seek_point = stop_at_seek_point && trailer_left_ == 0;
          break;
        }
        case At::kMember:
        case At::kRawBlocks:
          MR_TRY(Inflate(available, into, stop_at_seek_point, step));
          break;
      }
      if (step.at_seek_point) return step;
    }
    return step;
  }

  SeekPoint seek_point() const override {
    if (at_ == At::kBetweenMembers) return {.offset = position()};
    std::array<Bytef, kDeflateWindowBytes> window;
    uInt size = 0;
    inflateGetDictionary(const_cast<z_stream*>(&zlib_), window.data(), &size);
    const int bits = zlib_.data_type & 7;
    std::string state(1 + compressBound(size), static_cast<char>(bits));
    uLongf packed = state.size() - 1;
    compress(reinterpret_cast<Bytef*>(state.data() + 1), &packed, window.data(), size);
    state.resize(1 + packed);
    return {.offset = position() - (bits > 0 ? 1 : 0), .state = std::move(state)};
  }

 private:
  enum class At { kBetweenMembers, kMember, kRawBlocks, kTrailer, kPadding };
  static constexpr std::size_t kTrailerBytes = 8;  ///< CRC-32 and size (RFC 1952)

  std::unexpected<Error> CutOff() const {
    return Fail(Code::kCorrupt, "gzip data are cut off at byte {}, in the middle of a member", position());
  }

  Status EnterMember(std::byte first) {
    if (any_member_ && first == std::byte{0}) {
      at_ = At::kPadding;
      return {};
    }
    inflateReset2(&zlib_, kGzipFormat);
    any_member_ = true;
    at_ = At::kMember;
    return {};
  }

  Status SkipPadding(ByteSpan available) {
    auto end = std::ranges::find_if(available, [](std::byte b) { return b != std::byte{0}; });
    Take(end - available.begin());
    if (end == available.end()) return {};
    return Fail(Code::kCorrupt, "garbage after gzip data, at byte {}", position());
  }

  Status Inflate(ByteSpan available, MutableByteSpan into, bool stop_at_seek_point, DecodeResult& step) {
    zlib_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(available.data()));
    const auto in = static_cast<uInt>(std::min<std::size_t>(available.size(), INT_MAX));
    const auto out = static_cast<uInt>(std::min<std::size_t>(into.size() - step.bytes, INT_MAX));
    zlib_.avail_in = in;
    zlib_.next_out = reinterpret_cast<Bytef*>(into.data() + step.bytes);
    zlib_.avail_out = out;
    const int code = inflate(&zlib_, stop_at_seek_point ? Z_BLOCK : Z_NO_FLUSH);
    Take(in - zlib_.avail_in);
    step.bytes += out - zlib_.avail_out;
    if (code == Z_STREAM_END) {
      trailer_left_ = kTrailerBytes;
      any_member_ = true;
      at_ = at_ == At::kRawBlocks ? At::kTrailer : At::kBetweenMembers;
      step.at_seek_point = stop_at_seek_point && at_ == At::kBetweenMembers;
      return {};
    }
    if (code == Z_MEM_ERROR) return Fail(Code::kResourceExhausted, "no memory to decode gzip data");
    if (code != Z_OK && code != Z_BUF_ERROR) {
      return Fail(Code::kCorrupt, "gzip data are damaged before byte {}: {}", position(),
                  zlib_.msg ? zlib_.msg : "unknown method");
    }
    constexpr int kAfterBlock = 128, kLastBlock = 64;  // bits of z_stream::data_type (zlib.h, inflate)
    step.at_seek_point = stop_at_seek_point && (zlib_.data_type & (kAfterBlock | kLastBlock)) == kAfterBlock;
    return {};
  }

  z_stream zlib_{};
  At at_ = At::kBetweenMembers;
  bool any_member_ = false;
  std::size_t trailer_left_ = 0;
};

}  // namespace

Result<std::unique_ptr<Decoder>> MakeGzipDecoder(InputStream& input, const SeekPoint& start) {
  auto made = std::make_unique<GzipDecoder>(input, start.offset);
  MR_TRY(made->Start(start));
  return made;
}

}  // namespace millrace::data
