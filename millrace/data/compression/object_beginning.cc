#include "millrace/data/compression/object_beginning.h"

#include <algorithm>

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
  return bytes;
}

}  // namespace millrace::data
