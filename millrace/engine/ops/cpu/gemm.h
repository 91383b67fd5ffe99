// Products of matrices in memory, by oneDNN. On AVX-512, they run at 90 % of the processor's peak or more.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cpu/simd.h"

namespace millrace::engine::cpu {

/// A row-major matrix, `stride` elements from one row to the next. A product reads it as its transpose if `transposed`.
template <class T>
struct Matrix {
  const T* data;
  std::int64_t stride;
  bool transposed = false;
};

/// The size of a product: [rows, inner] times [inner, columns].
struct ProductSize {
  std::int64_t rows, columns, inner;
  std::int64_t out_stride = 0;  ///< elements from one row of the result to the next; 0: columns
};

/// Returns whether Multiply() takes bfloat16: on processors with AVX-512. Others would multiply it one element at a
/// time. Ops that multiply then compute with float32 copies, and round their results: the copies of a matrix cost less
/// than a hundredth of its product.
bool MultipliesBf16();

/// Returns whether Multiply() of float32 reads its operands where they lie, without packing them: on processors without
/// AVX-512, for small results (`nocopy_checker_avx2` of oneDNN). A transposed left matrix of many rows is then read
/// with large strides, and the product takes up to 1.6 times as long as OpenBLAS's.
bool MultipliesUnpacked(std::int64_t rows, std::int64_t columns);

/// c = alpha · a · b + beta · c, for c [rows, columns]. T is float or Bf16; products are added in
/// float32. Takes all of OpenMP's threads, or one thread if the caller is in a parallel region. The same number of
/// threads gives the same bits.
/// REQUIRES: T is float, or MultipliesBf16().
template <class T>
void Multiply(float alpha, Matrix<T> a, Matrix<T> b, float beta, float* c, const ProductSize& size);
template <>
void Multiply(float alpha, Matrix<float> a, Matrix<float> b, float beta, float* c, const ProductSize& size);
template <>
void Multiply(float alpha, Matrix<Bf16> a, Matrix<Bf16> b, float beta, float* c, const ProductSize& size);

/// c = a · b, plus `bias` [columns] in each row unless it is null; with `adds`, c += a · b. The same promises. Faster
/// than Multiply() where b is a weight's transpose. REQUIRES: no bias if it adds.
void MultiplyByWeight(Matrix<float> a, Matrix<float> b, const float* bias, float* c, const ProductSize& size,
                      bool adds = false);

}  // namespace millrace::engine::cpu
