// Declares a model's parameters and makes its layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/layers/all_heads_norm.h"
#include "millrace/engine/layers/embedding.h"
#include "millrace/engine/layers/linear.h"
#include "millrace/engine/layers/norm.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine {

/// A linear layer. Several outputs lie side by side and are computed by one GEMM.
struct LinearSpec {
  /// The parameters are name.weight and name.bias. Consecutive outputs of the same name are rows of one parameter, such
  /// as queries, keys and values of GPT-2.
  struct Output {
    std::string name;
    std::int64_t features = 0;
    /// Heads that are not cut. If they are fewer than the tensor ranks, consecutive ranks hold the same head. 0: the
    /// features divide among the ranks.
    std::int64_t heads = 0;
  };
  std::int64_t in_features = 0;
  std::vector<Output> outputs;
  bool bias = false;
  bool transposed = false;  ///< Hugging Face's files hold weights as [in, out] (GPT-2's Conv1D)
  double stddev = 0;        ///< of the initial weights; 0: the factory's
  LinearDivision division = LinearDivision::kNone;
  bool predicts = false;  ///< its outputs are logits or scores
};

/// A linear layer, as adapters outside of the parameters see it (layers/adapted_linear.h). The handle is valid as long
/// as the model.
struct LinearLayer {
  struct Module {
    std::string name;  ///< "model.layers.0.self_attn.q_proj"
    std::int64_t first_output = 0, outputs = 0;
  };
  std::vector<Module> modules;  ///< in the order of their outputs
  std::int64_t in_features = 0;
  bool predicts = false;
  WeightHandle weight;                              ///< undefined if the layer computes with codes
  std::shared_ptr<const QuantizedRows> codes = {};  ///< null if it has a weight
};

/// The embeddings of tokens [rows, columns].
struct TokenTable {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  bool tied = false;  ///< the LM head has the same weights
};

/// Declares parameters in the order of the calls, which is the order of use in a forward pass. Then gradients complete
/// from the end of the buffer in a backward pass. Divides layers among tensor-parallel ranks, and is the one place that
/// knows how. Borrows the buffer.
class LayerFactory {
 public:
  /// `stddev`: of initial weights (transformers' initializer_range).
  /// `both_ends`: this rank has the first and the last stage of the model.
  /// `lora`: the layers that its targets name get adapters.
  /// `quantized`: if it has the weight of a linear layer, the layer computes with that, and declares no weight.
  /// Borrowed; may be null.
  LayerFactory(ParameterBuffer& buffer, double stddev, TensorRanks ranks = {}, bool both_ends = true,
               std::optional<LoraOptions> lora = std::nullopt, const QuantizedWeights* quantized = nullptr)
      : buffer_(buffer),
        stddev_(stddev),
        ranks_(ranks),
        both_ends_(both_ends),
        lora_(std::move(lora)),
        quantized_(quantized) {}

  const TensorRanks& ranks() const { return ranks_; }
  /// Begins a part of the model: the layers that are made from now on. Returns the number of their ParameterGroup.
  std::size_t BeginPart();
  /// The layers that are made from now on, up to the end of the part, see all tokens on every rank, even with sequence
  /// parallelism (ops::JoinRows).
  void SeeWholeTokens() { whole_tokens_ = true; }
  /// Returns how many heads this rank has: at least one, which it then shares with its neighbours.
  /// REQUIRES: CheckDivision() (make_model.h) succeeds.
  std::int64_t Share(std::int64_t heads) const { return std::max<std::int64_t>(1, heads / ranks_.size()); }

