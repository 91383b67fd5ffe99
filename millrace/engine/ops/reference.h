// The ops as compositions of ATen calls that autograd differentiates. Tests compare the fused ops with them, and they
// run on devices without fused ops. See ops.h for what each computes.
#pragma once

#include "millrace/engine/ops/ops.h"

namespace millrace::engine::ops::reference {

at::Tensor Embedding(const Weight& table, const at::Tensor& ids);
at::Tensor Linear(const at::Tensor& x, const Weight& weight);
Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, double eps);
at::Tensor Rope(const at::Tensor& qkv, const RopeTable& table, const HeadLayout& layout, const Sequences& sequences);
at::Tensor CausalAttention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences);
at::Tensor Swiglu(const at::Tensor& gate_up);
at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const at::Tensor& labels);

/// Returns the attention [rows, n, heads·head_dim] of queries [rows, heads, n, head_dim] at positions past … past+n-1
/// over keys and values [rows, kv_heads, past + n, head_dim].
at::Tensor AttendCached(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values);

}  // namespace millrace::engine::ops::reference
