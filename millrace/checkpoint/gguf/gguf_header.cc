#include "millrace/checkpoint/gguf/gguf_header.h"

#include <bit>
#include <limits>
#include <set>
#include <utility>

#include "millrace/base/text.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kGgufAlignment = 32;       ///< of data, unless the metadata say otherwise
constexpr std::uint64_t kMaxDimensions = 4;        ///< GGML_MAX_DIMS
constexpr std::uint64_t kMaxNesting = 4;           ///< of arrays in arrays; a guess: none is in use
constexpr std::uint64_t kMaxGgufName = 64 * kKiB;  ///< of a key: 2^16 - 1, as the specification says
constexpr std::uint64_t kMaxAlignment = 1 * kMiB;  ///< a guess

/// The types of values in the metadata.
enum class ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

std::uint64_t WidthOf(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    case ValueType::kString:
    case ValueType::kArray:
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64:
      return 8;
  }
  return 0;
}

bool IsFloat(ValueType type) { return type == ValueType::kF32 || type == ValueType::kF64; }

/// Reads the header front to back. After the end of the bytes, all reads return zeros and at_end() is true.
class HeaderReader {
 public:
  HeaderReader(std::string_view bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  std::uint64_t position() const { return at_; }
  bool at_end() const { return ended_; }
  std::uint64_t rest() const { return bytes_.size() - at_; }

  std::string_view Take(std::uint64_t size) {
    if (ended_ || size > rest()) {
      ended_ = true;
      return {};
    }
    const std::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }
  template <class T>
  T Number() {
    const std::string_view taken = Take(sizeof(T));
    return taken.empty() ? T{} : LoadLittle<T>(AsBytes(taken).data());
  }

  Result<std::string> String(std::uint64_t most) {
    const auto size = Number<std::uint64_t>();
    if (size > most) return Fail(Code::kCorrupt, "{}: a string of {} bytes at byte {}", what_, size, at_);
    return std::string(Take(size));
  }

  /// Reads an integer, truth value or float.
  Result<GgufValue> Scalar(ValueType type) {
    switch (type) {
      case ValueType::kU8:
        return std::int64_t{Number<std::uint8_t>()};
      case ValueType::kI8:
        return std::int64_t{Number<std::int8_t>()};
      case ValueType::kU16:
        return std::int64_t{Number<std::uint16_t>()};
      case ValueType::kI16:
        return std::int64_t{Number<std::int16_t>()};
      case ValueType::kU32:
        return std::int64_t{Number<std::uint32_t>()};
      case ValueType::kI32:
        return std::int64_t{Number<std::int32_t>()};
      case ValueType::kI64:
        return Number<std::int64_t>();
      case ValueType::kF32:
        return static_cast<double>(std::bit_cast<float>(Number<std::uint32_t>()));
      case ValueType::kF64:
        return std::bit_cast<double>(Number<std::uint64_t>());
      case ValueType::kBool:
        return Number<std::uint8_t>() != 0;
      case ValueType::kU64: {
        const auto number = Number<std::uint64_t>();
        if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
          return Fail(Code::kUnsupported, "{}: the number {} of the metadata has 64 bits", what_, number);
        return static_cast<std::int64_t>(number);
      }
      default:
        return MR_TRY(String(kMaxGgufHeader));
    }
  }

  Result<ValueType> Type() {
    const auto number = Number<std::uint32_t>();
    if (number > static_cast<std::uint32_t>(ValueType::kF64))
      return Fail(Code::kCorrupt, "{}: a value of the unknown type {} at byte {}", what_, number, at_);
    return static_cast<ValueType>(number);
  }

  /// Reads an array. Nothing: it holds arrays.
  Result<std::optional<GgufValue>> Array(std::uint64_t nesting) {
    const ValueType type = MR_TRY(Type());
    const auto count = Number<std::uint64_t>();
    if (nesting > kMaxNesting) return Fail(Code::kCorrupt, "{}: arrays are nested too deep", what_);
    if (count > kMaxGgufHeader) return Fail(Code::kCorrupt, "{}: an array of {} elements", what_, count);
    if (count > rest() / WidthOf(type)) {  // of strings and arrays, at least the length
      ended_ = true;
      return std::nullopt;
    }
    std::vector<std::int64_t> integers;
    std::vector<double> floats;
    std::vector<std::string> strings;
    for (std::uint64_t i = 0; i < count && !ended_; ++i) {
      if (type == ValueType::kArray) {
        MR_TRY(Array(nesting + 1));
        continue;
      }
      GgufValue value = MR_TRY(Scalar(type));
      if (auto* text = std::get_if<std::string>(&value)) {
        strings.push_back(std::move(*text));
      } else if (const auto* number = std::get_if<double>(&value)) {
        floats.push_back(*number);
      } else if (const auto* flag = std::get_if<bool>(&value)) {
        integers.push_back(*flag);
      } else {
        integers.push_back(std::get<std::int64_t>(value));
      }
    }
    if (type == ValueType::kArray) return std::nullopt;
    if (type == ValueType::kString) return GgufValue(std::move(strings));
    if (IsFloat(type)) return GgufValue(std::move(floats));
    return GgufValue(std::move(integers));
  }

 private:
  const std::string_view bytes_, what_;
  std::uint64_t at_ = 0;
  bool ended_ = false;
};

/// Reads the name, shape, type and offset of a tensor. Offsets count from the start of the data.
Result<GgufTensor> ReadTensor(HeaderReader& reader, std::string_view what) {
  GgufTensor tensor;
  tensor.name = MR_TRY(reader.String(kMaxGgufName));
  const auto dimensions = reader.Number<std::uint32_t>();
  if (dimensions > kMaxDimensions)
    return Fail(Code::kCorrupt, "{}: tensor {} has {} dimensions", what, tensor.name, dimensions);
  std::uint64_t elements = 1;
  for (std::uint32_t d = 0; d < dimensions; ++d) {
    const auto extent = reader.Number<std::uint64_t>();
    // Far above any tensor, and far below where products overflow.
    constexpr std::uint64_t kMaxElements = 1ull << 48;
    if (extent == 0 && !reader.at_end())
      return Fail(Code::kCorrupt, "{}: tensor {} has no elements", what, tensor.name);
    if (extent > kMaxElements || (extent > 0 && elements > kMaxElements / extent))
      return Fail(Code::kCorrupt, "{}: tensor {} is too large", what, tensor.name);
    elements *= extent;
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(extent));
  }
  const auto number = reader.Number<std::uint32_t>();
  tensor.offset = reader.Number<std::uint64_t>();
  if (reader.at_end()) return tensor;
  auto type = GgmlTypeOf(number);
  if (!type) return Fail(type.error().Context(fmt::format("{}: {}", what, tensor.name)));
  tensor.type = *type;
  const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (static_cast<std::uint64_t>(row) % BlockElements(tensor.type) != 0) {
    return Fail(Code::kCorrupt, "{}: rows of {} elements of tensor {} are no whole blocks of {}", what, row,
                tensor.name, GgmlTypeName(tensor.type));
  }
  return tensor;
}

