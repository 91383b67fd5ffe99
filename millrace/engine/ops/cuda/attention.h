// Attention on an NVIDIA GPU without a graph, for texts that are generated.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/ops/attention.h"

namespace millrace::engine::ops::cuda {

/// As Attention() without dropout, by kernels that need no preparation for a length that they have not seen before.
at::Tensor AttendPrompts(const at::Tensor& qkv, const HeadLayout& layout, const Sequences& sequences,
                         const AttentionRule& rule);
/// Returns the attention [n, heads·dim] of the last n tokens of a sequence, whose queries [n, heads, dim] these are,
/// over all of its keys and values [tokens, kv_heads, dim].
at::Tensor AttendBehind(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        const AttentionRule& rule);

}  // namespace millrace::engine::ops::cuda
