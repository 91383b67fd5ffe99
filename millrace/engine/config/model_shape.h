// The shape of a model, as a plan needs it: its layers in the order of a forward pass, without weights. Parameters,
// activations, exchanges and floating-point operations all follow from this one list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/layout/part_work.h"

namespace millrace::plan {

enum class LayerKind {
  kTokenTable,    ///< embeddings of tokens [outputs, in], divided by rows
  kTable,         ///< embeddings of positions or segments [outputs, in], which every rank has
  kNorm,          ///< of the residual stream [in], which it also adds up
  kHeadNorm,      ///< of single heads [in]
  kAllHeadsNorm,  ///< of all heads together [in]; ranks divide its weight
  kColumns,       ///< linear [in → outputs]; a rank has some of the outputs
  kRows,          ///< linear [in → outputs]; a rank has some of the inputs
  kWhole,         ///< linear [in → outputs] that is not divided
  kAttention,     ///< of queries, keys and values
  kActivation,    ///< of `in` elements
  kGated,         ///< SwiGLU of 2 · `in` elements
  kJoinRows,      ///< where ranks divide the tokens, each gets all of them [in]
  kTokenHead,     ///< linear [in → outputs] and cross-entropy of tokens, divided by outputs
};

/// Consecutive outputs of a linear layer that are one module, with a LoRA adapter of its own.
struct AdaptedModule {
  std::size_t first_output = 0, outputs = 1;  ///< indices into Layer::outputs; how many
  bool operator==(const AdaptedModule&) const = default;
};

/// The LoRA adapters of a linear layer. All of them see the same input.
struct LayerAdapters {
  std::int64_t rank = 0;
  bool drops = false;           ///< dropout: each module has its own copy of the input, with other elements dropped
  bool has_magnitudes = false;  ///< DoRA: a number for each output, too
  std::vector<AdaptedModule> modules = {};  ///< in the order of their outputs; empty: no adapters
  bool operator==(const LayerAdapters&) const = default;
};

struct Layer {
  LayerKind kind;
  std::int64_t in = 0;                ///< elements a token
  std::vector<std::int64_t> outputs;  ///< elements a token; several lie side by side and are one product
  /// The number of heads of each output. A head is never cut. If the heads are fewer than the tensor ranks, several
  /// ranks have the same head. Empty: all outputs divide among the ranks.
  std::vector<std::int64_t> heads;
  bool bias = false;            ///< of norms: a layer norm
  bool cheap_input = false;     ///< its input is the output of a norm or an activation
  bool shares_input = false;    ///< an earlier layer of the part keeps the same input
  bool tied = false;            ///< of the head: the weights are the token table's
  bool predicted_only = false;  ///< it sees all predicted tokens, and no others, on every rank
  bool predicts = false;        ///< its outputs are logits or scores
  /// What Hugging Face's parameters are called, without ".weight" and ".bias"; {} stands for the number of the block.
  /// If several outputs are one product, this is the first one's name: they are frozen together or not at all.
  std::string name = {};
  std::vector<std::string> output_names = {};  ///< of each output; empty: all of them are outputs of `name`
  LayerAdapters adapters = {};
  std::int64_t window = 0;  ///< of attention: the most keys that a query sees, its own among them; 0: all before it
  bool trains_weight = true, trains_bias = true;  ///< false: frozen
  std::int64_t out() const;                       ///< all outputs together
  bool operator==(const Layer&) const = default;
};

struct ModelShape {
  std::string family;  ///< config.json's model_type
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, max_positions = 0;
  std::vector<Layer> embedding, block, head;  ///< all blocks are the same, but for what is marked
  /// The blocks that differ in what LimitAttention(), Freeze() and Adapt() have marked, and of each block the index
  /// into them. Both are empty if nothing was marked.
  std::vector<std::vector<Layer>> marked_blocks = {};
  std::vector<std::size_t> kind_of_block = {};
  bool causal = true;
  double predicted = 1;       ///< share of the tokens that are predicted
  std::int64_t stream = 2;    ///< tensors [N, hidden] between blocks: the residual stream, and what is to be added
  bool adds_once = false;     ///< a block adds to the residual stream once, so its input is its first sum, too
  std::int64_t dropouts = 0;  ///< of a block, with a probability above 0
  /// Bits an element of the linear layers of blocks, which are quantized and frozen; 0: they are parameters.
  double block_bits = 0;
  bool adds_row_loss = false;  ///< its loss adds means over tokens and over rows, so a step first counts both labels

  std::int64_t queries() const { return num_heads * head_dim; }
  std::int64_t keys() const { return num_kv_heads * head_dim; }
  std::size_t KindOf(std::int64_t block) const {
    return kind_of_block.empty() ? 0 : kind_of_block[static_cast<std::size_t>(block)];
  }
  /// Gives the attention of each block its window: Layer::window. A block that the list does not have keeps none.
  void LimitAttention(const std::vector<std::int64_t>& windows);
  /// Marks the parameters whose names match a glob as not trained: train.freeze.
  void Freeze(const std::vector<std::string>& globs);
  /// Adds adapters to the linear layers that LoRA's targets name. Marks all other parameters as not trained, except
  /// those that LoRA trains whole and those of the layer that makes the scores of a classifier. `bits`: block_bits.
  void Adapt(const engine::LoraOptions& lora, double bits = 0);
  bool is_adapted() const;              ///< some layer has an adapter
  bool tied() const;                    ///< the head has the token table's weights
  std::int64_t ParameterCount() const;  ///< of the whole model, with its adapters
  /// Returns what Hugging Face calls all parameters, and PEFT those of adapters. A tied head has no weight.
  std::vector<std::string> ParameterNames() const;
  std::int64_t TrainedCount() const;  ///< of these, the parameters that are not frozen
  /// Returns the matrix elements that each token is multiplied with in a part.
  std::int64_t Multiplied(const std::vector<Layer>& part) const;
  /// Returns the length of a sequence without windows in which attention has as much work as in one of `length` tokens:
  /// the mean over the blocks of AttendedLength(length, window).
  double AttendedLength(double length) const;
  /// Returns what decides the work of a block and of the head, on sequences of `length` tokens. Blocks count as alike.
  engine::PartSizes Parts(std::int64_t length) const;
  /// Returns the floating-point operations per trained token: 4 · (multiplied elements) + 2 · (those that are trained)
  /// + 12 · layers · heads · head_dim · AttendedLength(length). So frozen matrices count without the gradients of their
  /// weights. `length`: of the sequence or document that the token is in (Chowdhery et al. 2022, appendix B).
  double FlopsPerToken(double length) const;
  /// Returns the floating-point operations of a product with a weight in a block's forward pass, on average.
  double FlopsPerProduct(double tokens) const;
};

/// Returns the length of a sequence in which queries see as many keys on average as with a window in one of `length`
/// tokens. Query t of a causal sequence sees min(t, window) keys: window - window² / (2 · length) on average, and
/// without a window length / 2. Twice the former is what is returned. 0: there is no window.
double AttendedLength(double length, std::int64_t window);

}  // namespace millrace::plan
