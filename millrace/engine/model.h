// A language model as the training loop and the server see it.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/parameters.h"

namespace millrace::engine {

/// Sizes and constants of a decoder; the JSON form has Hugging Face's config.json keys.
struct ModelConfig {
  std::string family = "llama";
  std::int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008;
  std::int64_t num_layers = 32, num_heads = 32, num_kv_heads = 32, head_dim = 0;  ///< head_dim 0: hidden/heads
  std::int64_t max_positions = 2048;
  double rms_norm_eps = 1e-5, rope_theta = 10000;
  bool tie_word_embeddings = false;

  std::int64_t HeadDim() const { return head_dim ? head_dim : hidden_size / num_heads; }

  Json ToJson() const;
  /// Reads a config.json; `what` names it in errors. Fails with kUnsupported on architectures and options
  /// (rope_scaling, biases, other activations) that would change the numbers and are not implemented, and on impossible
  /// sizes.
  static Result<ModelConfig> FromJson(const Json& json, std::string_view what);
  /// Sizes are positive, bounded and divide as they must.
  Status Validate(std::string_view what) const;
  std::int64_t ParameterCount() const;
  /// Floating-point operations per trained token: 6·(matmul parameters, LM head included) + 12·layers·hidden·length,
  /// where `length` is that of the sequence, or document, which the average token is in.
  double FlopsPerToken(double length) const;
};

/// Keys and values of the tokens seen so far, for generation. All rows have the same length; grows up to `capacity`
/// positions, which are allocated at construction.
class KvCache {
 public:
  KvCache(const ModelConfig& config, std::int64_t rows, std::int64_t capacity, at::ScalarType dtype, at::Device device);
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  void Truncate(std::int64_t length) { length_ = std::min(length_, length); }
  /// Appends keys and values [rows, kv_heads, n, head_dim] of one layer at the current end and returns views of all so
  /// far, the new ones included. The end moves in Advance, once all layers have appended.
  std::pair<at::Tensor, at::Tensor> Append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  void Advance(std::int64_t tokens) { length_ += tokens; }

 private:
  std::int64_t length_ = 0, capacity_ = 0;
  std::vector<at::Tensor> keys_, values_;  ///< per layer [rows, kv_heads, capacity, head_dim]
};

/// Not thread-safe: one thread uses a model at a time. Calls may throw c10::Error (out of memory, a bug); callers that
/// must not end wrap them in CatchTorch (errors.h).
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual ParameterBuffer& buffer() = 0;
  /// In a fixed order. A tied LM head appears once, as the embedding.
  const std::vector<NamedParameter>& Parameters() { return buffer().parameters(); }

  /// Sum of the cross-entropies (float32 scalar) of labels that are not -100; int64 [rows, length] both. labels[:, t]
  /// is what inputs[:, ..t] should predict (already shifted). With gradients enabled, backward() on the result adds to
  /// buffer().gradients().
  ///
  /// `documents` keeps what shares rows apart: document i is tokens documents[i] … documents[i+1] - 1 of the rows put
  /// end to end, rising from 0 to rows·length (flash-attention's cu_seqlens). A token then attends within its document
  /// alone, whose positions count from 0, as if each stood by itself. Empty: a row is one document. Read only here.
  virtual at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& labels,
                             std::span<const std::int32_t> documents = {}) = 0;
  /// Logits [rows, n, vocab] in float32 for int64 inputs [rows, n], without a graph. With a cache the inputs continue
  /// what it holds, at most its capacity, and only the last position's logits are computed: [rows, 1, vocab].
  virtual at::Tensor Logits(const at::Tensor& inputs, KvCache* cache = nullptr) = 0;
};

/// Random weights: N(0, 0.02) for matrices, ones for norms, from `seed`; the same on every machine. Gradients are not
/// enabled. `dtype` is kFloat or kBFloat16.
Result<std::unique_ptr<Model>> MakeModel(const ModelConfig& config, at::ScalarType dtype, at::Device device,
                                         std::uint64_t seed);

}  // namespace millrace::engine
