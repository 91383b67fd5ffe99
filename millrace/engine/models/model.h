// A language model as the training loop and the server see it.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/layers/forward_context.h"
#include "millrace/engine/layers/kv_cache.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/layout/parallel_options.h"
#include "millrace/engine/models/stages.h"
#include "millrace/engine/ops/cross_entropy.h"
#include "millrace/engine/ops/dropout.h"
#include "millrace/engine/parallel/tensor_ranks.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

struct Preferences;

/// Counts the labels that a model predicts: those whose logit is the largest.
struct Predictions {
  std::int64_t tokens = 0, rows = 0;
};

/// The input of one pass from which a model learns. Tensors of int64. The call borrows it.
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
  at::Tensor row_labels = {};  ///< [rows]: the class of each row, or -100; undefined: none. With preferences: [pairs]
  double row_loss_weight = 1;  ///< the loss of a row's class counts this much beside that of one token
  std::optional<ops::DropoutRows> dropout = {};  ///< nothing: no element is dropped
  Predictions* predictions = nullptr;            ///< what the model predicts is added to it; null: is not counted
  ops::LossOptions loss = {};                    ///< what the gradient is of; the loss itself stays the cross-entropy
  double neftune_alpha = 0;                      ///< of the noise of embeddings, whose rows are those of `dropout`
  /// The rows have pairs of answers, and the loss is that of their preference (preference.h). Null: of single tokens.
  Preferences* preferences = nullptr;
  /// With preferences, for each document: 2·p for the chosen answer of pair p, 2·p + 1 for its rejected one, -1 for a
  /// document that is neither.
  std::span<const std::int32_t> answers = {};
  bool as_reference = false;  ///< with preferences: the pass is the reference's, by the model without its adapters
};

/// The parameters of a new model that get initial values. The others are zero until they are read. Making random
/// numbers takes longer than reading weights.
enum class InitialValues { kAll, kAdapters, kNone };

/// The part of a model that a rank has.
struct ModelShare {
  TensorRanks ranks = {};                ///< that divide each layer
  std::vector<ModelStage> stages = {};   ///< this rank's, in order; empty: the whole model
  Sharding sharding = {};                ///< what it keeps of their parameters
  std::vector<std::string> freeze = {};  ///< globs over names: these parameters are not trained
  std::optional<LoraOptions> lora = {};  ///< adapters are trained, and not the model
  /// Weights that linear layers compute with in place of parameters. They are not trained. May be null.
  std::shared_ptr<const QuantizedWeights> quantized = {};
  InitialValues initial_values = InitialValues::kAll;
};

/// Tokens that continue a sequence, whose earlier tokens a cache has. Borrowed by the call.
struct SequencePart {
  std::span<const std::int32_t> tokens;  ///< at least one
  std::int64_t past = 0;                 ///< tokens of the sequence that the cache has
  /// The blocks of the sequence, in order, with room for these tokens. No other part writes to the blocks that these
  /// tokens come to.
  std::span<const std::int32_t> blocks;
  std::int64_t logits = 1;                  ///< the number of last tokens that get the logits of what follows them
  const AdapterWeights* adapter = nullptr;  ///< of linear_layers(); null: the model's own weights
};

/// The hidden states [N, hidden] between two parts of a model: residual + delta. The next norm adds them up. With
/// sequence parallelism they are this rank's rows.
struct Stream {
  at::Tensor residual;
  at::Tensor delta;  ///< undefined: nothing to add
  at::Tensor Sum() const { return delta.defined() ? residual + delta : residual; }
  /// Returns the same values outside of the graph.
  Stream Detached() const { return {residual.detach(), delta.defined() ? delta.detach() : at::Tensor()}; }
};

/// The inputs that recomputed blocks keep (model.cc).
class SavedInputs;

