#include "millrace/engine/ops/cpu/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace millrace::engine::cpu {
namespace {

/// The registers of the loops, with kLanes numbers each. The sums of kSharingRows rows of queries fit into them beside
/// two registers of keys. A row's bits do not depend on the kind, because nothing is summed across lanes.
template <int kRegisterLanes, int kRows, class LanesType, class HalvesType, class WordsType, class BytesType,
          class ShortsType, class IntegersType>
struct RegistersOf {
  using Lanes = LanesType;
  static constexpr std::int64_t kLanes = kRegisterLanes;
  static constexpr int kSharingRows = kRows;
  static_assert(sizeof(Lanes) == kRegisterLanes * sizeof(float));

  // Results are parameters: returned registers would have another ABI in each clone.
  MR_INLINE static void Load(const float* from, Lanes& to) { std::memcpy(&to, from, sizeof to); }
  MR_INLINE static void Load(const Bf16* from, Lanes& to) {
    HalvesType halves;
    std::memcpy(&halves, from, sizeof halves);
    const WordsType words = __builtin_convertvector(halves, WordsType) << 16;
    std::memcpy(&to, &words, sizeof to);
  }
  MR_INLINE static void Load(const std::int8_t* from, Lanes& to) {
    BytesType bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    // g++ 12 does not vectorise the way in one step.
    const ShortsType shorts = __builtin_convertvector(bytes, ShortsType);
    to = __builtin_convertvector(__builtin_convertvector(shorts, IntegersType), Lanes);
  }
  template <class T>
  MR_INLINE static void LoadSome(const T* from, std::int64_t count, Lanes& to) {
    T all[kRegisterLanes] = {};
    std::memcpy(all, from, static_cast<std::size_t>(count) * sizeof(T));
    Load(all, to);
  }
  MR_INLINE static void Store(const Lanes& from, float* to) { std::memcpy(to, &from, sizeof from); }
};
#define MR_VECTOR(type, bytes) type __attribute__((vector_size(bytes)))
/// The 32 registers of AVX-512.
using WideRegisters =
    RegistersOf<16, 8, MR_VECTOR(float, 64), MR_VECTOR(std::uint16_t, 32), MR_VECTOR(std::uint32_t, 64),
                MR_VECTOR(std::int8_t, 16), MR_VECTOR(std::int16_t, 32), MR_VECTOR(std::int32_t, 64)>;
/// The 16 registers of AVX2.
using NarrowRegisters =
    RegistersOf<8, 6, MR_VECTOR(float, 32), MR_VECTOR(std::uint16_t, 16), MR_VECTOR(std::uint32_t, 32),
                MR_VECTOR(std::int8_t, 8), MR_VECTOR(std::int16_t, 16), MR_VECTOR(std::int32_t, 32)>;
#undef MR_VECTOR
static_assert(WideRegisters::kLanes == kKeyLanes);

/// scores[r][column …] = queries[r] · keys, for kRows rows and kParts registers of keys.
template <class R, int kRows, int kParts, class T>
MR_INLINE void ScoreTile(const T* keys, std::int64_t keys_stride, const float* queries, std::int64_t dim, float* scores,
                         std::int64_t scores_stride) {
  typename R::Lanes sums[kRows][kParts] = {};
  for (std::int64_t d = 0; d < dim; ++d) {
    typename R::Lanes key[kParts];
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) R::Load(keys + d * keys_stride + part * R::kLanes, key[part]);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const float query = queries[row * dim + d];
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) sums[row][part] += query * key[part];
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      R::Store(sums[row][part], scores + row * scores_stride + part * R::kLanes);
    }
  }
}

/// out[r] += Σ weights[r][j] · values[j] over `count` keys, for kRows rows and kParts registers of dimensions. `some`:
/// the number of dimensions in the last register.
template <class R, int kRows, int kParts, bool kSome, class T>
MR_INLINE void MixTile(const T* values, std::int64_t dim, const float* weights, std::int64_t weights_stride,
                       std::int64_t count, float* out, std::int64_t some) {
  typename R::Lanes sums[kRows][kParts];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      if constexpr (kSome) {
        R::LoadSome(out + row * dim, some, sums[row][part]);
      } else {
        R::Load(out + row * dim + part * R::kLanes, sums[row][part]);
      }
    }
  }
  for (std::int64_t j = 0; j < count; ++j) {
    typename R::Lanes value[kParts];
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      if constexpr (kSome) {
        R::LoadSome(values + j * dim, some, value[part]);
      } else {
        R::Load(values + j * dim + part * R::kLanes, value[part]);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const float weight = weights[row * weights_stride + j];
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) sums[row][part] += weight * value[part];
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      if constexpr (kSome) {
        std::memcpy(out + row * dim, &sums[row][part], static_cast<std::size_t>(some) * sizeof(float));
      } else {
        R::Store(sums[row][part], out + row * dim + part * R::kLanes);
      }
    }
  }
}