/// Turns offsets into those in the file, and checks them.
Status PlaceTensors(GgufHeader& header, std::uint64_t file_bytes, std::string_view what) {
  std::uint64_t alignment = kGgufAlignment;
  if (const auto* says = header.Find<std::int64_t>("general.alignment")) {
    if (*says < 1 || *says > static_cast<std::int64_t>(kMaxAlignment))
      return Fail(Code::kCorrupt, "{}: an alignment of {} bytes", what, *says);
    alignment = static_cast<std::uint64_t>(*says);
  }
  const std::uint64_t data = (header.bytes + alignment - 1) / alignment * alignment;
  std::set<std::string_view> names;
  for (GgufTensor& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) return Fail(Code::kCorrupt, "{}: tensor {} occurs twice", what, tensor.name);
    if (data > file_bytes || tensor.bytes() > file_bytes - data || tensor.offset > file_bytes - data - tensor.bytes())
      return Fail(Code::kCorrupt, "{}: tensor {} does not lie inside the file", what, tensor.name);
    tensor.offset += data;
  }
  return {};
}

template <class T>
void Append(std::string& out, T number) {
  out.resize(out.size() + sizeof(T));
  StoreLittle(reinterpret_cast<std::byte*>(out.data()) + out.size() - sizeof(T), number);
}
void AppendString(std::string& out, std::string_view text) {
  Append(out, std::uint64_t{text.size()});
  out += text;
}
void AppendType(std::string& out, ValueType type) { Append(out, static_cast<std::uint32_t>(type)); }
void AppendFloat(std::string& out, double number) {
  Append(out, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
}

/// Writes values with their types.
struct ValueWriter {
  std::string& out;
  void operator()(std::int64_t number) const {
    AppendType(out, ValueType::kU32);
    Append(out, static_cast<std::uint32_t>(number));
  }
  void operator()(double number) const {
    AppendType(out, ValueType::kF32);
    AppendFloat(out, number);
  }
  void operator()(bool flag) const {
    AppendType(out, ValueType::kBool);
    Append(out, static_cast<std::uint8_t>(flag));
  }
  void operator()(const std::string& text) const {
    AppendType(out, ValueType::kString);
    AppendString(out, text);
  }
  void operator()(const std::vector<std::int64_t>& numbers) const {
    Begin(ValueType::kI32, numbers.size());
    for (std::int64_t number : numbers) Append(out, static_cast<std::int32_t>(number));
  }
  void operator()(const std::vector<double>& numbers) const {
    Begin(ValueType::kF32, numbers.size());
    for (double number : numbers) AppendFloat(out, number);
  }
  void operator()(const std::vector<std::string>& texts) const {
    Begin(ValueType::kString, texts.size());
    for (const std::string& text : texts) AppendString(out, text);
  }
  void Begin(ValueType type, std::size_t count) const {
    AppendType(out, ValueType::kArray);
    AppendType(out, type);
    Append(out, std::uint64_t{count});
  }
};

}  // namespace

