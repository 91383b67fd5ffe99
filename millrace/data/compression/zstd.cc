#include "millrace/data/compression/zstd.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "millrace/data/compression/zstd_tables.h"

namespace millrace::data {
namespace {

constexpr int kMaxWindowLog = 27;  ///< 128 MiB: what the program zstd decodes without --long
constexpr std::uint32_t kMagic = 0xFD2FB528, kSkippableMagic = 0x184D2A50;  // RFC 8878, sections 3.1.1 and 3.1.2
constexpr std::size_t kSkipStep = 256 * kKiB;  ///< decoded at a time on the way to a seek point; a guess: fits in cache
enum StateKind : char { kInside = 1, kPassOver = 2 };

std::uint32_t LittleEndian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// Returns the window size of a header's window descriptor (RFC 8878, section 3.1.1.1.2).
std::uint64_t WindowOf(unsigned char descriptor) {
  const std::uint64_t base = std::uint64_t{1} << (10 + (descriptor >> 3));
  return base + base / 8 * (descriptor & 7U);
}

/// Splits the stream into pieces and gives them to libzstd one at a time. A piece is a frame's header, a block with its
/// header, or a checksum. So the decoder knows when libzstd has decoded everything up to the end of a block.
class ZstdDecoder final : public Decoder {
 public:
  ZstdDecoder(InputStream& input, std::uint64_t position, std::uint64_t spacing)
      : Decoder(input, position), spacing_(spacing), frame_start_(position) {
    if (stream_) ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  }

  Status Start(std::string_view state) {
    if (!stream_) return Fail(Code::kResourceExhausted, "no memory to decode zstd data");
    if (state.empty()) return {};
    if (state[0] == kInside && state.size() > 3) return Enter(state.substr(1));
    if (state[0] == kPassOver && state.size() == 9)
      return PassOver(LoadLittle<std::uint64_t>(AsBytes(state).data() + 1));
    return Fail(Code::kCorrupt, "an entry into zstd data with a damaged state");
  }

  Result<DecodeResult> Decode(MutableByteSpan into, bool stop_at_seek_point) override {
    DecodeResult step;
    while (step.bytes < into.size()) {
      if (!piece_given_) {
        if (!MR_TRY(Gather())) {
          step.at_end = true;
          break;
        }
        piece_given_ = true;
      }
      if (at_ != At::kIgnored) {
        step.bytes += MR_TRY(GivePiece(into.subspan(step.bytes)));
        if (step.bytes == into.size()) break;  // libzstd may hold more decoded bytes of the piece
      }
      MR_TRY(EndPiece());
      if (stop_at_seek_point && AtSeekPoint()) {
        step.at_seek_point = true;
        break;
      }
    }
    return step;
  }

  SeekPoint seek_point() const override {
    if (at_ == At::kFrame) return {.offset = position()};
    if (window_bytes_ > kZstdLongestWindow) {
      std::string state(9, static_cast<char>(kPassOver));
      StoreLittle(reinterpret_cast<std::byte*>(state.data() + 1), in_frame_);
      return {.offset = frame_start_, .state = std::move(state)};
    }
    const std::string_view window = AsText(ByteSpan(history_).last(window_bytes_));
    const std::string dictionary = tables_.Dictionary(window);
    std::string state{static_cast<char>(kInside), static_cast<char>(has_checksum_), static_cast<char>(descriptor_)};
    const std::size_t head = state.size();
    state.resize(head + ZSTD_compressBound(dictionary.size()));
    constexpr int kLevel = 6;  // a guess: states are written once, and stored
    state.resize(head +
                 ZSTD_compress(state.data() + head, state.size() - head, dictionary.data(), dictionary.size(), kLevel));
    return {.offset = position(), .state = std::move(state)};
  }

 private:
  /// The kind of the piece that is gathered next, or was gathered last.
  enum class At { kFrame, kBlock, kChecksum, kIgnored, kUnknown };
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };

  /// Enters a frame in its middle. Gives libzstd a header and a dictionary, as if a frame began here.
  Status Enter(std::string_view state) {
    has_checksum_ = state[0] != 0;
    descriptor_ = static_cast<unsigned char>(state[1]);
    window_bytes_ = WindowOf(descriptor_);
    state.remove_prefix(2);
    const auto size = ZSTD_getFrameContentSize(state.data(), state.size());
    std::string dictionary;
    if (size <= kZstdLongestWindow + 64 * kKiB) {
      dictionary.resize(size);
      const std::size_t made = ZSTD_decompress(dictionary.data(), size, state.data(), state.size());
      if (made != size) dictionary.clear();
    }
    if (dictionary.empty() ||
        ZSTD_isError(ZSTD_DCtx_loadDictionary(stream_.get(), dictionary.data(), dictionary.size()))) {
      return Fail(Code::kCorrupt, "an entry into zstd data with a damaged window");
    }
    entered_ = true;
    at_ = At::kBlock;
    std::string header("\x28\xb5\x2f\xfd\x00", 5);
    header += static_cast<char>(descriptor_);
    ZSTD_inBuffer in{header.data(), header.size(), 0};
    ZSTD_outBuffer nowhere{nullptr, 0, 0};
    const std::size_t left = ZSTD_decompressStream(stream_.get(), &nowhere, &in);
    return ZSTD_isError(left) ? Refuse(left) : Status{};
  }

