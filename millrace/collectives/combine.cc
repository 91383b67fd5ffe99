#include "millrace/collectives/combine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/base/process/bfloat16.h"

namespace millrace::collectives {
namespace {

/// Elements whose partial results are kept at a time: at most 8 KiB, so that they stay in the first-level cache while
/// one source after the other is added.
constexpr std::int64_t kBlock = 1024;

MR_INLINE float Widen(Bf16 value) { return ToFloat(value); }
template <class T>
MR_INLINE T Widen(T value) {
  return value;
}

template <class T, class Wide>
MR_INLINE T Narrow(Wide value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return FromFloat<Bf16>(value);
  } else {
    return value;
  }
}

template <Reduction kReduction, class Wide>
MR_INLINE Wide CombineTwo(Wide a, Wide b) {
  if constexpr (kReduction == Reduction::kMax) {
    return b > a || b != b ? b : a;  // NaN if either is NaN
  } else if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Wide>(static_cast<std::make_unsigned_t<Wide>>(a) + static_cast<std::make_unsigned_t<Wide>>(b));
  } else {
    return a + b;
  }
}

template <class T, Reduction kReduction>
MR_INLINE void CombineBody(T* out, std::span<const void* const> sources, std::int64_t count) {
  using Wide = decltype(Widen(T{}));
  Wide partial[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const auto source = [&](std::size_t i) { return static_cast<const T*>(sources[i]) + begin; };
    const T* __restrict first = source(0);
    for (std::int64_t i = 0; i < n; ++i) partial[i] = Widen(first[i]);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const T* __restrict next = source(s);
      for (std::int64_t i = 0; i < n; ++i) partial[i] = CombineTwo<kReduction>(partial[i], Widen(next[i]));
    }
    if constexpr (kReduction == Reduction::kMean) {
      const auto ranks = static_cast<Wide>(sources.size());
      for (std::int64_t i = 0; i < n; ++i) partial[i] /= ranks;
    }
    T* __restrict result = out + begin;
    for (std::int64_t i = 0; i < n; ++i) result[i] = Narrow<T>(partial[i]);
  }
}

// The clones of a template would have one name; so each type has functions of its own.
#define MR_COMBINE(Name, T)                                                                                      \
  MR_SIMD void Sum##Name(void* out, std::span<const void* const> sources, std::int64_t count) {                  \
    CombineBody<T, Reduction::kSum>(static_cast<T*>(out), sources, count);                                       \
  }                                                                                                              \
  MR_SIMD void Max##Name(void* out, std::span<const void* const> sources, std::int64_t count) {                  \
    CombineBody<T, Reduction::kMax>(static_cast<T*>(out), sources, count);                                       \
  }                                                                                                              \
  MR_SIMD void Mean##Name(void* out, std::span<const void* const> sources, std::int64_t count) {                 \
    CombineBody<T, Reduction::kMean>(static_cast<T*>(out), sources, count);                                      \
  }                                                                                                              \
  void Combine##Name(Reduction reduction, void* out, std::span<const void* const> sources, std::int64_t count) { \
    const auto combine = reduction == Reduction::kSum   ? Sum##Name                                              \
                         : reduction == Reduction::kMax ? Max##Name                                              \
                                                        : Mean##Name;                                            \
    combine(out, sources, count);                                                                                \
  }
MR_COMBINE(Float, float)
MR_COMBINE(Bf16, Bf16)
MR_COMBINE(Double, double)
MR_COMBINE(Int64, std::int64_t)
MR_COMBINE(Int32, std::int32_t)
MR_COMBINE(Uint8, std::uint8_t)
#undef MR_COMBINE

}  // namespace

void Combine(ElementType type, Reduction reduction, void* out, std::span<const void* const> sources,
             std::int64_t count) {
  if (reduction == Reduction::kAddSum) {
    std::vector<const void*> addends(sources.begin(), sources.end());
    addends.push_back(out);
    return Combine(type, Reduction::kSum, out, addends, count);
  }
  switch (type) {
    case ElementType::kFloat32:
      return CombineFloat(reduction, out, sources, count);
    case ElementType::kBFloat16:
      return CombineBf16(reduction, out, sources, count);
    case ElementType::kFloat64:
      return CombineDouble(reduction, out, sources, count);
    case ElementType::kInt64:
      return CombineInt64(reduction, out, sources, count);
    case ElementType::kInt32:
      return CombineInt32(reduction, out, sources, count);
    case ElementType::kUint8:
      return CombineUint8(reduction, out, sources, count);
    default:
      std::unreachable();  // MakeCollective() refuses other types
  }
}

}  // namespace millrace::collectives