/// Scores of kRows rows against the keys of one block.
template <class R, int kRows, class T>
MR_INLINE void ScoreBlock(const T* keys, std::int64_t block_tokens, const float* queries, std::int64_t dim,
                          float* scores, std::int64_t scores_stride) {
  std::int64_t key = 0;
  for (; key + 2 * R::kLanes <= block_tokens; key += 2 * R::kLanes) {
    ScoreTile<R, kRows, 2>(keys + key, block_tokens, queries, dim, scores + key, scores_stride);
  }
  for (; key < block_tokens; key += R::kLanes) {
    ScoreTile<R, kRows, 1>(keys + key, block_tokens, queries, dim, scores + key, scores_stride);
  }
}

/// Adds the weighted values of one block to kRows rows.
template <class R, int kRows, class T>
MR_INLINE void MixBlock(const T* values, std::int64_t dim, const float* weights, std::int64_t weights_stride,
                        std::int64_t count, float* out) {
  std::int64_t d = 0;
  for (; d + 2 * R::kLanes <= dim; d += 2 * R::kLanes) {
    MixTile<R, kRows, 2, false>(values + d, dim, weights, weights_stride, count, out + d, 0);
  }
  for (; d + R::kLanes <= dim; d += R::kLanes) {
    MixTile<R, kRows, 1, false>(values + d, dim, weights, weights_stride, count, out + d, 0);
  }
  if (d < dim) MixTile<R, kRows, 1, true>(values + d, dim, weights, weights_stride, count, out + d, dim - d);
}

/// Calls `work(rows, first)` for runs of R::kSharingRows, 4, 2 and 1 rows, where `rows` is a constant.
template <class R, class Work>
MR_INLINE void ForRows(std::int64_t rows, Work&& work) {
  constexpr int kMax = R::kSharingRows;
  std::int64_t row = 0;
  for (; row + kMax <= rows; row += kMax) work(std::integral_constant<int, kMax>(), row);
  for (; row + 4 <= rows; row += 4) work(std::integral_constant<int, 4>(), row);
  for (; row + 2 <= rows; row += 2) work(std::integral_constant<int, 2>(), row);
  for (; row < rows; ++row) work(std::integral_constant<int, 1>(), row);
}

/// scores[r][j] *= scales[j], for `count` keys.
MR_INLINE void ScaleScores(float* scores, std::int64_t scores_stride, std::int64_t rows, const float* scales,
                           std::int64_t count) {
  for (std::int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) scores[row * scores_stride + j] *= scales[j];
  }
}

MR_INLINE void CapScores(float* scores, std::int64_t begin, std::int64_t end, float softcap) {
#pragma omp simd
  for (std::int64_t j = begin; j < end; ++j) scores[j] = Capped(scores[j], softcap);
}

/// Replaces scores [begin, end) by exp(score - their maximum), and the others of [0, keys) by 0. Returns the sum of the
/// row. Both count from a multiple of kKeyLanes, and the lane of a key depends on its position alone.
template <class R>
MR_INLINE float Exponentials(float* scores, std::int64_t begin, std::int64_t end, std::int64_t keys) {
  float most = scores[begin];
#pragma omp simd reduction(max : most)
  for (std::int64_t j = begin; j < end; ++j) most = scores[j] > most ? scores[j] : most;
#pragma omp simd
  for (std::int64_t j = 0; j < keys; ++j) {
    const float weight = Exp(scores[j] - most);
    scores[j] = j >= begin && j < end ? weight : 0.0F;
  }
  constexpr std::int64_t kParts = kKeyLanes / R::kLanes;
  typename R::Lanes sums[kParts] = {};
  for (std::int64_t j = 0; j < keys; j += kKeyLanes) {
#pragma GCC unroll 2
    for (std::int64_t part = 0; part < kParts; ++part) {
      typename R::Lanes weights;
      R::Load(scores + j + part * R::kLanes, weights);
      sums[part] += weights;
    }
  }
  float sum = 0;
  for (std::int64_t lane = 0; lane < kKeyLanes; ++lane) sum += sums[lane / R::kLanes][lane % R::kLanes];
  return sum;
}

