// The ops as compositions of ATen calls that autograd differentiates. Tests compare the fused ops with them, and they
// run on devices without fused ops. The ops' own headers say what each computes.
#pragma once

#include "millrace/engine/ops/activation.h"
#include "millrace/engine/ops/attention.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/dropout.h"
#include "millrace/engine/ops/embedding.h"
#include "millrace/engine/ops/linear.h"
#include "millrace/engine/ops/norm.h"
#include "millrace/engine/ops/rotary.h"

namespace millrace::engine::ops::reference {

at::Tensor Embedding(const Weight& table, const at::Tensor& ids);
at::Tensor Linear(const LayerInput& x, const LinearWeights& weights);
at::Tensor AddBias(const at::Tensor& x, const Weight& bias);
Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const RmsNormOptions& options);
Normed AddLayerNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const Weight& bias, double eps);
at::Tensor Rotate(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout,
                  const Sequences& sequences);
at::Tensor Attention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                     const AttentionRule& rule = {}, const DropoutSite& dropout = {});
at::Tensor Activate(const at::Tensor& x, Activation activation);
at::Tensor Gated(const at::Tensor& gate_up, Activation activation);
at::Tensor Dropout(const at::Tensor& x, const DropoutSite& site);
at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                              const LossOptions& options = {}, std::int64_t* correct = nullptr,
                              const HeadUpdate& update = {}, double softcap = 0);

at::Tensor TokenCrossEntropies(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, double softcap = 0);

/// Returns the attention [rows, n, heads·head_dim] of queries [rows, heads, n, head_dim] at the last n of `total`
/// positions over keys and values [rows, kv_heads, total, head_dim]. `keep` [rows, heads, n, total], if it is defined,
/// multiplies the probabilities.
at::Tensor AttendCached(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        const AttentionRule& rule = {}, const at::Tensor& keep = {});

}  // namespace millrace::engine::ops::reference
