// A language model as the training loop and the server see it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/engine/layers/kv_cache.h"
#include "millrace/engine/models/model_config.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/dropout.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// What a model learns from in one pass. Tensors of int64. The call borrows it.
struct ModelBatch {
  at::Tensor inputs;  ///< [rows, length]
  /// [rows, length]; -100 where nothing is to be predicted. A causal model predicts labels[:, t] from inputs[:, ..t]
  /// (already shifted), a masked one from the whole row.
  at::Tensor labels;
  /// The bounds of documents that share rows: offsets into the rows put end to end, rising from 0 to rows·length
  /// (flash-attention's cu_seqlens). Document i is tokens documents[i] … documents[i+1] - 1. A token attends within its
  /// document only, and positions count from 0 in each document. Padding is a document of its own. Empty: a row is one
  /// document.
  std::span<const std::int32_t> documents = {};
  at::Tensor segments = {};    ///< [rows, length]: BERT's token types; undefined: all 0
  at::Tensor row_labels = {};  ///< [rows]: the class of each row, or -100; undefined: none
  double row_loss_weight = 1;  ///< the loss of a row's class counts this much beside that of one token
  std::optional<ops::DropoutRows> dropout = {};  ///< nothing: no element is dropped
  ops::LossOptions loss = {};                    ///< what the gradient is of; the loss itself stays the cross-entropy
};

/// A model with its weights. Not thread-safe: one thread uses a model at a time. Calls may throw c10::Error (out of
/// memory, a bug). Callers that must not end wrap the calls in CatchTorch (errors.h).
class Model {
 public:
  explicit Model(std::shared_ptr<const ModelConfig> config) : config_(std::move(config)) {}
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return *config_; }
  ParameterBuffer& buffer() { return *buffer_; }
  /// Returns the parameters in a fixed order. A tied LM head appears once, as the embedding.
  const std::vector<NamedParameter>& Parameters() { return buffer().parameters(); }

  /// Returns the sum (float32 scalar) of the cross-entropies of all labels that are not -100, and of row_loss_weight
  /// times those of the row labels. With gradients enabled, backward() on the result adds to buffer().gradients().
  virtual at::Tensor LossSum(const ModelBatch& batch) = 0;
  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& labels, std::span<const std::int32_t> documents = {}) {
    return LossSum(ModelBatch{.inputs = inputs, .labels = labels, .documents = documents});
  }
  /// Returns logits [rows, n, vocab] in float32 for int64 inputs [rows, n], without a graph. With a cache, the inputs
  /// continue the cached tokens, up to its capacity, and the result has the last position only: [rows, 1, vocab].
  /// REQUIRES: config().generates(), if there is a cache.
  virtual at::Tensor Logits(const at::Tensor& inputs, KvCache* cache = nullptr) = 0;

  /// Returns an empty cache for `rows` sequences of up to `capacity` tokens.
  KvCache MakeCache(std::int64_t rows, std::int64_t capacity) const;

 protected:
  /// Called once, after the parameters were allocated. Makes tables that are no parameters.
  virtual void Prepare(at::Device) {}

 private:
  friend Result<std::unique_ptr<Model>> MakeModel(std::shared_ptr<const ModelConfig> config, at::ScalarType dtype,
                                                  at::Device device, std::uint64_t seed, TensorRanks ranks);
  const std::shared_ptr<const ModelConfig> config_;
  std::unique_ptr<ParameterBuffer> buffer_;
};

}  // namespace millrace::engine