template <class R, class T>
MR_INLINE void AttendBody(const AttendBlocks<T>& op) {
  const CachedBlocks<T>& cache = op.cache;
  const std::int64_t dim = cache.head_dim, tokens = cache.block_tokens;
  std::int64_t begin = op.visible[0].begin, end = op.visible[0].end;
  for (std::int64_t row = 1; row < op.rows; ++row) {
    begin = std::min(begin, op.visible[row].begin);
    end = std::max(end, op.visible[row].end);
  }
  const std::int64_t first_block = begin / tokens, blocks = (end + tokens - 1) / tokens;
  const std::int64_t base = first_block * tokens, keys = (blocks - first_block) * tokens;
  for (std::int64_t block = first_block; block < blocks; ++block) {
    const T* const at = cache.keys + cache.offset(op.table[block], op.kv_head);
    ForRows<R>(op.rows, [&](auto count, std::int64_t row) __attribute__((always_inline)) {
      ScoreBlock<R, count()>(at, tokens, op.queries + row * dim, dim,
                             op.scores + row * op.scores_stride + block * tokens - base, op.scores_stride);
    });
    if constexpr (std::is_same_v<T, std::int8_t>) {
      ScaleScores(op.scores + block * tokens - base, op.scores_stride, op.rows,
                  cache.key_scales + cache.scales_offset(op.table[block], op.kv_head), tokens);
    }
  }
  std::fill_n(op.out, op.rows * dim, 0.0F);
  float sums[kMaxAttendingRows];
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const KeySpan& seen = op.visible[row];
    if (op.softcap > 0) CapScores(op.scores + row * op.scores_stride, seen.begin - base, seen.end - base, op.softcap);
    sums[row] = Exponentials<R>(op.scores + row * op.scores_stride, seen.begin - base, seen.end - base, keys);
  }
  for (std::int64_t block = first_block; block < blocks; ++block) {
    const T* const at = cache.values + cache.offset(op.table[block], op.kv_head);
    const std::int64_t count = std::min(tokens, end - block * tokens);
    if constexpr (std::is_same_v<T, std::int8_t>) {
      ScaleScores(op.scores + block * tokens - base, op.scores_stride, op.rows,
                  cache.value_scales + cache.scales_offset(op.table[block], op.kv_head), count);
    }
    ForRows<R>(op.rows, [&](auto rows, std::int64_t row) __attribute__((always_inline)) {
      MixBlock<R, rows()>(at, dim, op.scores + row * op.scores_stride + block * tokens - base, op.scores_stride, count,
                          op.out + row * dim);
    });
  }
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const float scale = 1 / sums[row];
#pragma omp simd
    for (std::int64_t d = 0; d < dim; ++d) op.out[row * dim + d] *= scale;
  }
}

template <class T>
void StoreBody(const CachedBlocks<T>& cache, std::int64_t block, std::int64_t kv_head, std::int64_t first,
               const T* keys, const T* values, std::int64_t stride, std::int64_t count) {
  T* const to_keys = cache.keys + cache.offset(block, kv_head) + first;
  T* const to_values = cache.values + cache.offset(block, kv_head) + first * cache.head_dim;
  for (std::int64_t d = 0; d < cache.head_dim; ++d) {
    for (std::int64_t j = 0; j < count; ++j) to_keys[d * cache.block_tokens + j] = keys[j * stride + d];
  }
  for (std::int64_t j = 0; j < count; ++j) {
    std::copy_n(values + j * stride, cache.head_dim, to_values + j * cache.head_dim);
  }
}

