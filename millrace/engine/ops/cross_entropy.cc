#include "millrace/engine/ops/cross_entropy.h"

#include <ATen/core/grad_mode.h>
#include <cmath>
#include <functional>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/dispatch.h"
#include "millrace/engine/ops/product.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops {
namespace {

/// The approximate number of logits in a chunk: enough rows for GEMM to run at full speed, at a cost of 50 MB.
constexpr std::int64_t kChunkElements = 12 << 20;
constexpr std::int64_t kLeastChunkRows = 64;

struct LossesAndGradients {
  at::Tensor losses;            ///< float64, one of each row
  at::Tensor dx, dhead, dbias;  ///< undefined unless asked for; dhead and dbias are float32
  at::Tensor dinner, dup;       ///< of the update; dup is float32
  double Sum() const {
    const double* each = Data<double>(losses);
    double sum = 0;
    for (std::int64_t row = 0; row < losses.numel(); ++row) sum += each[row];
    return sum;
  }
};

/// Computes the loss of a chunk's rows from its logits. Adds the rows' losses in double.
/// With `gradient`, writes the gradient of the loss over the logits.
using ChunkLoss =
    std::function<void(const at::Tensor& logits, const std::int64_t* labels, double* losses, bool gradient)>;

template <class T>
void WholeRows(const at::Tensor& logits, const std::int64_t* labels, double* losses, bool gradient,
               const LossOptions& options, std::int64_t* correct) {
  const std::int64_t rows = logits.size(0), columns = logits.size(1);
  if (correct != nullptr) {  // before the gradients take the place of the logits
    const at::Tensor own = logits.gather(1, at::tensor(at::ArrayRef(labels, rows), at::kLong).unsqueeze(1));
    *correct += own.squeeze(1).ge(std::get<0>(logits.max(1))).sum().item<std::int64_t>();
  }
  const cpu::CrossEntropy<T> kernel{Data<T>(logits),
                                    labels,
                                    losses,
                                    columns,
                                    gradient,
                                    static_cast<float>(options.label_smoothing),
                                    static_cast<float>(options.z_loss)};
  ParallelRows(rows, columns, [&](cpu::Rows part) { kernel.Run(part); });
}

/// The logits have this rank's share of `vocab` columns.
template <class T>
void DividedRows(const at::Tensor& logits, const std::int64_t* labels, double* losses, bool gradient,
                 const LossOptions& options, std::int64_t vocab, const TensorRanks& ranks, std::int64_t* correct) {
  const std::int64_t first = ranks.ShareOf(vocab).first;
  const std::int64_t rows = logits.size(0), columns = logits.size(1);
  std::vector<std::int64_t> local(labels, labels + rows);
  for (std::int64_t& label : local) label -= first;
  static_assert(sizeof(cpu::PartialSoftmax) == 3 * sizeof(float));
  const at::Tensor all = at::empty({ranks.size(), rows, 3}, at::kFloat), mine = all[ranks.rank()];
  const auto* partial = static_cast<const cpu::PartialSoftmax*>(all.data_ptr());
  const cpu::CrossEntropyScan<T> scan{Data<T>(logits), local.data(), static_cast<cpu::PartialSoftmax*>(mine.data_ptr()),
                                      columns};
  ParallelRows(rows, columns, [&](cpu::Rows part) { scan.Run(part); });
  ThrowIfFailed(ranks.group->AllGather(all, mine));
  std::vector<float> lse(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto of = [&](int rank) -> const cpu::PartialSoftmax& { return partial[rank * rows + row]; };
    float most = of(0).most;
    double sum = 0, label = 0;
    for (int rank = 1; rank < ranks.size(); ++rank) most = std::max(most, of(rank).most);
    for (int rank = 0; rank < ranks.size(); ++rank) {
      sum += static_cast<double>(of(rank).sum) * std::exp(static_cast<double>(of(rank).most) - most);
      label += of(rank).label;
    }
    if (correct != nullptr && static_cast<float>(label) >= most) ++*correct;
    losses[row] = std::log(sum) + most - label;
    lse[static_cast<std::size_t>(row)] = static_cast<float>(std::log(sum) + most);
  }
  if (!gradient) return;
  const cpu::CrossEntropyGradient<T> kernel{Data<T>(logits),
                                            local.data(),
                                            lse.data(),
                                            columns,
                                            vocab,
                                            static_cast<float>(options.label_smoothing),
                                            static_cast<float>(options.z_loss)};
  ParallelRows(rows, columns, [&](cpu::Rows part) { kernel.Run(part); });
}

/// Caps logits in place. Returns the slopes of the caps, if `gradient` asks for them.
at::Tensor CapLogits(const at::Tensor& logits, double softcap, bool gradient) {
  if (softcap == 0) return {};
  logits.div_(softcap).tanh_();
  const at::Tensor slopes = gradient ? 1 - logits.square() : at::Tensor();
  logits.mul_(softcap);
  return slopes;
}

/// The gradients to compute. x: also of an update's inner products.
struct WantedGradients {
  bool x = false, head = false, bias = false, up = false;
};

/// The matrices that make the logits, all of one dtype. A tensor that the head does not have is undefined.
struct HeadOperands {
  at::Tensor x, head, bias, inner, up;
  at::Tensor Logits(std::int64_t begin, std::int64_t count) const {
    at::Tensor logits = Product(x.narrow(0, begin, count), head.t(), bias);
    if (!inner.defined()) return logits;
    const at::Tensor part = inner.narrow(0, begin, count);
    if (logits.scalar_type() == at::kFloat) {
      AddProduct(logits, part, up.t());
    } else {
      logits.add_(Product(part, up.t()));
    }
    return logits;
  }
};

/// `vocab` is the number of all ranks' rows of the head.
LossesAndGradients LossByChunks(const HeadOperands& operands, const at::Tensor& labels, std::int64_t vocab,
                                WantedGradients wanted, double softcap, const ChunkLoss& chunk_loss) {
  const auto& [x, head, bias, inner, up] = operands;
  const std::int64_t rows = x.size(0);
  const std::int64_t* label = Data<std::int64_t>(labels);
  for (std::int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK(label[row] >= 0 && label[row] < vocab, "label ", label[row], " is not one of ", vocab, ", 0 to ",
                vocab - 1);
  }
  LossesAndGradients result;
  if (wanted.x) result.dx = at::empty_like(x);
  if (wanted.head) result.dhead = at::zeros(head.sizes(), at::kFloat);
  if (wanted.bias) result.dbias = at::zeros(bias.sizes(), at::kFloat);
  if (wanted.x && inner.defined()) result.dinner = at::empty_like(inner);
  if (wanted.up) result.dup = at::zeros(up.sizes(), at::kFloat);
  result.losses = at::empty({rows}, at::kDouble);
  // From the whole vocabulary, so that ranks that divide it have the same chunks.
  const std::int64_t chunk = std::max(kLeastChunkRows, kChunkElements / vocab);
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const std::int64_t count = std::min(chunk, rows - begin);
    const at::Tensor part = x.narrow(0, begin, count);
    const at::Tensor logits = operands.Logits(begin, count);
    const at::Tensor slopes = CapLogits(logits, softcap, wanted.x);
    chunk_loss(logits, label + begin, Data<double>(result.losses) + begin, wanted.x);
    if (!wanted.x) continue;
    if (slopes.defined()) logits.mul_(slopes);  // the gradients of the logits, by now
    ProductInto(result.dx.narrow(0, begin, count), logits, head);
    if (result.dhead.defined()) AddProduct(result.dhead, logits.t(), part);
    if (result.dbias.defined()) result.dbias.add_(logits.sum(0, /*keepdim=*/false, at::kFloat));
    if (result.dinner.defined()) ProductInto(result.dinner.narrow(0, begin, count), logits, up);
    if (result.dup.defined()) AddProduct(result.dup, logits.t(), inner.narrow(0, begin, count));
  }
  return result;
}

