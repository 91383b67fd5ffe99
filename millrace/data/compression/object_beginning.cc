#include "millrace/data/compression/object_beginning.h"

#include <algorithm>
#include <utility>

#include "millrace/data/compression/decoder.h"
#include "millrace/data/compression/input_stream.h"

namespace millrace::data {
namespace {

/// Reads little at a time, because most objects tell their format in their first bytes.
class ObjectBeginning final : public InputStream {
 public:
  ObjectBeginning(const DataObject& object, object::Call call) : object_(object), call_(std::move(call)) {}
  Result<ByteSpan> Next() override {
    bytes_.Shrink(std::min<std::uint64_t>(bytes_.size(), object_.info.size - at_));
    if (bytes_.empty()) return ByteSpan{};
    MR_TRY(ReadRange(object_, at_, bytes_.span(), "looking at", call_));
    at_ += bytes_.size();
    return ByteSpan(bytes_);
  }

 private:
  const DataObject& object_;
  const object::Call call_;
  std::uint64_t at_ = 0;
  Buffer bytes_{32 * kKiB};
};

}  // namespace

Result<Buffer> ReadBeginning(const DataObject& object, Compression compression, std::size_t most, object::Call call) {
  ObjectBeginning input(object, std::move(call));
  auto decoder = MR_TRY(MakeDecoder(compression, input, {}));
  Buffer bytes(most);
  const auto step = decoder->Decode(bytes.span(), false);
  if (!step) {
    const bool of_data = step.error().code() == Code::kCorrupt || step.error().code() == Code::kUnsupported;
    return Fail(of_data ? step.error().Context(object.url) : step.error());
  }
  bytes.Shrink(step->bytes);
  if (compression != Compression::kNone) return bytes;
  if (const Status plain = RequireUncompressed(AsText(bytes)); !plain) return Fail(plain.error().Context(object.url));
  return bytes;
}

Status RequireUncompressed(std::string_view beginning) {
  // The first bytes of each compressor's files, as its format defines them.
  constexpr std::pair<std::string_view, std::string_view> kReadable[] = {{"\x1F\x8B\x08", "gzip"},
                                                                         {"\x28\xB5\x2F\xFD", "zstd"}};
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      {"BZh91AY&SY", "bzip2"}, {"\xFD\x37zXZ", "xz"}, {"PK\x03\x04", "zip"}, {"\x04\x22\x4D\x18", "lz4"}};
  for (const auto& [magic, name] : kReadable) {
    if (!beginning.starts_with(magic)) continue;
    return Fail(Code::kUnsupported,
                "the data are compressed by {}, and the name does not say so; give a format with +{}", name, name);
  }
  for (const auto& [magic, name] : kOthers) {
    if (!beginning.starts_with(magic)) continue;
    return Fail(Code::kUnsupported, "the data are compressed by {}; store them as .gz, .zst or uncompressed", name);
  }
  return {};
}

}  // namespace millrace::data
