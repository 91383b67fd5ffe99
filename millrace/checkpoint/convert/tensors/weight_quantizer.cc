#include "millrace/checkpoint/convert/tensors/weight_quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "millrace/checkpoint/format/half.h"
#include "millrace/engine/quantized/code_maps.h"

namespace millrace::checkpoint {
namespace {

using engine::Quantization;
using Kind = QuantizedPart::Kind;

/// Appends the elements as float32.
void Widen(ByteSpan bytes, DType dtype, std::vector<float>& into) {
  const std::size_t count = bytes.size() / DTypeBytes(dtype);
  const std::size_t before = into.size();
  into.resize(before + count);
  if (dtype == DType::kF32) {
    std::memcpy(into.data() + before, bytes.data(), bytes.size());
    return;
  }
  const auto convert = dtype == DType::kF16 ? HalfToFloat : Bf16ToFloat;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    into[before + i] = convert(bits);
  }
}

template <class T>
std::string TextOf(const T& numbers) {
  return std::string(AsText(std::as_bytes(std::span(numbers))));
}

}  // namespace

Status WeightQuantizer::Add(ByteSpan elements, const ByteSink& sink) {
  const std::size_t before = pending_.size();
  Widen(elements, meta_.dtype, pending_);
  const bool finite = std::all_of(pending_.begin() + static_cast<std::ptrdiff_t>(before), pending_.end(),
                                  [](float x) { return std::isfinite(x); });
  if (!finite) {
    return Fail(Code::kInvalidArgument,
                "a weight is NaN or infinite; it has no codes: export without --quantize, or take an earlier step");
  }
  const std::size_t unit = kind_ == Quantization::kNf4 ? engine::kNf4Block : static_cast<std::size_t>(meta_.shape[1]);
  return Encode(pending_.size() / unit * unit, sink);
}

Status WeightQuantizer::Finish(const ByteSink& sink) {
  MR_TRY(Encode(pending_.size(), sink));
  // Many quantizers of a shard wait for their parts to be taken. `= {}` would keep the memory.
  pending_ = std::vector<float>();
  codes_ = std::vector<std::uint8_t>();
  if (kind_ == Quantization::kNf4) nested_ = engine::QuantizeScales(std::exchange(scales_, {}));
  return {};
}

Status WeightQuantizer::Encode(std::size_t elements, const ByteSink& sink) {
  if (elements == 0) return {};
  const std::span<const float> ready = std::span(pending_).first(elements);
  if (kind_ == Quantization::kNf4) {
    codes_.resize((elements + 1) / 2);
    const std::size_t first = scales_.size();
    scales_.resize(first + (elements + engine::kNf4Block - 1) / engine::kNf4Block);
    engine::QuantizeNf4(ready, codes_, std::span(scales_).subspan(first));
  } else {
    codes_.resize(elements);
    const auto columns = static_cast<std::size_t>(meta_.shape[1]);
    std::vector<std::int8_t> integers(columns);
    for (std::size_t begin = 0; begin < elements; begin += columns) {
      const std::span<const float> row = ready.subspan(begin, columns);
      if (kind_ == Quantization::kFp8) {
        scales_.push_back(engine::QuantizeFp8(row, std::span(codes_).subspan(begin, columns)));
        continue;
      }
      scales_.push_back(engine::QuantizeInt8(row, integers));
      std::memcpy(codes_.data() + begin, integers.data(), columns);
    }
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(elements));
  return sink(std::as_bytes(std::span(codes_)));
}

std::string WeightQuantizer::TakeBytes(const QuantizedPart& part) {
  switch (part.kind) {
    case Kind::kScales:
      return TextOf(std::exchange(nested_.codes, {}));
    case Kind::kState:
      return FormatState({.dtype = meta_.dtype, .shape = meta_.shape, .scale_offset = nested_.offset},
                         part.entry.meta.bytes());
    case Kind::kScaleScales:
      return TextOf(nested_.block_scales);
    case Kind::kScaleMap:
      return TextOf(engine::DynamicMap());
    case Kind::kMap:
      return TextOf(engine::kNf4Map);
    case Kind::kRowScales:
      return TextOf(scales_);
    case Kind::kFormat:
      return std::string(1, '\0');  // 0: rows, as they stand in memory
    case Kind::kCodes:
      break;
  }
  return {};
}

}  // namespace millrace::checkpoint