/// What the ops below have in common: the losses of the rows with a label, and the gradients.
struct LabelledRows {
  at::Tensor kept;   ///< numbers of the rows with a label. Only these reach the head
  bool all = false;  ///< these are all rows
  std::int64_t rows = 0;
  LossesAndGradients result;

  /// Returns the gradient of x from that of the kept rows.
  at::Tensor Spread(const at::Tensor& dx) const {
    return all ? dx : at::zeros({rows, dx.size(1)}, dx.options()).index_copy_(0, kept, dx);
  }
};

/// Computes them by whichever way the loss of a chunk is computed. T is the type of the logits and of what is
/// multiplied.
template <class T>
LabelledRows LossesOf(const at::Tensor& x, const Weight& head, const Weight& bias, const HeadUpdate& update,
                      const at::Tensor& labels, std::int64_t vocab, bool recording, double softcap,
                      const ChunkLoss& chunk_loss) {
  const at::NoGradGuard no_grad;
  LabelledRows of{.kept = at::nonzero(labels != kIgnoreLabel).view({-1}), .rows = x.size(0)};
  of.all = of.kept.numel() == labels.numel();
  const auto is_wanted = [&](const Weight& weight) {
    return recording && weight.defined() && weight.value.requires_grad();
  };
  const auto multiplied = [](const at::Tensor& value) { return value.defined() ? value.to(kScalarType<T>) : value; };
  const auto rows = [&](const at::Tensor& each) {
    return each.defined() && !of.all ? each.index_select(0, of.kept) : each;
  };
  const HeadOperands operands{.x = multiplied(rows(x)),
                              .head = multiplied(head.value),
                              .bias = multiplied(bias.value),
                              .inner = multiplied(rows(update.inner)),
                              .up = multiplied(update.up.value)};
  const WantedGradients wanted{
      .x = recording, .head = is_wanted(head), .bias = is_wanted(bias), .up = is_wanted(update.up)};
  of.result = LossByChunks(operands, rows(labels).contiguous(), vocab, wanted, softcap, chunk_loss);
  if (recording) of.result.dx = of.result.dx.to(x.scalar_type());
  if (of.result.dinner.defined()) of.result.dinner = of.result.dinner.to(x.scalar_type());
  return of;
}

