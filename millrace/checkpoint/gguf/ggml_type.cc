#include "millrace/checkpoint/gguf/ggml_type.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "millrace/checkpoint/format/half.h"
#include "millrace/checkpoint/gguf/ggml_blocks.h"

namespace millrace::checkpoint {
namespace {

constexpr std::uint64_t kBlock = 32;        ///< elements of a block of one scale
constexpr std::uint64_t kSuperBlock = 256;  ///< elements of a block of several scales
constexpr std::uint64_t kScaleBytes = 2;    ///< in front of the numbers: a half

struct NamedType {
  std::string_view name;
  GgmlType type;
  std::uint64_t elements, bytes;  ///< of a block
  bool can_write = false;
};
constexpr NamedType kTypes[] = {{"f32", GgmlType::kF32, 1, 4, true},
                                {"f16", GgmlType::kF16, 1, 2, true},
                                {"bf16", GgmlType::kBF16, 1, 2, true},
                                {"q8_0", GgmlType::kQ8_0, kBlock, 34, true},
                                {"q4_0", GgmlType::kQ4_0, kBlock, 18, true},
                                {"q4_1", GgmlType::kQ4_1, kBlock, 20},
                                {"q5_0", GgmlType::kQ5_0, kBlock, 22},
                                {"q5_1", GgmlType::kQ5_1, kBlock, 24},
                                {"q2_K", GgmlType::kQ2_K, kSuperBlock, 84},
                                {"q3_K", GgmlType::kQ3_K, kSuperBlock, 110},
                                {"q4_K", GgmlType::kQ4_K, kSuperBlock, 144},
                                {"q5_K", GgmlType::kQ5_K, kSuperBlock, 176},
                                {"q6_K", GgmlType::kQ6_K, kSuperBlock, 210},
                                {"iq4_nl", GgmlType::kIQ4_NL, kBlock, 18},
                                {"iq4_xs", GgmlType::kIQ4_XS, kSuperBlock, 136},
                                {"mxfp4", GgmlType::kMXFP4, kBlock, 17}};

const NamedType& Of(GgmlType type) { return *std::ranges::find(kTypes, type, &NamedType::type); }

void QuantizeQ8(std::span<const float> values, std::byte* into) {
  float largest = 0;
  for (float value : values) largest = std::max(largest, std::fabs(value));
  const float scale = largest / 127, inverse = scale != 0 ? 1 / scale : 0;
  StoreLittle(into, FloatToHalf(scale));
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float number = std::round(values[i] * inverse);  // halves go away from zero
    into[kScaleBytes + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::isfinite(number) ? number : 0));
  }
}

void QuantizeQ4(std::span<const float> values, std::byte* into) {
  float largest = 0;  // by its size, with its sign
  for (float value : values) {
    if (std::fabs(value) > std::fabs(largest)) largest = value;
  }
  const float scale = largest / -8, inverse = scale != 0 ? 1 / scale : 0;
  StoreLittle(into, FloatToHalf(scale));
  const auto number = [&](float value) {
    const float number = std::fma(value, inverse, 8.5F);
    return std::isfinite(number) ? std::min(15, static_cast<int>(static_cast<std::int8_t>(number))) : 0;
  };
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    into[kScaleBytes + i] = static_cast<std::byte>(number(values[i]) | number(values[kBlock / 2 + i]) << 4);
  }
}

}  // namespace

std::string_view GgmlTypeName(GgmlType type) { return Of(type).name; }

bool CanWrite(GgmlType type) { return Of(type).can_write; }

Result<GgmlType> ParseGgmlType(std::string_view name) {
  for (const NamedType& known : kTypes) {
    if (known.can_write && known.name == name) return known.type;
  }
  return Fail(Code::kInvalidArgument,
              "\"{}\" is not a type of GGUF files that Millrace writes; choose f32, f16, bf16, q8_0 or q4_0", name);
}

