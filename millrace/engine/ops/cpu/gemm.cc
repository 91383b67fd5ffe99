#include "millrace/engine/ops/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.hpp>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>

// oneDNN exports it, and declares it only where its own tests are. A library without it has a null pointer here.
extern "C" [[gnu::weak]] dnnl_status_t dnnl_gemm_bf16bf16f32(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n,
                                                             dnnl_dim_t k, float alpha, const std::uint16_t* a,
                                                             dnnl_dim_t lda, const std::uint16_t* b, dnnl_dim_t ldb,
                                                             float beta, float* c, dnnl_dim_t ldc);

namespace millrace::engine::cpu {
namespace {

template <class T>
char Reading(const Matrix<T>& x) {
  return x.transposed ? 'T' : 'N';
}

std::int64_t OutStride(const ProductSize& size) { return size.out_stride != 0 ? size.out_stride : size.columns; }

void Check(dnnl_status_t status, const ProductSize& size) {
  if (status == dnnl_success) return;
  throw std::runtime_error("oneDNN failed to multiply [" + std::to_string(size.rows) + ", " +
                           std::to_string(size.inner) + "] by [" + std::to_string(size.inner) + ", " +
                           std::to_string(size.columns) + "]: status " + std::to_string(status));
}

bool HasAvx512() {
  // Intel's sets are ordered by inclusion; each set has the bits of those that it includes.
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

}  // namespace

bool MultipliesBf16() {
  static const bool multiplies = dnnl_gemm_bf16bf16f32 != nullptr && HasAvx512();
  return multiplies;
}

bool MultipliesUnpacked(std::int64_t rows, std::int64_t columns) {
  static const bool packs_all = HasAvx512();
  return !packs_all && 1.0 / static_cast<double>(rows) + 1.0 / static_cast<double>(columns) >= 0.0038;
}

template <>
void Multiply(float alpha, Matrix<float> a, Matrix<float> b, float beta, float* c, const ProductSize& size) {
  Check(dnnl_sgemm(Reading(a), Reading(b), size.rows, size.columns, size.inner, alpha, a.data, a.stride, b.data,
                   b.stride, beta, c, OutStride(size)),
        size);
}

template <>
void Multiply(float alpha, Matrix<Bf16> a, Matrix<Bf16> b, float beta, float* c, const ProductSize& size) {
  static_assert(std::is_same_v<std::underlying_type_t<Bf16>, std::uint16_t>);
  Check(dnnl_gemm_bf16bf16f32(Reading(a), Reading(b), size.rows, size.columns, size.inner, alpha,
                              reinterpret_cast<const std::uint16_t*>(a.data), a.stride,
                              reinterpret_cast<const std::uint16_t*>(b.data), b.stride, beta, c, OutStride(size)),
        size);
}

void MultiplyByWeight(Matrix<float> a, Matrix<float> b, const float* bias, float* c, const ProductSize& size,
                      bool adds) {
  using dnnl::memory;
  static const dnnl::engine processor(dnnl::engine::kind::cpu, 0);
  thread_local dnnl::stream stream(processor);
  const auto describe = [](const Matrix<float>& x, std::int64_t rows, std::int64_t columns) {
    const memory::dims strides = x.transposed ? memory::dims{1, x.stride} : memory::dims{x.stride, 1};
    return memory::desc({rows, columns}, memory::data_type::f32, strides);
  };
  const auto in = [](const memory::desc& layout, const float* data) {
    return memory(layout, processor, const_cast<float*>(data));  // NOLINT(cppcoreguidelines-pro-type-const-cast): read
  };
  const memory::desc left = describe(a, size.rows, size.inner), right = describe(b, size.inner, size.columns);
  const memory::desc out = describe({c, OutStride(size)}, size.rows, size.columns);
  const memory::desc row({1, size.columns}, memory::data_type::f32, memory::dims{size.columns, 1});
  // oneDNN keeps compiled products, and finds this one again by its description.
  dnnl::primitive_attr attributes;
  if (adds) {
    dnnl::post_ops sum;
    sum.append_sum(1);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  const auto description = bias != nullptr ? dnnl::matmul::primitive_desc(processor, left, right, row, out, attributes)
                                           : dnnl::matmul::primitive_desc(processor, left, right, out, attributes);
#else
  const auto product =
      bias != nullptr ? dnnl::matmul::desc(left, right, row, out) : dnnl::matmul::desc(left, right, out);
  const dnnl::matmul::primitive_desc description(product, attributes, processor);
#endif
  const dnnl::matmul primitive(description);
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, in(left, a.data)}, {DNNL_ARG_WEIGHTS, in(right, b.data)}, {DNNL_ARG_DST, in(out, c)}};
  if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, in(row, bias));
  primitive.execute(stream, arguments);
  stream.wait();
}

}  // namespace millrace::engine::cpu