  /// Layers that predict get adapters only if LoRA's targets name them, and only if they predict tokens.
  /// Throws ErrorException: kUnsupported if LoRA's targets name a layer that makes scores, or with magnitudes one that
  /// predicts tokens, or if the weights of a layer that predicts are quantized; kCorrupt if quantized weights have
  /// other sizes.
  Linear MakeLinear(const LinearSpec& spec);
  /// A table of tokens, divided by rows.
  Embedding MakeTokenEmbedding(const TokenTable& table);
  /// A small table, of positions or segments, that every rank has.
  Embedding MakeEmbedding(std::string name, std::int64_t rows, std::int64_t columns);
  /// A LM head that predicts tokens with the weights of their embedding. If the embedding is on another rank's stage,
  /// this rank has a copy. `bias` may be empty. `module`: its name for LoRA's targets; empty: it gets no adapter.
  Linear MakeTiedHead(const TokenTable& table, const std::string& bias, const std::string& module);
  /// Names are name.weight and, for a layer norm, name.bias.
  /// `offset`: of a root-mean-square norm (ops::RmsNormOptions).
  Norm MakeRmsNorm(const std::string& name, std::int64_t columns, double eps, double offset = 0);
  Norm MakeLayerNorm(const std::string& name, std::int64_t columns, double eps);
  /// The RMS norm of heads, which every rank applies to its own ones.
  Norm MakeHeadNorm(const std::string& name, std::int64_t head_dim, double eps, double offset = 0);
  /// The RMS norm of all queries, or all keys, of a token (OLMo 2), which ranks divide. `heads`: that are not cut, as
  /// in LinearSpec::Output.
  AllHeadsNorm MakeAllHeadsNorm(const std::string& name, std::int64_t columns, std::int64_t heads, double eps);

  /// Returns the linear layers that were made, by their numbers.
  std::vector<LinearLayer> TakeLinearLayers() { return std::move(linear_layers_); }

 private:
  /// The part that this rank holds of the outputs of one name, or of one of them.
  struct OutputSlice {
    std::string name;
    std::int64_t rows;  ///< of all outputs of that name
    TensorSlice slice;
    int repeats = 1;
  };
  std::int64_t RowsOf(const OutputSlice& slice) const { return slice.slice.whole() ? slice.rows : slice.slice.extent; }
  /// Returns the layer's number.
  std::size_t Note(const LinearSpec& spec, WeightHandle weight, std::shared_ptr<const QuantizedRows> codes);
  bool HasAdapter(const std::string& module, const LinearSpec& spec) const;
  LowRankAdapters MakeAdapters(const LinearSpec& spec, LinearDivision division, const std::vector<OutputSlice>& slices);
  /// Declares the matrices A of the modules that share a layer's input. `inputs`: this rank's part of it.
  WeightHandle DeclareDown(const std::vector<std::string>& modules, std::int64_t in_features, const TensorSlice& inputs,
                           bool partial_gradient);
  /// Declares the magnitudes of a module. `first_up`, `count`: its matrices B.
  WeightHandle DeclareMagnitudes(const std::string& module, std::size_t first_up, std::size_t count);
  std::shared_ptr<const QuantizedRows> FindQuantized(const LinearSpec& spec, LinearDivision division,
                                                     const std::vector<OutputSlice>& slices) const;
  std::vector<OutputSlice> SlicesOf(const std::vector<LinearSpec::Output>& outputs, bool divided) const;
  std::size_t DeclareTokens(const TokenTable& table);
  bool sees_some_tokens() const { return ranks_.divides_tokens() && !whole_tokens_; }
  WeightHandle Declare(ParameterSpec spec) { return buffer_.Use(buffer_.Declare(std::move(spec))); }
  /// Returns this rank's part of a range along a dimension, of which `repeats` consecutive ranks hold the same.
  TensorSlice SliceOf(std::size_t dim, std::int64_t begin, std::int64_t extent, int repeats = 1) const;

  ParameterBuffer& buffer_;
  const double stddev_;
  const TensorRanks ranks_;
  const bool both_ends_;
  const std::optional<LoraOptions> lora_;
  const QuantizedWeights* const quantized_;
  bool whole_tokens_ = false;
  std::vector<LinearLayer> linear_layers_;
};

}  // namespace millrace::engine
