#include "millrace/data/formats/zstd.h"

#include <zstd.h>
#include <zstd_errors.h>

namespace millrace::data {
namespace {

constexpr int kMaxWindowLog = 27;

class ZstdDecoder final : public Decoder {
 public:
  ZstdDecoder(Input& input, std::uint64_t position) : Decoder(input, position) {
    if (stream_) ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  }

  Result<Step> Decode(MutableByteSpan into, bool stop_at_entry) override {
    if (!stream_) return Fail(Code::kResourceExhausted, "no memory to decode zstd data");
    Step step;
    while (step.bytes < into.size()) {
      ByteSpan available;
      // What is decoded but found no room yet comes without further input.
      if (!held_back_) {
        available = MR_TRY(Available());
        if (available.empty() && in_frame_) {
          return Fail(Code::kCorrupt, "zstd data are cut off at byte {}, in the middle of a frame", position());
        }
        step.at_end = available.empty();
        if (step.at_end) break;
      }
      ZSTD_inBuffer in{available.data(), available.size(), 0};
      ZSTD_outBuffer out{into.data() + step.bytes, into.size() - step.bytes, 0};
      const std::size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(left)) return Refuse(left);
      Take(in.pos);
      step.bytes += out.pos;
      in_frame_ = left != 0;
      held_back_ = in_frame_ && out.pos == out.size;
      step.at_entry = stop_at_entry && !in_frame_;
      if (step.at_entry) break;
    }
    return step;
  }

  Entry entry() const override { return {.offset = position()}; }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };

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
  bool in_frame_ = false, held_back_ = false;
};

}  // namespace

Result<std::unique_ptr<Decoder>> MakeZstdDecoder(Input& input, const Entry& entry) {
  if (!entry.state.empty()) return Fail(Code::kCorrupt, "an entry into zstd data with a state");
  return std::make_unique<ZstdDecoder>(input, entry.offset);
}

}  // namespace millrace::data
