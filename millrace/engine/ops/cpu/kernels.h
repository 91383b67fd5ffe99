// The memory-bound loops of the engine on a CPU, over raw rows. Each works on rows [begin, end), so that a caller may
// split rows among threads. Results do not depend on the split. Matrices are row-major, and dense unless a stride is
// given. T is float or Bf16; arithmetic is in float. Pointers never overlap.
#pragma once

#include <algorithm>
#include <cstdint>

#include "millrace/engine/ops/cpu/simd.h"
#include "millrace/engine/ops/cpu/stochastic_rounding.h"

namespace millrace::engine::cpu {

struct Rows {
  std::int64_t begin = 0, end = 0;
};

/// sum = x + delta (delta and sum may be null: sum is x); rstd = 1/sqrt(mean(sum²) + eps);
/// out = (offset + weight) · (sum · rstd); without an offset, the inner product is rounded to T first (LlamaRMSNorm).
template <class T>
struct RmsNormForward {
  const T *x, *delta, *weight;
  T *sum, *out;
  float* rstd;
  std::int64_t columns;
  float eps, offset = 0;
  void Run(Rows rows) const;
};

/// dx = dsum (may be null) + the gradient through the norm. Run() adds these rows' share to weight_gradient [columns].
template <class T>
struct RmsNormBackward {
  const T *dout, *dsum, *x, *weight;
  const float* rstd;
  T* dx;
  std::int64_t columns;
  float offset = 0;
  void Run(Rows rows, float* weight_gradient) const;
};

/// sum = x + delta (delta and sum may be null: sum is x); mean and rstd = 1/sqrt(variance + eps) of each row of the
/// sum; out = (sum - mean) · rstd · weight + bias, rounded to T once.
template <class T>
struct LayerNormForward {
  const T *x, *delta, *weight, *bias;
  T *sum, *out;
  float *mean, *rstd;
  std::int64_t columns;
  float eps;
  void Run(Rows rows) const;
};

/// dx = dsum (may be null) + the gradient through the norm. Run() adds these rows' share to gradients [2, columns]: of
/// the weight, then of the bias.
template <class T>
struct LayerNormBackward {
  const T *dout, *dsum, *x, *weight;
  const float *mean, *rstd;
  T* dx;
  std::int64_t columns;
  void Run(Rows rows, float* gradients) const;
};

/// Rotates the first `dim` dimensions of the first `heads` heads of each row by the angle of the row's position: pairs
/// (j, j + dim/2), or (2j, 2j + 1) with `neighbours`. Copies the other columns. cosine and sine have dim/2 values per
/// position. `sign` -1 rotates back, which is also the backward pass.
template <class T>
struct Rotate {
  const T* x;
  T* out;
  const float *cosine, *sine;
  const std::int32_t* positions;
  std::int64_t heads, head_dim, dim, columns;
  bool neighbours;
  float sign;
  void Run(Rows rows) const;
};

/// out [rows, columns] = silu(gate) · up, where gate_up is [rows, 2·columns]: gate, then up.
template <class T>
struct SwigluForward {
  const T* gate_up;
  T* out;
  std::int64_t columns;
  void Run(Rows rows) const;
};
template <class T>
struct SwigluBackward {
  const T *dout, *gate_up;
  T* dgate_up;
  std::int64_t columns;
  void Run(Rows rows) const;
};
/// As Swiglu, with the tanh form of GELU in place of silu (GeGLU: Shazeer 2020).
template <class T>
struct GegluForward {
  const T* gate_up;
  T* out;
  std::int64_t columns;
  void Run(Rows rows) const;
};
template <class T>
struct GegluBackward {
  const T *dout, *gate_up;
  T* dgate_up;
  std::int64_t columns;
  void Run(Rows rows) const;
};

/// The function of each element. One struct a function, so that each becomes a loop of its own.
struct GeluErf {
  static float Value(float x);
  static float Slope(float x);
};
struct GeluTanh {
  static float Value(float x);
  static float Slope(float x);
};
struct Silu {
  static float Value(float x);
  static float Slope(float x);
};
/// out[i] = Function::Value(x[i]) for i in [begin, end).
template <class Function, class T>
void ActivateForward(const T* x, T* out, std::int64_t begin, std::int64_t end);
/// dx[i] = dout[i] · Function::Slope(x[i]).
template <class Function, class T>
void ActivateBackward(const T* dout, const T* x, T* dx, std::int64_t begin, std::int64_t end);

/// Multiplies elements first … first + n - 1 of a row with 0 or `scale`. Element j is dropped if random word j mod 4 of
/// the counter (j / 4, c1, c2, c3) is below `threshold`. x and out point to element `first`; they may be the same.
struct DropoutRow {
  std::uint64_t key;
  std::uint32_t threshold;
  float scale;
  template <class T>
  void Run(const T* x, T* out, std::int64_t first, std::int64_t n, std::uint32_t c1, std::uint32_t c2,
           std::uint32_t c3) const;
};

/// losses[row] = log(sum(exp(logits))) - logits[label]. With `gradient`, writes the gradient of LossOptions' objective
/// over the logits (cross_entropy.h): softmax - onehot(label), if both options are 0.
template <class T>
struct CrossEntropy {
  T* logits;
  const std::int64_t* labels;
  double* losses;
  std::int64_t columns;
  bool gradient;
  float label_smoothing, z_loss;
  void Run(Rows rows) const;
};

/// The softmax of a row, as far as a rank with some of the columns knows it.
struct PartialSoftmax {
  float most;   ///< the greatest logit
  float sum;    ///< of exp(logit - most)
  float label;  ///< the label's logit; 0 if another rank has it
};
/// Fills `partial` [rows]. labels count from this rank's first column; others have labels outside [0, columns).
template <class T>
struct CrossEntropyScan {
  const T* logits;
  const std::int64_t* labels;
  PartialSoftmax* partial;
  std::int64_t columns;
  void Run(Rows rows) const;
};
/// Writes over this rank's logits what CrossEntropy writes. `vocab` is the number of all ranks' columns.
template <class T>
struct CrossEntropyGradient {
  T* logits;
  const std::int64_t* labels;
  const float* lse;
  std::int64_t columns, vocab;
  float label_smoothing, z_loss;
  void Run(Rows rows) const;
};

// The inner loops of attention over one block of scores [rows, keys]. Row r sees keys [begin(r), end(r)). Rows of all
// matrices of this shape are VisibleKeys::stride() elements apart.

/// The keys of a block that each of its rows sees. With `causal`, row r sees keys up to first_row + r, and of these the
/// last `window` if that is not 0. Both count from the block's first key.
struct VisibleKeys {
  std::int64_t keys, first_row, window;
  bool causal;
  /// Blocks have a multiple of 64 keys, mostly. Without the 16 more, the elements of a column would share few sets of
  /// the cache: products that read scores by columns would take up to 1.35 times as long (64 x 512 scores, Zen 3).
  static std::int64_t Stride(std::int64_t keys) { return keys + 16; }
  std::int64_t stride() const { return Stride(keys); }
  std::int64_t begin(std::int64_t row) const {
    return window > 0 && first_row + row >= window ? first_row + row - window + 1 : 0;
  }
  std::int64_t end(std::int64_t row) const { return causal && first_row + row + 1 < keys ? first_row + row + 1 : keys; }
};

/// out = exp(score - max of its row), and zero where the row does not see the key. Writes sums and log-sum-exp per row.
/// `out` may be `scores`, of which only the visible ones are read.
template <class T>
void Softmax(const float* scores, T* out, std::int64_t rows, const VisibleKeys& visible, float* sums, float* lse);
/// probabilities = exp(score - lse), and zero where the row does not see the key. dscores = the gradient of the scores.
/// `probabilities` may be `scores`, and `dscores` may be `dprobabilities`.
/// If the scores were capped, `softcap` is what CapScores() got, and dscores is the gradient of the scores before it.
template <class T>
void SoftmaxBackward(const float* scores, const float* dprobabilities, T* probabilities, T* dscores, std::int64_t rows,
                     const VisibleKeys& visible, const float* lse, float softcap = 0);
/// Replaces each score that a row sees by softcap · tanh(score / softcap).
void CapScores(float* scores, std::int64_t rows, const VisibleKeys& visible, float softcap);
/// Copies rows, `x_stride` elements apart, to rows side by side.
template <class T>
void PackRows(const T* x, std::int64_t x_stride, T* out, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row) std::copy_n(x + row * x_stride, columns, out + row * columns);
}
void PackRows(const Bf16* x, std::int64_t x_stride, float* out, std::int64_t rows, std::int64_t columns);
/// out[r][c] = x[r][c] · factor, divided by divisors[r] unless they are null. Rows of out are `out_stride` apart.
template <class T>
void UnpackRows(const float* x, T* out, std::int64_t out_stride, std::int64_t rows, std::int64_t columns,
                const float* divisors, float factor);

