// CUDA's products of tensor cores, as far as kernels here use them: see ../README.md. A lane has all of an operand, but
// only some of a result, as on a GPU.
#pragma once

#include <algorithm>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime_api.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

inline float Widened(__nv_bfloat16 x) { return __bfloat162float(x); }
inline float Widened(__half x) { return __half2float(x); }

/// An operand. `x`: matrix_a by rows, matrix_b by columns.
template <class Use, int kRows, int kColumns, int kInner, class T, class Layout = void>
struct fragment {
  static_assert(kRows == 16 && kColumns == 16 && kInner == 16);
  float x[kRows * kInner];
};
/// A result. A lane has 8 columns of a row.
template <int kRows, int kColumns, int kInner>
struct fragment<accumulator, kRows, kColumns, kInner, float> {
  static constexpr int kOfLane = kRows * kColumns / 32;
  float x[kOfLane];
  static int row() { return lane() * kOfLane / kColumns; }
  static int column() { return lane() * kOfLane % kColumns; }

 private:
  static int lane() { return static_cast<int>(threadIdx.x % 32); }
};

using Sums = fragment<accumulator, 16, 16, 16, float>;

inline void fill_fragment(Sums& sums, float value) { std::fill_n(sums.x, Sums::kOfLane, value); }
/// Lines are `stride` elements apart: rows of matrix_a, columns of matrix_b. Both begin at 32 bytes.
template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& of, const T* from, unsigned stride) {
  static_assert(std::is_same_v<Use, matrix_a> == std::is_same_v<Layout, row_major>);
  if (reinterpret_cast<std::uintptr_t>(from) % 32 != 0 || stride % 8 != 0) __builtin_trap();
  for (unsigned line = 0; line < 16; ++line) {
    for (unsigned k = 0; k < 16; ++k) of.x[line * 16 + k] = Widened(from[line * stride + k]);
  }
}
template <class T>
void mma_sync(Sums& out, const fragment<matrix_a, 16, 16, 16, T, row_major>& a,
              const fragment<matrix_b, 16, 16, 16, T, col_major>& b, const Sums& sums) {
  for (int i = 0; i < Sums::kOfLane; ++i) {
    const float *row = a.x + Sums::row() * 16, *column = b.x + (Sums::column() + i) * 16;
    float sum = sums.x[i];
    for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
    out.x[i] = sum;
  }
}
inline void store_matrix_sync(float* to, const Sums& sums, unsigned stride, layout_t layout) {
  if (reinterpret_cast<std::uintptr_t>(to) % 32 != 0 || stride % 4 != 0 || layout != mem_col_major) __builtin_trap();
  for (int i = 0; i < Sums::kOfLane; ++i) {
    to[static_cast<unsigned>(Sums::column() + i) * stride + static_cast<unsigned>(Sums::row())] = sums.x[i];
  }
}

}  // namespace nvcuda::wmma