  Status PassOver(std::uint64_t bytes) {
    Buffer scratch(kSkipStep);
    while (bytes > 0) {
      const auto step = MR_TRY(Decode(scratch.span().first(std::min<std::uint64_t>(bytes, kSkipStep)), false));
      bytes -= step.bytes;
      if (step.at_end && bytes > 0) return Fail(Code::kCorrupt, "zstd data end before an entry into them");
    }
    return {};
  }

  /// Reads until the piece is `bytes` long. Returns false if the data end before its first byte.
  Result<bool> Extend(std::size_t bytes) {
    while (piece_.size() < bytes) {
      ByteSpan available = MR_TRY(Available());
      if (available.empty()) {
        if (piece_.empty() && at_ == At::kFrame) return false;
        return Fail(Code::kCorrupt, "zstd data are cut off at byte {}, in the middle of a frame", position());
      }
      available = available.first(std::min(available.size(), bytes - piece_.size()));
      piece_ += AsText(available);
      Take(available.size());
    }
    return true;
  }

  /// Reads the next piece. Returns false at the end of the data.
  Result<bool> Gather() {
    piece_.clear();
    given_ = 0;
    switch (at_) {
      case At::kFrame:
        return GatherHeader();
      case At::kBlock: {
        MR_TRY(Extend(3));
        const std::uint32_t header = LittleEndian(piece_);
        constexpr std::uint32_t kOneByte = 1;
        last_block_ = header & 1;
        block_type_ = header >> 1 & 3;
        const std::uint32_t size = block_type_ == kOneByte ? 1 : header >> 3;
        if (size > 128 * kKiB) return Fail(Code::kCorrupt, "zstd data are damaged near byte {}: a block", position());
        return Extend(3 + size);
      }
      case At::kChecksum:
        return Extend(4);
      case At::kIgnored:
        return GatherIgnored();
      case At::kUnknown:
        break;
    }
    return Fail(Code::kCorrupt, "zstd data are damaged near byte {}", position());
  }

  Result<bool> GatherHeader() {
    const std::uint64_t start = position();
    if (!MR_TRY(Extend(4))) return false;
    const std::uint32_t magic = LittleEndian(piece_);
    if ((magic & ~15U) == kSkippableMagic) {
      MR_TRY(Extend(8));
      ignored_left_ = LittleEndian(std::string_view(piece_).substr(4));
      at_ = At::kIgnored;
      return true;
    }
    if (magic != kMagic) {
      at_ = At::kUnknown;  // libzstd makes the error message
      return true;
    }
    MR_TRY(Extend(5));
    const auto flags = static_cast<unsigned char>(piece_[4]);
    const bool single = flags >> 5 & 1;
    constexpr std::size_t kIdBytes[] = {0, 1, 2, 4}, kSizeBytes[] = {0, 2, 4, 8};
    const std::size_t size_bytes = flags >> 6 == 0 && single ? 1 : kSizeBytes[flags >> 6];
    MR_TRY(Extend(5 + (single ? 0 : 1) + kIdBytes[flags & 3] + size_bytes));
    has_checksum_ = flags >> 2 & 1;
    // A single-segment frame has no window descriptor, because its window is the whole frame.
    descriptor_ = single ? 0xff : static_cast<unsigned char>(piece_[5]);
    window_bytes_ = WindowOf(descriptor_);
    frame_start_ = start;
    tables_ = {};
    return true;
  }

  Result<bool> GatherIgnored() {
    ByteSpan available = MR_TRY(Available());
    if (available.empty()) return Fail(Code::kCorrupt, "zstd data are cut off at byte {}", position());
    const auto bytes = std::min<std::size_t>(available.size(), ignored_left_);
    Take(bytes);
    ignored_left_ -= static_cast<std::uint32_t>(bytes);
    return true;
  }

  /// Decodes the rest of the piece, at most into.size() bytes. Returns the number of bytes.
  Result<std::size_t> GivePiece(MutableByteSpan into) {
    // libzstd got a header without a checksum for a frame that was entered.
    if (at_ == At::kChecksum && entered_) return std::size_t{0};
    ZSTD_outBuffer out{into.data(), into.size(), 0};
    do {
      ZSTD_inBuffer in{piece_.data(), piece_.size(), given_};
      const std::size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(left)) return Refuse(left);
      given_ = in.pos;
    } while (given_ < piece_.size() && out.pos < out.size);
    in_frame_ += out.pos;
    Remember(into.first(out.pos));
    return out.pos;
  }