/// Constants of one optimizer step.
struct AdamwStep {
  float lr, beta1, beta2, eps, weight_decay;
  float correction1, correction2;  ///< 1 - beta^t
  float gradient_scale;
};
/// Updates moments and master weights and zeroes the gradients in one pass. With Bf16, writes the rounded master
/// weights into `weights`. With float, `master` and `weights` are the same array.
template <class T>
void Adamw(const AdamwStep& step, T* weights, float* master, float* gradients, float* moment1, float* moment2,
           std::int64_t count);

/// Constants of one LAMB step.
struct LambStep {
  float beta1, beta2, eps;
  float correction1, correction2;  ///< 1 - beta^t
  float gradient_scale;
};
/// Sums of squares over some elements of a parameter.
struct LambSquares {
  double weight = 0, update = 0;
};
/// Updates the moments and replaces each gradient by the update, before the trust ratio. Returns what the trust ratio
/// needs of these elements.
LambSquares LambDirection(const LambStep& step, float weight_decay, const float* master, float* gradients,
                          float* moment1, float* moment2, std::int64_t count);
/// master -= rate · updates; zeroes the updates. `weights` as in Adamw.
template <class T>
void LambApply(float rate, T* weights, float* master, float* updates, std::int64_t count);

/// Constants of one step of SGD.
struct SgdStep {
  float lr, momentum, weight_decay, gradient_scale;
  bool nesterov;
};
/// Updates momentum (null: none) and master weights and zeroes the gradients in one pass. `weights` as in Adamw.
template <class T>
void Sgd(const SgdStep& step, T* weights, float* master, float* gradients, float* momentum, std::int64_t count);

/// Elements of a slice whose numbers an optimizer keeps in bfloat16.
struct RoundedElements {
  std::uint64_t key;       ///< of the tensor and the step
  std::int64_t first;      ///< the first one, counted in the flattened slice
  ElementNumbers numbers;  ///< of the slice
};
void Widen(const Bf16* x, float* out, std::int64_t count);
/// out = x, rounded stochastically.
void RoundStochastically(const RoundedElements& elements, RoundedNumber number, const float* x, Bf16* out,
                         std::int64_t count);

double SumOfSquares(const float* x, std::int64_t count);

}  // namespace millrace::engine::cpu