template <class T>
at::Tensor CrossEntropyOf(const at::Tensor& x, const Weight& head, const Weight& bias, const HeadUpdate& update,
                          const at::Tensor& labels, std::int64_t vocab, double softcap, const ChunkLoss& chunk_loss) {
  const TensorList inputs{x, head.value, bias.value, update.inner, update.up.value};
  const bool recording = Recording(inputs);
  LabelledRows of = LossesOf<T>(x, head, bias, update, labels, vocab, recording, softcap, chunk_loss);
  at::Tensor loss = at::scalar_tensor(of.result.Sum(), at::kFloat);
  if (!recording) return loss;
  Connect("LinearCrossEntropy", inputs, {loss},
          [head, bias, up = update.up, of = std::move(of)](TensorList&& gradients) {
            const auto scale = gradients[0].item<float>();
            const auto scaled = [&](const at::Tensor& rows) {
              if (!rows.defined()) return rows;
              if (scale != 1) rows.mul_(scale);
              return of.Spread(rows);
            };
            return TensorList{scaled(of.result.dx), AddOrReturn(head, of.result.dhead, scale),
                              bias.defined() ? AddOrReturn(bias, of.result.dbias, scale) : at::Tensor(),
                              scaled(of.result.dinner),
                              up.defined() ? AddOrReturn(up, of.result.dup, scale) : at::Tensor()};
          });
  return loss;
}

/// The gradient of a token's loss over x is there from the forward pass. So the backward pass only scales the rows.
template <class T>
at::Tensor TokenLossesOf(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                         std::int64_t vocab, double softcap, const ChunkLoss& chunk_loss) {
  TORCH_CHECK(!head.value.requires_grad() && !(bias.defined() && bias.value.requires_grad()),
              "losses of single tokens need a frozen head");
  const bool recording = Recording({x});
  LabelledRows of = LossesOf<T>(x, head, bias, {}, labels, vocab, recording, softcap, chunk_loss);
  at::Tensor losses = at::zeros({of.rows}, at::kDouble).index_copy_(0, of.kept, of.result.losses);
  if (!recording) return losses;
  Connect("TokenCrossEntropies", {x}, {losses}, [of = std::move(of)](TensorList&& gradients) {
    const at::Tensor scales = gradients[0].index_select(0, of.kept).to(at::kFloat).unsqueeze(1);
    const at::Tensor& dx = of.result.dx;
    return TensorList{of.Spread((dx * scales).to(dx.scalar_type()))};
  });
  return losses;
}