/// Writes the nearest codes of a row, `step` bytes apart. Returns the scale.
template <class T>
MR_INLINE float QuantizeRow(const T* row, std::int64_t dim, std::int8_t* codes, std::int64_t step) {
  constexpr float kMax = 127, kShift = 12582912.0F;  // 1.5 · 2^23: adding it rounds to an integer, ties to even
  float most = 0;
#pragma omp simd reduction(max : most)
  for (std::int64_t d = 0; d < dim; ++d) {
    const float x = ToFloat(row[d]), size = x < 0 ? -x : x;
    most = size > most ? size : most;
  }
  const float factor = most > 0 ? kMax / most : 0;
  for (std::int64_t d = 0; d < dim; ++d) {
    codes[d * step] = static_cast<std::int8_t>((ToFloat(row[d]) * factor + kShift) - kShift);
  }
  return most / kMax;
}

template <class T>
MR_INLINE void StoreCodes(const CachedBlocks<std::int8_t>& cache, std::int64_t block, std::int64_t kv_head,
                          std::int64_t first, const T* keys, const T* values, std::int64_t stride, std::int64_t count) {
  std::int8_t* const to_keys = cache.keys + cache.offset(block, kv_head) + first;
  std::int8_t* const to_values = cache.values + cache.offset(block, kv_head) + first * cache.head_dim;
  float* const key_scales = cache.key_scales + cache.scales_offset(block, kv_head) + first;
  float* const value_scales = cache.value_scales + cache.scales_offset(block, kv_head) + first;
  for (std::int64_t j = 0; j < count; ++j) {
    key_scales[j] = QuantizeRow(keys + j * stride, cache.head_dim, to_keys + j, cache.block_tokens);
    value_scales[j] = QuantizeRow(values + j * stride, cache.head_dim, to_values + j * cache.head_dim, 1);
  }
}

}  // namespace

MR_SIMD_V4 static void AttendF32(const AttendBlocks<float>& op) { AttendBody<WideRegisters>(op); }
MR_SIMD_V4 static void AttendBf16(const AttendBlocks<Bf16>& op) { AttendBody<WideRegisters>(op); }
MR_SIMD_V4 static void AttendInt8(const AttendBlocks<std::int8_t>& op) { AttendBody<WideRegisters>(op); }
MR_SIMD_TO_V3 static void AttendNarrowF32(const AttendBlocks<float>& op) { AttendBody<NarrowRegisters>(op); }
MR_SIMD_TO_V3 static void AttendNarrowBf16(const AttendBlocks<Bf16>& op) { AttendBody<NarrowRegisters>(op); }
MR_SIMD_TO_V3 static void AttendNarrowInt8(const AttendBlocks<std::int8_t>& op) { AttendBody<NarrowRegisters>(op); }

template <>
void AttendBlocks<float>::Run() const {
  HasWideRegisters() ? AttendF32(*this) : AttendNarrowF32(*this);
}
template <>
void AttendBlocks<Bf16>::Run() const {
  HasWideRegisters() ? AttendBf16(*this) : AttendNarrowBf16(*this);
}

template <>
void AttendBlocks<std::int8_t>::Run() const {
  HasWideRegisters() ? AttendInt8(*this) : AttendNarrowInt8(*this);
}

template <>
void StoreInBlock(const CachedBlocks<float>& cache, std::int64_t block, std::int64_t kv_head, std::int64_t first,
                  const float* keys, const float* values, std::int64_t stride, std::int64_t count) {
  StoreBody(cache, block, kv_head, first, keys, values, stride, count);
}
template <>
void StoreInBlock(const CachedBlocks<Bf16>& cache, std::int64_t block, std::int64_t kv_head, std::int64_t first,
                  const Bf16* keys, const Bf16* values, std::int64_t stride, std::int64_t count) {
  StoreBody(cache, block, kv_head, first, keys, values, stride, count);
}
template <>
void StoreInBlock(const CachedBlocks<std::int8_t>& cache, std::int64_t block, std::int64_t kv_head, std::int64_t first,
                  const float* keys, const float* values, std::int64_t stride, std::int64_t count) {
  StoreCodes(cache, block, kv_head, first, keys, values, stride, count);
}
template <>
void StoreInBlock(const CachedBlocks<std::int8_t>& cache, std::int64_t block, std::int64_t kv_head, std::int64_t first,
                  const Bf16* keys, const Bf16* values, std::int64_t stride, std::int64_t count) {
  StoreCodes(cache, block, kv_head, first, keys, values, stride, count);
}

}  // namespace millrace::engine::cpu
