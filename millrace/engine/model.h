// A language model as the training loop and the server see it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/engine/kv_cache.h"
#include "millrace/engine/model_config.h"
#include "millrace/engine/parameters.h"

namespace millrace::engine {

/// A decoder with its weights. Not thread-safe: one thread uses a model at a time. Calls may throw c10::Error (out of
/// memory, a bug). Callers that must not end wrap the calls in CatchTorch (errors.h).
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual ParameterBuffer& buffer() = 0;
  /// Returns the parameters in a fixed order. A tied LM head appears once, as the embedding.
  const std::vector<NamedParameter>& Parameters() { return buffer().parameters(); }

  /// Returns the sum (float32 scalar) of the cross-entropies of all labels that are not -100. `inputs` and `labels` are
  /// int64 [rows, length]. labels[:, t] is the token that inputs[:, ..t] should predict (already shifted). With
  /// gradients enabled, backward() on the result adds to buffer().gradients().
  ///
  /// `documents` has the bounds of documents that share rows: offsets into the rows put end to end, rising from 0 to
  /// rows·length (flash-attention's cu_seqlens). Document i is tokens documents[i] … documents[i+1] - 1. A token
  /// attends within its document only, and positions count from 0 in each document. Empty: a row is one document. The
  /// call does not keep the span.
  virtual at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& labels,
                             std::span<const std::int32_t> documents = {}) = 0;
  /// Returns logits [rows, n, vocab] in float32 for int64 inputs [rows, n], without a graph. With a cache, the inputs
  /// continue the cached tokens, up to its capacity, and the result has the last position only: [rows, 1, vocab].
  virtual at::Tensor Logits(const at::Tensor& inputs, KvCache* cache = nullptr) = 0;
};

}  // namespace millrace::engine