template <class T>
at::Tensor FusedCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                             const LossOptions& options, std::int64_t* correct, const HeadUpdate& update,
                             double softcap) {
  return CrossEntropyOf<T>(x, head, bias, update, labels, head.value.size(0), softcap,
                           [&](const at::Tensor& logits, const std::int64_t* some, double* losses, bool gradient) {
                             WholeRows<T>(logits, some, losses, gradient, options, correct);
                           });
}

template <class T>
at::Tensor FusedDividedCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias,
                                    const at::Tensor& labels, std::int64_t vocab, const TensorRanks& ranks,
                                    const LossOptions& options, std::int64_t* correct, const HeadUpdate& update,
                                    double softcap) {
  return CrossEntropyOf<T>(x, head, bias, update, labels, vocab, softcap,
                           [&](const at::Tensor& logits, const std::int64_t* some, double* losses, bool gradient) {
                             DividedRows<T>(logits, some, losses, gradient, options, vocab, ranks, correct);
                           });
}

template <class T>
at::Tensor FusedTokenCrossEntropies(const at::Tensor& x, const Weight& head, const Weight& bias,
                                    const at::Tensor& labels, std::int64_t vocab, const TensorRanks& ranks,
                                    double softcap) {
  return TokenLossesOf<T>(x, head, bias, labels, vocab, softcap,
                          [&](const at::Tensor& logits, const std::int64_t* some, double* losses, bool gradient) {
                            if (ranks.size() == 1) return WholeRows<T>(logits, some, losses, gradient, {}, nullptr);
                            DividedRows<T>(logits, some, losses, gradient, {}, vocab, ranks, nullptr);
                          });
}

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                              const LossOptions& options, std::int64_t* correct, const HeadUpdate& update,
                              double softcap) {
  static const auto kernels = AndOnCuda(OnCpuByProducts("LinearCrossEntropy", reference::LinearCrossEntropy,
                                                        FusedCrossEntropy<float>, FusedCrossEntropy<cpu::Bf16>),
                                        InCuda<cuda::LinearCrossEntropy>());
  return kernels.For(x)(x, head, bias, labels, options, correct, update, softcap);
}

at::Tensor DividedCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, const LossOptions& options,
                               std::int64_t* correct, const HeadUpdate& update, double softcap) {
  if (ranks.size() == 1) return LinearCrossEntropy(x, head, bias, labels, options, correct, update, softcap);
  using Function = decltype(FusedDividedCrossEntropy<float>);
  static const auto kernels =
      AndOnCuda(OnCpuByProducts<Function>("a divided LM head", nullptr, FusedDividedCrossEntropy<float>,
                                          FusedDividedCrossEntropy<cpu::Bf16>),
                InCuda<cuda::DividedCrossEntropy>());
  return kernels.For(x)(x, head, bias, labels, vocab, ranks, options, correct, update, softcap);
}

at::Tensor TokenCrossEntropies(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, double softcap) {
  static const auto kernels =
      AndOnCuda(OnCpuByProducts("TokenCrossEntropies", reference::TokenCrossEntropies, FusedTokenCrossEntropies<float>,
                                FusedTokenCrossEntropies<cpu::Bf16>),
                InCuda<cuda::TokenCrossEntropies>());
  return kernels.For(x)(x, head, bias, labels, vocab, ranks, softcap);
}

at::Tensor SoftCapped(const at::Tensor& x, double softcap) { return softcap > 0 ? at::tanh(x / softcap) * softcap : x; }

}  // namespace millrace::engine::ops
