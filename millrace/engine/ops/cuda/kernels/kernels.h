// The kernels of ops/cuda, over raw memory of the GPU. A call starts its kernel on `stream` and returns; it throws
// std::runtime_error if the kernel does not start. Sizes may be zero. All numbers are computed in float32, unless a
// kernel says otherwise, and rounded once to the element type. Sums have a fixed order: the same inputs give the same
// bits. Matrices are row-major and dense. Pointers without a type are to elements.
#pragma once

#include <cstdint>

#include "millrace/engine/ops/cpu/kernels.h"

struct CUstream_st;

namespace millrace::engine::cuda {

/// A stream of the CUDA runtime (cudaStream_t). This header needs none of CUDA's.
using Stream = CUstream_st*;

/// The element type of the tensors of a call.
enum class Element { kFloat, kBfloat16, kHalf };

/// The rows of a norm. sum = x + delta, or x if `delta` is null: then `sum` is not written. `mean` is null for the
/// root-mean-square norm, whose inner product is rounded before it is multiplied by `weight`; then so is `bias`.
struct NormForwardArgs {
  const void *x = nullptr, *delta = nullptr, *weight = nullptr, *bias = nullptr;
  void *sum = nullptr, *out = nullptr;
  float *mean = nullptr, *rstd = nullptr;
  std::int64_t rows = 0, columns = 0;
  float eps = 0;
  float offset = 0;  ///< is added to the weight; of a norm without `mean`
};
void NormForward(Element element, const NormForwardArgs& args, Stream stream);

/// dx = dsum (may be null) + the gradient through the norm of x. `partial` gets NormGrid::partial_rows() rows [columns]
/// of sums over some rows: of the gradient of the weight or, with `mean`, rows [2, columns] of weight and bias.
struct NormBackwardArgs {
  const void *dout = nullptr, *dsum = nullptr, *x = nullptr, *weight = nullptr;
  const float *mean = nullptr, *rstd = nullptr;
  void* dx = nullptr;
  float* partial = nullptr;
  std::int64_t rows = 0, columns = 0;
  float offset = 0;  ///< as in NormForwardArgs
};
/// The blocks of threads of NormBackward(): as many as the GPU runs at once.
struct NormGrid {
  unsigned blocks = 0, block_rows = 0;  ///< block_rows: rows that a block has at a time
  std::int64_t partial_rows() const { return static_cast<std::int64_t>(blocks) * block_rows; }
};
NormGrid NormBackwardGrid(Element element, const NormBackwardArgs& args);
void NormBackward(Element element, const NormBackwardArgs& args, const NormGrid& grid, Stream stream);

/// The sums of the columns of x [rows, columns], whose rows are `stride` elements apart: out [columns] = the sums, or
/// out += the sums with `adds`.
struct ColumnSumArgs {
  const void* x = nullptr;
  std::int64_t stride = 0;
  float* out = nullptr;
  float* scratch = nullptr;  ///< [ColumnSumSlices(rows, columns), columns]
  std::int64_t rows = 0, columns = 0;
  bool adds = false;
};
std::int64_t ColumnSumSlices(std::int64_t rows, std::int64_t columns);
void ColumnSum(Element element, const ColumnSumArgs& args, Stream stream);

enum class Function { kGeluErf, kGeluTanh, kSilu, kRelu };
/// out[i] = the function of x[i].
void ActivateForward(Element element, Function function, const void* x, void* out, std::int64_t count, Stream stream);
/// dx[i] = dout[i] · the derivative at x[i].
void ActivateBackward(Element element, Function function, const void* dout, const void* x, void* dx, std::int64_t count,
                      Stream stream);
/// out [rows, columns] = silu(gate) · up for gate_up [rows, 2·columns]; silu(gate) is rounded before.
void SwigluForward(Element element, const void* gate_up, void* out, std::int64_t rows, std::int64_t columns,
                   Stream stream);
void SwigluBackward(Element element, const void* dout, const void* gate_up, void* dgate_up, std::int64_t rows,
                    std::int64_t columns, Stream stream);
/// out[i] = a[i] + b[i].
void Add(Element element, const void* a, const void* b, void* out, std::int64_t count, Stream stream);
/// x[i] *= *factor, which the GPU reads. Costs nothing if it is 1.
void Scale(Element element, void* x, std::int64_t count, const float* factor, Stream stream);

/// As cpu::Rotate. cosine, sine and positions are on the GPU.
struct RotateArgs {
  const void* x = nullptr;
  void* out = nullptr;
  const float *cosine = nullptr, *sine = nullptr;
  const std::int32_t* positions = nullptr;
  std::int64_t rows = 0, heads = 0, head_dim = 0, dim = 0, columns = 0;
  bool neighbours = false;
  float sign = 1;
};
void Rotate(Element element, const RotateArgs& args, Stream stream);

/// As cpu::DropoutRow for rows of tokens: row r is token first_token + r of rows of `row_length` tokens, the first of
/// which is `first_sample`.
struct DropoutArgs {
  const void* x = nullptr;
  void* out = nullptr;
  std::int64_t rows = 0, columns = 0, first_column = 0, first_token = 0, row_length = 1;
  std::uint64_t first_sample = 0;
  cpu::DropoutRow choices{};
};
void Dropout(Element element, const DropoutArgs& args, Stream stream);

/// The arguments that rows of logits share. Labels count from `first_column` of all ranks' `vocab` columns; this rank
/// has `columns` of them. A label of `ignored` has loss 0 and gradients 0. Another one outside the vocabulary makes the
/// loss NaN.
struct CrossEntropyArgs {
  void* logits = nullptr;  ///< [rows, columns]; the gradients take their place
  /// Elements from one row to the next. Those behind a row's columns get a gradient of 0.
  std::int64_t stride = 0;
  const std::int64_t* labels = nullptr;
  std::int64_t rows = 0, columns = 0, first_column = 0, vocab = 0, ignored = 0;
  float label_smoothing = 0, z_loss = 0;
};
/// As cpu::CrossEntropy. `correct` (may be null) gets 1 where the label's logit is the largest, otherwise 0.
void CrossEntropy(Element element, const CrossEntropyArgs& args, bool gradient, double* losses, std::int32_t* correct,
                  Stream stream);
/// As cpu::CrossEntropyScan.
void CrossEntropyScan(Element element, const CrossEntropyArgs& args, cpu::PartialSoftmax* partial, Stream stream);
/// As cpu::CrossEntropyGradient.
void CrossEntropyGradient(Element element, const CrossEntropyArgs& args, const float* lse, Stream stream);

/// into[ids[i]] += the sum of dout[order[i]] over equal ids, which are sorted.
struct AddRowsArgs {
  const void* dout = nullptr;  ///< [count, columns]
  const std::int64_t *ids = nullptr, *order = nullptr;
  float* into = nullptr;
  float* scratch = nullptr;  ///< [AddRowsScratchRows(count), columns]
  std::int64_t count = 0, columns = 0;
};
std::int64_t AddRowsScratchRows(std::int64_t count);
void AddRows(Element element, const AddRowsArgs& args, Stream stream);

/// Keys and values in blocks: both [blocks, kv_heads, block_tokens, dim], dense.
struct CacheBlocks {
  void *keys = nullptr, *values = nullptr;
  std::int64_t kv_heads = 0, block_tokens = 0, dim = 0;
};
/// Sequences whose tokens such a cache has. The arrays are on the GPU: what a kernel does follows from what they hold
/// when it runs.
struct CachedSequences {
  const std::int32_t* bounds = nullptr;  ///< [count + 1]: the first token of each; the number of tokens behind the last
  const std::int32_t* positions = nullptr;  ///< of each token in its sequence
  /// [count, width]: the blocks of each. If the first is negative, the sequence is none: its tokens are not stored, and
  /// their attention is 0.
  const std::int32_t* tables = nullptr;
  std::int64_t count = 0, width = 0;
};

/// Copies the keys and values of tokens to their places in a cache. A row of qkv has queries, keys and values.
struct StoreArgs {
  const void* qkv = nullptr;
  std::int64_t tokens = 0, heads = 0;
  CachedSequences sequences{};
  CacheBlocks cache{};
};
void StoreInCache(Element element, const StoreArgs& args, Stream stream);

/// The division of the keys of sequences among blocks of threads: each takes `keys`, a multiple of 32, of one sequence.
struct KeySplits {
  std::int64_t keys = 0, count = 0;
};
/// Softmax attention of few queries over the many keys of their sequences, for generation.
struct CachedAttentionArgs {
  const void* qkv = nullptr;  ///< rows of tokens, of which the queries are read
  void* out = nullptr;        ///< rows [heads, dim] of tokens
  float* scratch = nullptr;   ///< CachedAttentionScratch() elements
  std::int64_t heads = 0;
  std::int64_t first_token = 0, tokens = 0;  ///< of these sequences, which are consecutive
  std::int64_t most_tokens = 0;              ///< of one sequence
  CachedSequences sequences{};
  CacheBlocks cache{};
  bool causal = true;
  std::int64_t window = 0;
  float scale = 1;    ///< of the scores
  float softcap = 0;  ///< scores become softcap · tanh(score / softcap); 0: they stay
  KeySplits splits{};
};
/// Returns whether the kernels take such heads: `dim` is at most 256, and vectors of 16 bytes fit it.
bool FitsCachedAttention(Element element, std::int64_t dim);
/// Returns splits that occupy the GPU: of sequences that have `all_keys` keys together, and `longest` at most.
KeySplits DivideKeys(const CachedAttentionArgs& args, std::int64_t all_keys, std::int64_t longest);
std::int64_t CachedAttentionScratch(const CachedAttentionArgs& args);
void CachedAttention(Element element, const CachedAttentionArgs& args, Stream stream);

/// Consecutive elements that an optimizer updates under the same rules.
struct OptimizerRun {
  void* weights = nullptr;
  float* master = nullptr;  ///< null: there is none, and new weights are rounded stochastically
  float* gradients = nullptr;
  void *moment1 = nullptr, *moment2 = nullptr;  ///< float32; or bfloat16, which is rounded stochastically
  std::int64_t count = 0;
  std::int64_t first_block = 0;  ///< of all runs' blocks; SetBlocks() fills it in
  float lr = 0, decay = 0;
  bool aligned = false;  ///< vectors of four elements can be used; SetBlocks() fills it in
  cpu::RoundedElements rounded = {};
};
/// Fills in what depends on the other runs and returns the number of blocks of all. Empty runs have none.
std::int64_t SetBlocks(Element element, bool bf16_moments, OptimizerRun* runs, std::int64_t count);
/// The runs of a step, in the memory of the GPU.
struct OptimizerRuns {
  const OptimizerRun* runs = nullptr;
  std::int64_t count = 0, blocks = 0;
  bool bf16_moments = false;
};
/// As cpu::Adamw, for all runs. `step` has the constants that runs share.
void Adamw(Element element, const OptimizerRuns& runs, const cpu::AdamwStep& step, Stream stream);
/// As cpu::Sgd. The momentum is moment1; null: none, and step.momentum is 0.
void Sgd(Element element, const OptimizerRuns& runs, const cpu::SgdStep& step, Stream stream);
/// As cpu::LambDirection. `squares` [blocks] gets the sums of each block.
void LambDirection(Element element, const OptimizerRuns& runs, const cpu::LambStep& step, cpu::LambSquares* squares,
                   Stream stream);
/// As cpu::LambApply, with the rate in `lr` of each run.
void LambApply(Element element, const OptimizerRuns& runs, Stream stream);

/// sums [SumOfSquaresBlocks(count)] = the sums of the squares of x, in double.
std::int64_t SumOfSquaresBlocks(std::int64_t count);
void SumOfSquares(const float* x, std::int64_t count, double* sums, Stream stream);

/// The probabilities of one sequence, [heads, length, length], and the random numbers that decide about them: those of
/// the CPU (DropoutSite).
struct KeptProbabilities {
  std::uint64_t key;
  std::uint32_t threshold, sample;
  float scale;
  std::int64_t first_head, heads, first_position, length;
};

/// Writes 0 or `scale` for each probability.
void FillKeptProbabilities(const KeptProbabilities& of, float* out, Stream stream);

inline constexpr std::int64_t kMaxFewRows = 4;
/// A product of few rows with a weight's transpose: out [rows, outputs] = x [rows, inputs] · weight [outputs, inputs]^T
/// + bias [outputs], which may be null. Sums are float32. Rows of x are `x_stride` elements apart; all else is dense.
/// The weight may be read before kernels that Launch() started have ended (device.cuh): they must not write it.
struct FewRowsArgs {
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;
  void* out = nullptr;
  std::int64_t rows = 0, inputs = 0, outputs = 0, x_stride = 0;
};
/// Returns whether MultiplyFewRows() takes these: at most kMaxFewRows rows, and vectors of 16 bytes fit.
bool FitsFewRows(Element element, const FewRowsArgs& args);
void MultiplyFewRows(Element element, const FewRowsArgs& args, Stream stream);

/// Fill into[0 … count) with elements `first` … of a tensor: see parameters/parameter_buffer.cc.
void FillNormal(std::uint64_t key, double stddev, std::int64_t first, float* into, std::int64_t count, Stream stream);
void FillUniform(std::uint64_t key, double stddev, std::int64_t first, float* into, std::int64_t count, Stream stream);

}  // namespace millrace::engine::cuda
