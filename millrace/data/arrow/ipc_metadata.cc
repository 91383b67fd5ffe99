#include "millrace/data/arrow/ipc_metadata.h"

#include <arrow/util/compression.h>

#include <cstdint>
#include <optional>

namespace millrace::data::arrow_format {
namespace {

// From Arrow's format/Message.fbs: the number of each field in its table, and values of enums.
constexpr std::size_t kHeaderType = 1, kHeader = 2;  // of Message
constexpr std::size_t kCompression = 3;              // of RecordBatch
constexpr std::size_t kCodec = 0, kMethod = 1;       // of BodyCompression
constexpr std::uint8_t kRecordBatch = 3;
constexpr std::uint8_t kLz4Frame = 0, kZstd = 1, kByBuffer = 0;

/// A flatbuffer from outside. Every offset is checked before it is followed.
class Flatbuffer {
 public:
  explicit Flatbuffer(MutableByteSpan bytes) : bytes_(bytes) {}

  template <class T>
  std::optional<T> Load(std::size_t at) const {
    if (at > bytes_.size() || sizeof(T) > bytes_.size() - at) return std::nullopt;
    return LoadLittle<T>(bytes_.data() + at);
  }
  /// Returns the target of the offset at `at`.
  std::optional<std::size_t> Follow(std::size_t at) const {
    auto offset = Load<std::uint32_t>(at);
    return offset ? std::optional(at + *offset) : std::nullopt;
  }
  /// Returns the position of a field's slot in the table's vtable. Nothing if the vtable is too short for this field.
  std::optional<std::size_t> VtableSlot(std::size_t table, std::size_t field) const {
    auto back = Load<std::int32_t>(table);
    if (!back) return std::nullopt;
    const std::int64_t fields = static_cast<std::int64_t>(table) - *back;
    if (fields < 0) return std::nullopt;
    const auto at = static_cast<std::size_t>(fields);
    auto bytes = Load<std::uint16_t>(at);
    const std::size_t slot = 4 + 2 * field;  // behind the sizes of the vtable and of the table
    if (!bytes || slot + 2 > *bytes) return std::nullopt;
    return at + slot;
  }
  /// Returns the position of a field's value. Nothing if the table lacks the field.
  std::optional<std::size_t> Field(std::size_t table, std::size_t field) const {
    auto slot = VtableSlot(table, field);
    auto offset = slot ? Load<std::uint16_t>(*slot) : std::nullopt;
    return offset && *offset != 0 ? std::optional(table + *offset) : std::nullopt;
  }
  std::uint8_t ByteField(std::size_t table, std::size_t field) const {
    auto at = Field(table, field);
    return at ? Load<std::uint8_t>(*at).value_or(0) : std::uint8_t{0};
  }
  void RemoveField(std::size_t table, std::size_t field) {
    auto slot = VtableSlot(table, field);
    if (slot && Load<std::uint16_t>(*slot)) StoreLittle(bytes_.data() + *slot, std::uint16_t{0});
  }

 private:
  MutableByteSpan bytes_;
};

}  // namespace

Result<arrow::Compression::type> TakeCompression(MutableByteSpan metadata) {
  Flatbuffer buffer(metadata);
  const auto message = buffer.Follow(0);
  const auto at = message ? buffer.Field(*message, kHeader) : std::nullopt;
  const auto batch = at ? buffer.Follow(*at) : std::nullopt;
  if (!batch || buffer.ByteField(*message, kHeaderType) != kRecordBatch) {
    return Fail(Code::kCorrupt, "the message is no record batch");
  }
  const auto field = buffer.Field(*batch, kCompression);
  if (!field) return arrow::Compression::UNCOMPRESSED;
  const auto compression = buffer.Follow(*field);
  if (!compression) return Fail(Code::kCorrupt, "the message's metadata are cut off");
  const std::uint8_t codec = buffer.ByteField(*compression, kCodec);
  if (codec > kZstd || buffer.ByteField(*compression, kMethod) != kByBuffer) {
    return Fail(Code::kUnsupported, "the message is compressed in a way that is not known");
  }
  buffer.RemoveField(*batch, kCompression);
  return codec == kLz4Frame ? arrow::Compression::LZ4_FRAME : arrow::Compression::ZSTD;
}

}  // namespace millrace::data::arrow_format
