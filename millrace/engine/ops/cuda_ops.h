// The fused ops for tensors on an NVIDIA GPU, in float32, bfloat16 or float16. Each is what the op of its name in ops/
// promises, and runs on the current stream without waiting for it. Other ops are composed of these, or computed by
// their reference.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/ops/activation.h"
#include "millrace/engine/ops/attention.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/dropout.h"
#include "millrace/engine/ops/norm.h"
#include "millrace/engine/ops/rotary.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {
class BlockTables;
struct CachedLayer;
}  // namespace millrace::engine::ops

namespace millrace::engine::ops::cuda {

/// As ops::AddOrReturn for the sum of the rows of x, in a fixed order.
at::Tensor AddOrReturnRowSum(const Weight& weight, const at::Tensor& x);
/// `ids` may be on the CPU.
at::Tensor Embedding(const Weight& table, const at::Tensor& ids);
Normed AddRmsNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const RmsNormOptions& options);
Normed AddLayerNorm(const at::Tensor& x, const at::Tensor& delta, const Weight& weight, const Weight& bias, double eps);
at::Tensor Activate(const at::Tensor& x, Activation activation);
at::Tensor Gated(const at::Tensor& gate_up, Activation activation);
/// The kernel starts while the one before it ends, which saves time in generation. With a graph, ATen adds.
at::Tensor Add(const at::Tensor& a, const at::Tensor& b);
at::Tensor Rotate(const at::Tensor& qkv, const RotaryTable& table, const HeadLayout& layout,
                  const Sequences& sequences);
at::Tensor Attention(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                     const AttentionRule& rule, const DropoutSite& dropout);
/// It reads positions and blocks on the GPU. So for sequences of one token each, the work that the GPU is given depends
/// on their number, but not on their positions or blocks, if RepeatsAttendBlocks().
at::Tensor AttendBlocks(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                        const CachedLayer& cache, const BlockTables& tables, const AttentionRule& rule);
bool RepeatsAttendBlocks(const HeadLayout& layout, at::ScalarType type);
at::Tensor Dropout(const at::Tensor& x, const DropoutSite& site);
/// Returns what dropout multiplies the attention probabilities of one sequence with: 0 or 1/(1-p), float32 [1, heads,
/// length, length]. The sequence begins at token `begin` of the micro-batch.
at::Tensor KeptProbabilities(const DropoutSite& site, const HeadLayout& layout, std::int64_t begin, std::int64_t length,
                             at::Device device);
/// The loss is on the GPU: whoever needs its value waits for it. `labels` may be on the CPU. Rows without a label then
/// take no part in the products.
at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                              const LossOptions& options, std::int64_t* correct, const HeadUpdate& update,
                              double softcap);
at::Tensor DividedCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, const LossOptions& options,
                               std::int64_t* correct, const HeadUpdate& update, double softcap);
at::Tensor TokenCrossEntropies(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, double softcap);

}  // namespace millrace::engine::ops::cuda