Result<GgmlType> GgmlTypeOf(std::uint32_t number) {
  for (const NamedType& known : kTypes) {
    if (static_cast<std::uint32_t>(known.type) == number) return known.type;
  }
  return Fail(
      Code::kUnsupported,
      "tensors of ggml's type {} cannot be read; floats, q8_0, q4_0 to q6_K, iq4_nl, iq4_xs and mxfp4 can: take a "
      "file in one of them",
      number);
}

std::uint64_t BlockElements(GgmlType type) { return Of(type).elements; }
std::uint64_t BlockBytes(GgmlType type) { return Of(type).bytes; }

DType StoredType(GgmlType type) {
  return type == GgmlType::kF16 ? DType::kF16 : type == GgmlType::kBF16 ? DType::kBF16 : DType::kF32;
}

void Dequantize(GgmlType type, ByteSpan blocks, std::span<float> into) {
  assert(blocks.size() / BlockBytes(type) * BlockElements(type) == into.size());
  const std::byte* at = blocks.data();
  switch (type) {
    case GgmlType::kF32:
      std::memcpy(into.data(), at, blocks.size());
      return;
    case GgmlType::kF16:
      for (std::size_t i = 0; i < into.size(); ++i) into[i] = HalfToFloat(LoadLittle<std::uint16_t>(at + 2 * i));
      return;
    case GgmlType::kBF16:
      for (std::size_t i = 0; i < into.size(); ++i) into[i] = Bf16ToFloat(LoadLittle<std::uint16_t>(at + 2 * i));
      return;
    case GgmlType::kQ8_0:
      for (std::size_t i = 0; i < into.size(); i += kBlock, at += BlockBytes(type)) {
        const float scale = HalfToFloat(LoadLittle<std::uint16_t>(at));
        for (std::size_t k = 0; k < kBlock; ++k) {
          into[i + k] = scale * static_cast<float>(static_cast<std::int8_t>(at[kScaleBytes + k]));
        }
      }
      return;
    case GgmlType::kQ4_0:
      for (std::size_t i = 0; i < into.size(); i += kBlock, at += BlockBytes(type)) {
        const float scale = HalfToFloat(LoadLittle<std::uint16_t>(at));
        for (std::size_t k = 0; k < kBlock / 2; ++k) {
          const int pair = static_cast<int>(at[kScaleBytes + k]);
          into[i + k] = scale * static_cast<float>((pair & 15) - 8);
          into[i + kBlock / 2 + k] = scale * static_cast<float>((pair >> 4) - 8);
        }
      }
      return;
    default:
      break;
  }
  const std::uint64_t block = BlockElements(type);
  for (std::size_t i = 0; i < into.size(); i += block, at += BlockBytes(type)) {
    DequantizeBlock(type, at, into.subspan(i, block));
  }
}

void Quantize(GgmlType type, std::span<const float> values, MutableByteSpan into) {
  assert(values.size() % BlockElements(type) == 0);
  std::byte* at = into.data();
  switch (type) {
    case GgmlType::kF32:
      std::memcpy(at, values.data(), values.size_bytes());
      return;
    case GgmlType::kF16:
      for (std::size_t i = 0; i < values.size(); ++i) StoreLittle(at + 2 * i, FloatToHalf(values[i]));
      return;
    case GgmlType::kBF16:
      for (std::size_t i = 0; i < values.size(); ++i) StoreLittle(at + 2 * i, FloatToBf16(values[i]));
      return;
    case GgmlType::kQ8_0:
    case GgmlType::kQ4_0:
      for (std::size_t i = 0; i < values.size(); i += kBlock, at += BlockBytes(type)) {
        const auto block = values.subspan(i, kBlock);
        type == GgmlType::kQ8_0 ? QuantizeQ8(block, at) : QuantizeQ4(block, at);
      }
      return;
    default:
      assert(CanWrite(type));
  }
}

}  // namespace millrace::checkpoint
