// How kernels read codes: 16 bytes at a time, by a reader of their kind. `output` is a row of the box, `at` an element
// of that row, a multiple of kTogether.
//
//   kTogether                 elements of a vector
//   kScalesVectors            whether Numbers() lack the factor VectorScale()
//   Fits(codes, box)          returns whether vectors can be read
//   Shared, Fill(shared)      tables in shared memory; all threads of a block fill them
//   Load(output, at)          loads a vector, which is not read again
//   Numbers(vector, i, shared, numbers)    makes elements 8i … 8i + 7 of the vector
//   VectorScale(vector, shared)            returns the factor of a vector's elements
//   RowScale(output)          returns the factor of the sum of a row's products
#pragma once

#include <bit>

#include "millrace/engine/ops/cuda/quantized/coded_kernels.h"
#include "millrace/engine/ops/cuda/kernels/device.cuh"

namespace millrace::engine::cuda {

/// Elements that Numbers() makes at a time.
inline constexpr int kNumbers = 8;

struct CodeWords {
  unsigned words[4];
};
__device__ __forceinline__ CodeWords LoadWords(const void* from) {
  const uint4 words = __ldcs(static_cast<const uint4*>(from));
  return {{words.x, words.y, words.z, words.w}};
}

inline bool BeginsAtVector(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % sizeof(uint4) == 0; }

/// Make the numbers of eight codes, without ByteScale().
__device__ __forceinline__ void ByteNumbers(const Int8Codes&, unsigned low, unsigned high, float (&numbers)[kNumbers]) {
  // 2^23 + u has u as its last bits, for a u below 256. So no conversion is needed.
  constexpr unsigned kBits = 0x4b000000, kSigns = 0x80808080;
  constexpr float kZero = 0x1p23F + 128;
#pragma unroll
  for (unsigned k = 0; k < kNumbers; ++k) {
    const unsigned four = (k < 4 ? low : high) ^ kSigns;  // u = code + 128
    numbers[k] = __uint_as_float(__byte_perm(four, kBits, 0x7440 + k % 4)) - kZero;
  }
}

__device__ __forceinline__ void ByteNumbers(const Fp8Codes&, unsigned low, unsigned high, float (&numbers)[kNumbers]) {
  // The bits of float16, whose exponents are larger by 8: 2^-8 times the number.
#pragma unroll
  for (unsigned k = 0; k < kNumbers; k += 2) {
    const unsigned pair = __byte_perm(k < 4 ? low : high, 0, k % 4 == 0 ? 0x1404 : 0x3424);  // each before a zero
    const unsigned halves = (pair & 0x80008000) | (pair >> 1 & 0x3f803f80);
    numbers[k] = __half2float(__ushort_as_half(static_cast<unsigned short>(halves)));
    numbers[k + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(halves >> 16)));
  }
}
/// Return what those of a row are multiplied by.
__device__ __forceinline__ float ByteScale(const Int8Codes& of, std::int64_t row) { return of.scales[row]; }
__device__ __forceinline__ float ByteScale(const Fp8Codes& of, std::int64_t row) { return of.scales[row] * 0x1p8F; }

/// Returns the scale of a block of NF4, a product and a sum, each rounded as on the CPU.
__device__ __forceinline__ float Nf4Scale(const Nf4Codes& of, float of_code, float of_scales) {
  return __fadd_rn(__fmul_rn(of_code, of_scales), of.scale_offset);
}
/// Looks eight codes up. `map`: in shared memory, whose banks then have one number each.
__device__ __forceinline__ void Nf4Numbers(unsigned eight, const float* map, float (&numbers)[kNumbers]) {
  // Bytes that are distances in the map: then a number takes one instruction before it is loaded.
  constexpr unsigned kDistances = 0x3c3c3c3c;
  const unsigned firsts = eight >> 2 & kDistances, seconds = eight << 2 & kDistances;
  const auto number = [&](unsigned four, unsigned byte) {
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(map) + __byte_perm(four, 0, 0x4440 + byte));
  };
#pragma unroll
  for (unsigned byte = 0; byte < 4; ++byte) {
    numbers[2 * byte] = number(firsts, byte);
    numbers[2 * byte + 1] = number(seconds, byte);
  }
}

/// Bytes with a scale a row. Kind is Int8Codes or Fp8Codes.
template <class Kind>
class ByteReader {
 public:
  static constexpr int kTogether = 16;
  static constexpr bool kScalesVectors = false;
  using Vector = CodeWords;
  struct Shared {};

  static bool Fits(const Kind& of, const CodedBox& box) {
    return (box.columns | box.row_stride) % kTogether == 0 && BeginsAtVector(of.codes + box.first);
  }
  ByteReader(const Kind& of, const CodedBox& box)
      : of_{of.codes + box.first, of.scales + box.first / box.row_stride}, stride_(static_cast<int>(box.row_stride)) {}

