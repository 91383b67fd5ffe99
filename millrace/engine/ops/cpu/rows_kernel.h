// Defines kernels that run over rows.
#pragma once

#include "millrace/engine/ops/cpu/kernels.h"

// Compiles Op<T>::Run once per instruction set and element type. Members cannot be cloned, free functions can.
#define MR_ROWS_KERNEL(Op)                                                                 \
  MR_SIMD static void Run##Op##F32(const Op<float>& op, Rows rows) { Op##Body(op, rows); } \
  MR_SIMD static void Run##Op##Bf16(const Op<Bf16>& op, Rows rows) { Op##Body(op, rows); } \
  template <>                                                                              \
  void Op<float>::Run(Rows rows) const {                                                   \
    Run##Op##F32(*this, rows);                                                             \
  }                                                                                        \
  template <>                                                                              \
  void Op<Bf16>::Run(Rows rows) const {                                                    \
    Run##Op##Bf16(*this, rows);                                                            \
  }
// The same for Op<T>::Run(rows, gradient), whose rows add to a gradient.
#define MR_ROWS_GRADIENT_KERNEL(Op)                                                                                   \
  MR_SIMD static void Run##Op##F32(const Op<float>& op, Rows rows, float* gradient) { Op##Body(op, rows, gradient); } \
  MR_SIMD static void Run##Op##Bf16(const Op<Bf16>& op, Rows rows, float* gradient) { Op##Body(op, rows, gradient); } \
  template <>                                                                                                         \
  void Op<float>::Run(Rows rows, float* gradient) const {                                                             \
    Run##Op##F32(*this, rows, gradient);                                                                              \
  }                                                                                                                   \
  template <>                                                                                                         \
  void Op<Bf16>::Run(Rows rows, float* gradient) const {                                                              \
    Run##Op##Bf16(*this, rows, gradient);                                                                             \
  }
