// The loss of predicted tokens or classes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "millrace/engine/options/loss_options.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

inline constexpr std::int64_t kIgnoreLabel = -100;  // as in PyTorch's cross_entropy and in transformers

/// The part of the logits that an adapter of the head adds: inner · up^T. `inner` [N, rank], scale · drop(x) · down^T,
/// is the output of other ops, to which its gradient goes. A default one adds nothing.
struct HeadUpdate {
  at::Tensor inner;
  Weight up;  ///< [vocab, rank]; of ranks that divide the head, their rows
};

/// Returns the sum of the cross-entropies of x [N, hidden] by head [vocab, hidden] and, if it is defined, bias [vocab],
/// over labels (int64 [N]) that are not kIgnoreLabel: a float32 scalar. `softcap`: of the logits, as in SoftCapped();
/// 0: none. Its gradient is that of the objective in `options`. So the value can be compared between runs whatever
/// their options. Logits exist for a chunk of rows at a time. The forward pass computes the gradients. If `correct` is
/// not null, the number of labels whose logit is the largest of their row is added to it. Throws c10::Error if a label
/// is outside the vocabulary.
at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                              const LossOptions& options = {}, std::int64_t* correct = nullptr,
                              const HeadUpdate& update = {}, double softcap = 0);

/// The same where a rank of the tensor group has its ShareOf(vocab) of the rows of head and bias. All ranks pass the
/// same x and labels, and get the same loss. The gradient of x is this rank's share of the sum; CopyToRanks or
/// GatherRows before it adds the shares. No rank sees the logits of another: three numbers a row are exchanged. Throws
/// ErrorException if the exchange fails.
at::Tensor DividedCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, const LossOptions& options = {},
                               std::int64_t* correct = nullptr, const HeadUpdate& update = {}, double softcap = 0);

/// Returns the cross-entropy of each token: float64 [N], 0 where there is no label. `vocab` and `ranks` are as in
/// DividedCrossEntropy; one rank has the whole head. REQUIRES: head and bias are frozen, because their gradients would
/// need the logits again.
at::Tensor TokenCrossEntropies(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, double softcap = 0);

/// Returns softcap · tanh(x / softcap) (Gemma 2), in the type of x; x itself if softcap is 0.
at::Tensor SoftCapped(const at::Tensor& x, double softcap);

}  // namespace millrace::engine::ops