  __device__ void Fill(Shared&) const {}
  __device__ __forceinline__ Vector Load(int output, int at) const {
    return LoadWords(of_.codes + std::int64_t{output} * stride_ + at);
  }
  __device__ __forceinline__ void Numbers(const Vector& vector, int i, const Shared&,
                                          float (&numbers)[kNumbers]) const {
    ByteNumbers(of_, vector.words[2 * i], vector.words[2 * i + 1], numbers);
  }
  __device__ float VectorScale(const Vector&, const Shared&) const { return 1; }
  __device__ float RowScale(int output) const { return ByteScale(of_, output); }

 private:
  Kind of_;  ///< from the box's first row and element on
  int stride_;
};

class Nf4Reader {
 public:
  static constexpr int kTogether = 32;
  static constexpr bool kScalesVectors = true;
  struct Vector {
    CodeWords codes;
    float scale;     ///< of the block, or of its scales
    int scale_code;  ///< with nested scales
  };
  struct Shared {
    float map[16], scale_map[256];
  };

  static bool Fits(const Nf4Codes& of, const CodedBox& box) {
    const auto is_power = [](int size) { return std::has_single_bit(static_cast<unsigned>(size)); };
    return of.block >= kTogether && is_power(of.block) && (of.scales == nullptr || is_power(of.scale_block)) &&
           box.columns % kTogether == 0 && (box.first | box.row_stride) % of.block == 0 &&
           BeginsAtVector(of.codes + box.first / 2);
  }
  Nf4Reader(const Nf4Codes& of, const CodedBox& box)
      : of_(of),
        first_block_(box.first / of.block),
        stride_(static_cast<int>(box.row_stride / 2)),
        row_blocks_(static_cast<int>(box.row_stride / of.block)),
        block_bits_(std::countr_zero(static_cast<unsigned>(of.block))),
        scale_block_bits_(of.scales == nullptr ? 0 : std::countr_zero(static_cast<unsigned>(of.scale_block))) {
    of_.codes += box.first / 2;
  }

  __device__ void Fill(Shared& shared) const {
    const auto copy = [](const float* from, float* to, int count) {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) to[i] = from[i];
    };
    copy(of_.map, shared.map, 16);
    if (of_.scales != nullptr) copy(of_.scale_map, shared.scale_map, 256);
  }
  __device__ __forceinline__ Vector Load(int output, int at) const {
    const std::int64_t block = first_block_ + std::int64_t{output} * row_blocks_ + (at >> block_bits_);
    const CodeWords codes = LoadWords(of_.codes + std::int64_t{output} * stride_ + at / 2);
    if (of_.scales == nullptr) return {codes, __ldg(of_.plain_scales + block), 0};
    return {codes, __ldg(of_.scale_scales + (block >> scale_block_bits_)), __ldg(of_.scales + block)};
  }
  __device__ __forceinline__ void Numbers(const Vector& vector, int i, const Shared& shared,
                                          float (&numbers)[kNumbers]) const {
    Nf4Numbers(vector.codes.words[i], shared.map, numbers);
  }
  __device__ __forceinline__ float VectorScale(const Vector& vector, const Shared& shared) const {
    return of_.scales == nullptr ? vector.scale : Nf4Scale(of_, shared.scale_map[vector.scale_code], vector.scale);
  }
  __device__ float RowScale(int) const { return 1; }

 private:
  Nf4Codes of_;  ///< its codes begin with the box
  std::int64_t first_block_;
  int stride_, row_blocks_, block_bits_, scale_block_bits_;
};

/// The reader of a kind of codes.
template <class Kind>
struct ReaderOf;
template <>
struct ReaderOf<Int8Codes> {
  using Type = ByteReader<Int8Codes>;
};
template <>
struct ReaderOf<Fp8Codes> {
  using Type = ByteReader<Fp8Codes>;
};
template <>
struct ReaderOf<Nf4Codes> {
  using Type = Nf4Reader;
};

/// Returns an output of a row: the sum of its products with the row's scale and the bias, which may be null.
template <class T, class Reader>
__device__ __forceinline__ T FinishSum(float sum, const Reader& codes, const void* bias, int output) {
  sum *= codes.RowScale(output);
  if (bias != nullptr) sum += ToFloat(static_cast<const T*>(bias)[output]);
  return FromFloat<T>(sum);
}

/// Returns whether a product can read its operands as vectors.
template <class T, class Kind>
bool FitsReader(const Kind& codes, const CodedProductArgs& args) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  return args.box.row_stride <= kMax && args.box.rows <= kMax && ReaderOf<Kind>::Type::Fits(codes, args.box) &&
         FitsPacks<T>(args.x_stride, {args.x});
}

}  // namespace millrace::engine::cuda