  /// Keeps the last decoded bytes, once the next seek point is less than a window away.
  void Remember(ByteSpan made) {
    if (entered_ || window_bytes_ > kZstdLongestWindow) return;
    if (in_frame_ - last_seek_point_ + window_bytes_ < spacing_) return;
    if (history_.size() + made.size() > 2 * window_bytes_ + kSkipStep && history_.size() > window_bytes_) {
      history_.erase(history_.begin(), history_.end() - static_cast<std::ptrdiff_t>(window_bytes_));
    }
    history_.insert(history_.end(), made.begin(), made.end());
  }

  /// Decides which kind of piece follows one that is decoded.
  Status EndPiece() {
    piece_given_ = false;
    switch (at_) {
      case At::kFrame:
        at_ = At::kBlock;
        break;
      case At::kBlock:
        MR_TRY(FollowBlock());
        if (!last_block_) break;
        if (has_checksum_) {
          at_ = At::kChecksum;
          break;
        }
        [[fallthrough]];
      case At::kChecksum:
        EndFrame();
        break;
      case At::kIgnored:
        if (ignored_left_ == 0) at_ = At::kFrame;
        break;
      case At::kUnknown:
        break;
    }
    return {};
  }

  Status FollowBlock() {
    constexpr std::uint32_t kCompressed = 2;
    if (block_type_ != kCompressed || entered_ || window_bytes_ > kZstdLongestWindow) return {};
    const bool due = in_frame_ - last_seek_point_ >= spacing_;
    auto followed = tables_.Follow(AsBytes(piece_).subspan(3), due);
    return followed ? followed : Fail(followed.error().Context(fmt::format("zstd data before byte {}", position())));
  }

  bool AtSeekPoint() {
    if (at_ == At::kFrame) return true;
    // A frame that was entered in the middle is read up to a known seek point. Nobody asks for new ones.
    if (at_ != At::kBlock || entered_ || in_frame_ - last_seek_point_ < spacing_) return false;
    if (window_bytes_ <= kZstdLongestWindow && (history_.size() < window_bytes_ || !tables_.Complete(window_bytes_))) {
      return false;
    }
    last_seek_point_ = in_frame_;
    return true;
  }

  void EndFrame() {
    at_ = At::kFrame;
    // The dictionary was for the rest of this frame alone.
    if (std::exchange(entered_, false)) {
      ZSTD_DCtx_reset(stream_.get(), ZSTD_reset_session_only);
      ZSTD_DCtx_loadDictionary(stream_.get(), nullptr, 0);
    }
    in_frame_ = last_seek_point_ = 0;
    history_.clear();
  }

  std::unexpected<Error> Refuse(std::size_t code) const {
    const char* why = ZSTD_getErrorName(code);
    switch (ZSTD_getErrorCode(code)) {
      case ZSTD_error_frameParameter_windowTooLarge:
        return Fail(
            Code::kUnsupported,
            "a zstd frame near byte {} needs a window of more than {} MiB; compress the data again with --long={} "
            "or less",
            position(), (1 << kMaxWindowLog) >> 20, kMaxWindowLog);
      case ZSTD_error_dictionary_wrong:
        return Fail(Code::kUnsupported,
                    "a zstd frame near byte {} needs a dictionary; compress the data again without one", position());
      case ZSTD_error_memory_allocation:
        return Fail(Code::kResourceExhausted, "no memory to decode zstd data");
      default:
        return Fail(Code::kCorrupt, "zstd data are damaged near byte {}: {}", position(), why);
    }
  }

  const std::unique_ptr<ZSTD_DStream, Free> stream_{ZSTD_createDStream()};
  const std::uint64_t spacing_;
  At at_ = At::kFrame;
  std::string piece_;
  std::size_t given_ = 0;     ///< bytes of the piece that libzstd has taken
  bool piece_given_ = false;  ///< libzstd has begun the piece, and may hold decoded bytes of it

  // The current frame.
  bool entered_ = false;  ///< decoding began in its middle
  bool has_checksum_ = false, last_block_ = false;
  std::uint32_t block_type_ = 0, ignored_left_ = 0;
  unsigned char descriptor_ = 0;
  std::uint64_t window_bytes_ = 0;
  std::uint64_t frame_start_;                         ///< in the object
  std::uint64_t in_frame_ = 0, last_seek_point_ = 0;  ///< decoded bytes
  mutable ZstdTables tables_;                         ///< seek_point() notes which tables its dictionary lacks
  std::vector<std::byte> history_;                    ///< the last bytes that were decoded
};

}  // namespace

Result<std::unique_ptr<Decoder>> MakeZstdDecoder(InputStream& input, const SeekPoint& start, std::uint64_t spacing) {
  auto made = std::make_unique<ZstdDecoder>(input, start.offset, spacing);
  MR_TRY(made->Start(start.state));
  return made;
}

}  // namespace millrace::data
