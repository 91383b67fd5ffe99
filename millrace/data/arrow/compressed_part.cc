#include "millrace/data/arrow/compressed_part.h"

#include <arrow/util/compression.h>

#include <algorithm>

#include "millrace/data/arrow/status.h"

namespace millrace::data::arrow_format {
namespace {

/// The size of one read, and the decompressed bytes that are dropped at a time. A guess: one read costs a round trip,
/// and the output stays in the second-level cache.
constexpr std::uint64_t kInputBytes = 1 * kMiB, kOutputBytes = 256 * kKiB;

const std::uint8_t* ToArrow(const std::byte* bytes) { return reinterpret_cast<const std::uint8_t*>(bytes); }
std::uint8_t* ToArrow(std::byte* bytes) { return reinterpret_cast<std::uint8_t*>(bytes); }

}  // namespace

Status ReadCompressedPart(const DataObject& object, object::ByteRange compressed, arrow::Compression::type codec,
                          std::uint64_t first, MutableByteSpan into, const object::Call& call) {
  auto undoes = MR_ARROW_TRY(object.url, arrow::util::Codec::Create(codec));
  auto decoder = MR_ARROW_TRY(object.url, undoes->MakeDecompressor());
  auto damaged = [&] {
    return Fail(Code::kCorrupt, "{}: the compressed buffer at byte {} is damaged", object.url, compressed.offset);
  };
  Buffer input(std::min(kInputBytes, compressed.length)), passed(kOutputBytes);
  std::uint64_t fetched = 0, made = 0;  // compressed bytes that were read, decompressed bytes that were made
  ByteSpan rest;
  while (made < first + into.size()) {
    if (rest.empty() && fetched < compressed.length) {
      const auto some = input.span().first(std::min<std::uint64_t>(input.size(), compressed.length - fetched));
      MR_TRY(ReadRange(object, compressed.offset + fetched, some, "reading records of", call));
      fetched += some.size();
      rest = some;
    }
    // Bytes in front of `first` go to a scratch buffer, the others to `into`.
    const MutableByteSpan room = made < first
                                     ? passed.span().first(std::min<std::uint64_t>(passed.size(), first - made))
                                     : into.subspan(made - first);
    auto done = decoder->Decompress(static_cast<std::int64_t>(rest.size()), ToArrow(rest.data()),
                                    static_cast<std::int64_t>(room.size()), ToArrow(room.data()));
    if (!done.ok()) return damaged();
    rest = rest.subspan(static_cast<std::size_t>(done->bytes_read));
    made += static_cast<std::uint64_t>(done->bytes_written);
    const bool stuck = done->bytes_read == 0 && done->bytes_written == 0;
    const bool at_end = decoder->IsFinished() || (stuck && (!rest.empty() || fetched == compressed.length));
    if (at_end && made < first + into.size()) return damaged();
  }
  return {};
}

}  // namespace millrace::data::arrow_format