std::uint64_t GgufTensor::bytes() const {
  std::uint64_t elements = 1;
  for (std::int64_t extent : shape) elements *= static_cast<std::uint64_t>(extent);
  return elements / BlockElements(type) * BlockBytes(type);
}

Result<std::optional<GgufHeader>> ParseGgufHeader(std::string_view bytes, std::uint64_t file_bytes,
                                                  std::string_view what) {
  HeaderReader reader(bytes, what);
  const std::string_view magic = reader.Take(kMagic.size());
  if (!reader.at_end() && magic != kMagic) return Fail(Code::kCorrupt, "{} is not a GGUF file", what);
  const auto version = reader.Number<std::uint32_t>();
  if (!reader.at_end() && version != 2 && version != kVersion) {
    return Fail(Code::kUnsupported, "{}: version {} of GGUF cannot be read; little-endian files of version 2 and 3 can",
                what, version);
  }
  const auto tensors = reader.Number<std::uint64_t>(), members = reader.Number<std::uint64_t>();
  GgufHeader header;
  for (std::uint64_t i = 0; i < members && !reader.at_end(); ++i) {
    std::string key = MR_TRY(reader.String(kMaxGgufName));
    const ValueType type = MR_TRY(reader.Type());
    auto value = type == ValueType::kArray ? MR_TRY(reader.Array(0)) : std::optional(MR_TRY(reader.Scalar(type)));
    if (value && !header.metadata.emplace(key, *std::move(value)).second && !reader.at_end())
      return Fail(Code::kCorrupt, "{}: the metadata have {} twice", what, key);
  }
  for (std::uint64_t i = 0; i < tensors && !reader.at_end(); ++i)
    header.tensors.push_back(MR_TRY(ReadTensor(reader, what)));
  if (reader.at_end()) {
    if (bytes.size() < std::min(file_bytes, kMaxGgufHeader)) return std::nullopt;
    return Fail(Code::kCorrupt, "{}: the header does not end within {} bytes", what, bytes.size());
  }
  header.bytes = reader.position();
  MR_TRY(PlaceTensors(header, file_bytes, what));
  return header;
}

std::uint64_t GgufPadding(std::uint64_t bytes) { return (kGgufAlignment - bytes % kGgufAlignment) % kGgufAlignment; }

std::string MakeGgufHeader(const std::map<std::string, GgufValue>& metadata, std::vector<GgufTensor>& tensors) {
  std::string out(kMagic);
  Append(out, kVersion);
  Append(out, std::uint64_t{tensors.size()});
  Append(out, std::uint64_t{metadata.size()});
  for (const auto& [key, value] : metadata) {
    AppendString(out, key);
    std::visit(ValueWriter{out}, value);
  }
  std::uint64_t offset = 0;
  for (GgufTensor& tensor : tensors) {
    AppendString(out, tensor.name);
    Append(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (std::size_t d = tensor.shape.size(); d-- > 0;) Append(out, static_cast<std::uint64_t>(tensor.shape[d]));
    Append(out, static_cast<std::uint32_t>(tensor.type));
    Append(out, offset);
    tensor.offset = offset;
    offset += tensor.bytes() + GgufPadding(tensor.bytes());
  }
  out.append(GgufPadding(out.size()), '\0');
  for (GgufTensor& tensor : tensors) tensor.offset += out.size();
  return out;
}

}  // namespace millrace::checkpoint