/// A model with its weights, or some stages of one. A family derives it and says how each part is made and what it
/// computes: the embedding, a block, the head. Not thread-safe: one thread uses a model at a time. Calls may throw
/// c10::Error (out of memory, a bug). Callers that must not end wrap the calls in CatchTorch (errors.h).
class Model {
 public:
  explicit Model(std::shared_ptr<const ModelConfig> config) : config_(std::move(config)) {}
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return *config_; }
  ParameterBuffer& buffer() { return *buffer_; }
  const ParameterBuffer& buffer() const { return *buffer_; }
  /// Returns the parameters in a fixed order. A tied LM head appears once, as the embedding.
  const std::vector<NamedParameter>& Parameters() { return buffer().parameters(); }
  /// Returns whether the head declares this parameter. A tied LM head is the embedding's.
  bool IsOfHead(const NamedParameter& parameter) const;
  /// Returns the stages that this rank has, in order. One that is the whole model, unless MakeModel got a share.
  const std::vector<ModelStage>& stages() const { return stages_; }
  const TensorRanks& ranks() const { return ranks_; }
  /// Returns the linear layers in the order of a forward pass.
  const std::vector<LinearLayer>& linear_layers() const { return linear_layers_; }

  /// The model calls it, on its own thread, after each block of a forward or a backward pass. So a pass that takes
  /// minutes shows progress. May be empty.
  std::function<void()> on_block = {};

  /// Sets which blocks keep less for the backward pass. With `offload`, what kFull keeps on a GPU waits on the host.
  /// The results have the same bits.
  void SetRecompute(Recompute what, int every = 1, bool offload = false);

  /// The layer that predicts tokens is read for each one. From now on it is read as 8-bit integers, with a scale a row;
  /// only the results of Step(), Logits() and Predict() change. Does nothing on a GPU in float32, and for families that
  /// do not generate.
  virtual void QuantizeHead() {}

  /// Computes stage `stage` of stages(). `hidden` [N, hidden] is the result of the stage before (N: this rank's rows);
  /// undefined for the first one. Returns the hidden states for the next stage or, from the last stage, what LossSum()
  /// returns. To learn, `hidden` requires grad.
  at::Tensor Forward(std::size_t stage, const ModelBatch& batch, const at::Tensor& hidden = {});
  /// Goes back through a stage from what Forward() returned: adds to buffer().gradients() and to the gradient of
  /// `hidden`. `gradient`: of the output; undefined for the loss.
  void Backward(std::size_t stage, const at::Tensor& output, const at::Tensor& gradient = {});

  /// Returns the sum (float32 scalar) of the cross-entropies of all labels that are not -100, and of row_loss_weight
  /// times those of the row labels. With gradients enabled, backward() on the result adds to buffer().gradients().
  /// REQUIRES: this rank has the whole model.
  at::Tensor LossSum(const ModelBatch& batch) { return Forward(0, batch); }
  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& labels, std::span<const std::int32_t> documents = {}) {
    return LossSum(ModelBatch{.inputs = inputs, .labels = labels, .documents = documents});
  }
  /// Stores tokens of some sequences in the cache. Returns logits float32 [n, vocab] of the tokens that get some, in
  /// their order; undefined, if none does. Parts of one adapter are computed together if they are neighbours. On a CPU,
  /// the logits of a float32 or bfloat16 model have the same bits whatever other parts there are, and however a
  /// sequence was cut; unless rotary angles depend on the length. If the call throws, the tokens count as not stored.
  /// REQUIRES: this rank has the whole model, undivided; config().generates(); the cache is one of MakeCache().
  at::Tensor Step(std::span<const SequencePart> parts, KvCache& cache);
  /// Returns logits [rows, n, vocab] in float32 for int64 inputs [rows, n], without a graph. With `cached`, the inputs
  /// continue its rows, and the result has the last position only: [rows, 1, vocab].
  /// REQUIRES: as Step() does; a model without `cached` need not generate.
  at::Tensor Logits(const at::Tensor& inputs, CachedRows* cached = nullptr);

  /// Returns the hidden states of all tokens of some texts, float32 [tokens, hidden], one text after the other, without
  /// a graph: transformers' last_hidden_state. A text attends to nothing but itself.
  /// REQUIRES: this rank has the whole model, undivided; there are texts, and each has a token.
  at::Tensor HiddenStates(std::span<const std::span<const std::int32_t>> texts);

  /// Computes stage `stage` of stages() without a graph. Returns the hidden states [N, hidden] for the next stage or,
  /// from the last one, logits [rows, n, vocab] in float32. `hidden`: what the stage before returned. So a model that
  /// memory does not hold computes a stage at a time. REQUIRES: the layers are not divided among ranks.
  at::Tensor Predict(std::size_t stage, const at::Tensor& inputs, const at::Tensor& hidden = {});

  /// Returns a cache of `blocks` blocks of `block_tokens` tokens each. Throws c10::Error if memory does not suffice.
  /// REQUIRES: a cache of 8-bit integers is on a CPU, of a float32 or bfloat16 model.
  KvCache MakeCache(std::int64_t blocks, std::int64_t block_tokens, KvNumbers numbers = KvNumbers::kComputed) const;
  /// Returns an empty cache for `rows` sequences of up to `capacity` tokens.
  CachedRows MakeCachedRows(std::int64_t rows, std::int64_t capacity) const;
  /// Returns the bytes of a cache that a token takes.
  std::int64_t CacheBytesPerToken(KvNumbers numbers = KvNumbers::kComputed) const;

 protected:
  // Make the layers of a part. They are called in the order of a forward pass, for the parts that this rank has.
  virtual void MakeEmbedding(LayerFactory& make) = 0;
  virtual void MakeBlock(std::int64_t layer, LayerFactory& make) = 0;
  virtual void MakeHead(LayerFactory& make) = 0;
  /// Called once, after the parameters were allocated. Makes tables that are no parameters.
  virtual void Prepare(at::Device) {}

  /// Returns whether what the parts compute of single tokens depends on their positions only in what a device reads.
  virtual bool RepeatsSteps() const { return true; }

  // Compute a part.
  virtual Stream Embed(const at::Tensor& inputs, const at::Tensor& segments, const ForwardContext& context) const = 0;
  virtual Stream Block(std::int64_t layer, const Stream& x, const ForwardContext& context) const = 0;
  /// Returns what the last block gives the head, float or not: behind the last norm, if there is one.
  virtual at::Tensor Final(const Stream& x) const { return x.Sum(); }
  /// As LossSum().
  virtual at::Tensor Loss(const Stream& x, const ModelBatch& batch, const ForwardContext& context) const = 0;
  /// Returns the logits [n, classes] of the rows of `x` that `rows` names (int64; undefined: all of them).
  virtual at::Tensor Scores(const Stream& x, const ForwardContext& context, const at::Tensor& rows) const = 0;

 private:
  friend Result<std::unique_ptr<Model>> MakeModel(std::shared_ptr<const ModelConfig> config, at::ScalarType dtype,
                                                  at::Device device, std::uint64_t seed, ModelShare share);
  friend std::vector<std::string> TransposedWeights(const ModelConfig& config);
  /// Returns the logits [n, vocab] of one token of each of n sequences; on a GPU, by work that is recorded
  /// (RecordedSteps). ids: [n], on the device or the host.
  at::Tensor NextLogits(const at::Tensor& ids, const ForwardContext& context);
  /// Makes the layers of the stages, each part with a group of its own.
  void MakeLayers(std::vector<ModelStage> stages, LayerFactory& make);
  ForwardContext ContextOf(const ModelBatch& batch) const;
  KvCacheShape CacheShape(std::int64_t blocks, std::int64_t block_tokens) const;
  Stream RunBlocks(const at::Tensor& ids, const std::shared_ptr<const ForwardContext>& context) const;
  /// `inputs`: of the blocks of this pass.
  Stream RunBlock(std::int64_t layer, const Stream& x, const std::shared_ptr<const ForwardContext>& context,
                  SavedInputs& inputs) const;
  Stream RunAgainBackward(std::int64_t layer, const Stream& x, const std::shared_ptr<const ForwardContext>& context,
                          SavedInputs& inputs) const;
  bool Recomputes(std::int64_t layer) const;

  const std::shared_ptr<const ModelConfig> config_;
  std::unique_ptr<ParameterBuffer> buffer_;
  std::vector<ModelStage> stages_;
  TensorRanks ranks_;
  std::vector<LinearLayer> linear_layers_;
  Recompute recompute_ = Recompute::kNone;
  int recompute_every_ = 1;
  std::optional<c10::Stream> offloads_;  ///< copies the inputs of recomputed blocks to the host and back
  std::size_t embedding_group_ = 0, head_group_ = 0;
  std::vector<std::size_t> block_groups_;  ///< by layer; of those that this rank has
};

}  // namespace millrace::engine
